package memorymanager

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// distances is the SLIT table by node id.
type distances struct {
	between [nodeset.Max][nodeset.Max]int
	// least is the smallest distance there and back between two nodes.
	least int
}

func newDistances(nodes []NodeCapacity, all nodeset.Set) (*distances, error) {
	d := &distances{least: math.MaxInt32}
	ids := all.IDs()
	for _, node := range nodes {
		if len(node.Distances) != len(ids) {
			return nil, fmt.Errorf("NUMA node %d has %d distances, want one for each of the %d nodes",
				node.ID, len(node.Distances), len(ids))
		}
		for i, distance := range node.Distances {
			if distance < 0 || distance > math.MaxUint16 {
				return nil, fmt.Errorf("NUMA node %d: distance %d to node %d is not in 0 to %d",
					node.ID, distance, ids[i], math.MaxUint16)
			}
			d.between[node.ID][ids[i]] = distance
		}
	}
	for _, a := range ids {
		for _, b := range ids {
			if a != b {
				d.least = min(d.least, d.there(a, b))
			}
		}
	}
	return d, nil
}

// there and back.
func (d *distances) there(a, b int) int { return d.between[a][b] + d.between[b][a] }

// sum of all distances within a set, self-distances included. For sets of one size it orders like the average.
func (d *distances) sum(nodes nodeset.Set) (sum int) {
	for a := range nodes.All() {
		for b := range nodes.All() {
			sum += d.between[a][b]
		}
	}
	return sum
}

// closestSearch is a branch and bound over the sets of r nodes that have what is wanted.
type closestSearch struct {
	*hints
	lists int // whose intersection the sets are: see intersects
	best  nodeset.Set
	sum   int
}

// closest is the set of r of the nodes with the smallest sum of distances; of equals the smallest mask; empty when none has what is wanted.
func (h *hints) closest(nodes nodeset.Set, r int, want need, lists int) nodeset.Set {
	s := closestSearch{hints: h, lists: lists, sum: math.MaxInt}
	var cost [nodeset.Max]int
	for id := range nodes.All() {
		cost[id] = h.m.distances.between[id][id]
	}
	s.visit(nodes, r, want, 0, 0, &cost)
	return s.best
}

// visit goes from the highest node down, without the node first, so that equals come in ascending order.
// cost[id] is what the sum grows by when id joins the chosen ones.
func (s *closestSearch) visit(nodes nodeset.Set, r int, want need, chosen nodeset.Set, sum int, cost *[nodeset.Max]int) {
	if r == 0 {
		if sum < s.sum && want.met() && s.intersects(chosen, s.lists) {
			s.best, s.sum = chosen, sum
		}
		return
	}
	if nodes.Len() < r || !s.spend(nodes.Len()*2) || !s.reachable(nodes, r, &want) {
		return
	}
	if sum+s.atLeast(nodes, r, cost) >= s.sum {
		return
	}
	top := 63 - bits.LeadingZeros64(uint64(nodes))
	rest := nodes &^ (1 << top)
	s.visit(rest, r, want, chosen, sum, cost)
	joined := *cost
	for id := range rest.All() {
		joined[id] += s.m.distances.there(id, top)
	}
	s.visit(rest, r-1, s.without(want, top), chosen|1<<top, sum+cost[top], &joined)
}

// atLeast is a lower bound of what r more nodes add to the sum.
func (s *closestSearch) atLeast(nodes nodeset.Set, r int, cost *[nodeset.Max]int) int {
	var buf [nodeset.Max]int
	costs := buf[:0]
	for id := range nodes.All() {
		costs = append(costs, cost[id])
	}
	slices.Sort(costs)
	bound := s.m.distances.least * (r * (r - 1) / 2)
	for _, c := range costs[:r] {
		bound += c
	}
	return bound
}
