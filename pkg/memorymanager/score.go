package memorymanager

import (
	"fmt"
	"math/bits"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Only few sets of nodes can have a score of their own, so that a strategy needs no list of all sets either: single nodes and
// the groups, which are looked at one by one anyway. Any other hint is of unused nodes, on which nothing is allocated, and has
// the lowest score; the best of these is the one without a strategy.

// ranked is a set of nodes with the score of the hint that it comes from.
type ranked struct {
	nodes nodeset.Set
	score int
}

// score is how much of a hint's nodes is allocated, in percent: for each memory type of the request 1 to 100, and their
// average by weight, as the Topology Manager averages the scores of all resources. 0 is none.
func (h *hints) score(nodes nodeset.Set) int {
	if !h.m.strategy.Scores() {
		return 0
	}
	var sum, weights uint64
	for _, c := range h.columns {
		weight := uint64(1)
		if named, ok := h.m.weights[c.name]; ok {
			weight = named
		}
		sum += weight * c.percent(nodes)
		weights += weight
	}
	if weights == 0 {
		return 0
	}
	return int(sum / weights)
}

// percent is how much of the nodes' allocatable bytes is allocated, rounded down; 1 to 100.
func (c *column) percent(nodes nodeset.Set) uint64 {
	allocatable := c.allocatableOf(nodes)
	if allocatable == 0 {
		return 1
	}
	high, low := bits.Mul64(allocatable-c.freeOf(nodes), 100)
	percent, _ := bits.Div64(high, low, allocatable)
	return max(1, percent)
}

// choice is the best of the sets of one size that were considered.
type choice struct {
	hints   *hints
	closest bool
	best    ranked
	// plain is what the best one would be without the strategy.
	plain ranked
}

// consider takes a set of nodes that comes from a hint.
func (c *choice) consider(nodes, hint nodeset.Set) {
	candidate := ranked{nodes, c.hints.score(hint)}
	if c.better(candidate, c.best) {
		c.best = candidate
	}
	if candidate.score > 0 && c.better(ranked{nodes: nodes}, ranked{nodes: c.plain.nodes}) {
		c.plain = candidate
	}
}

// better orders sets of one size as the Topology Manager does; the best one is kept among equals.
func (c *choice) better(a, best ranked) bool {
	if best.nodes.Empty() {
		return true
	}
	if c.closest {
		if x, y := c.hints.m.distances.sum(a.nodes), c.hints.m.distances.sum(best.nodes); x != y {
			return x < y
		}
	}
	if a.score != best.score {
		return c.hints.m.strategy.Prefers(a.score, best.score)
	}
	return a.nodes < best.nodes
}

// taken returns the best one, and notes whether the strategy has made it that.
func (c *choice) taken() nodeset.Set {
	c.hints.decided = [2]ranked{}
	if !c.plain.nodes.Empty() && c.plain.nodes != c.best.nodes {
		c.hints.decided = [2]ranked{c.best, c.plain}
	}
	return c.best.nodes
}

// byStrategy says in one line what the strategy has decided; empty when nothing.
func (h *hints) byStrategy() string {
	best, plain := h.decided[0], h.decided[1]
	if best.nodes.Empty() {
		return ""
	}
	return fmt.Sprintf("numaAllocationStrategy %s decided: %s (score %d) before %s (score %d)",
		h.m.strategy, best.nodes.Named(), best.score, plain.nodes.Named(), plain.score)
}

// checkStrategy takes an empty strategy for none.
func checkStrategy(s topologymanager.Strategy) (topologymanager.Strategy, error) {
	if s == "" {
		return topologymanager.NoStrategy, nil
	}
	return topologymanager.ParseStrategy(string(s))
}
