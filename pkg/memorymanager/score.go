package memorymanager

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Under the kubelet's strategies only few sets of nodes can have a score of their own, so that a strategy needs no list of all sets either: single nodes and
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
	switch {
	case !h.m.options.Strategy.Scores():
		return 0
	case h.m.options.Strategy == topologymanager.LeastUsed:
		return h.slackPercent(nodes)
	}
	var sum, weights uint64
	for _, c := range h.columns {
		weight := uint64(1)
		if named, ok := h.m.options.Weights[c.name]; ok {
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
	return percent(allocatable-c.freeOf(nodes), allocatable)
}

// percent is part of whole, rounded down; 1 to 100.
func percent(part, whole uint64) uint64 {
	high, low := bits.Mul64(part, 100)
	percent, _ := bits.Div64(high, low, whole)
	return max(1, percent)
}

// slackPercent is how much of the nodes' allocatable memory the kernel has available beyond the allocations, rounded down; 1 to
// 100. It is 0 where that is not known of one of them, and for a request without memory: huge pages are in pools of their own.
func (h *hints) slackPercent(nodes nodeset.Set) int {
	c := h.m.column(Memory)
	allocatable := c.allocatableOf(nodes)
	if allocatable == 0 || !slices.Contains(h.columns, c) {
		return 0
	}
	var slack uint64
	var known nodeset.Set
	for _, n := range h.m.nodeMemory {
		if nodes.Has(n.ID) {
			slack, known = slack+n.After(c.allocated[n.ID]).Slack(), known.Union(nodeset.Of(n.ID))
		}
	}
	if known != nodes {
		return 0
	}
	return int(percent(min(slack, allocatable), allocatable))
}

// mostListed is up to how many unused nodes their sets of one size are listed: the kubelet refuses more nodes than that.
const mostListed = 8

// considerUnused takes all sets of unused nodes of a size that fit, for a strategy that sees a difference between nodes on which
// nothing is allocated. Of more nodes than mostListed only the one that the search finds is considered.
func (c *choice) considerUnused(size int) {
	h := c.hints
	if h.m.options.Strategy != topologymanager.LeastUsed || len(h.m.nodeMemory) == 0 || h.unused.Len() > mostListed {
		return
	}
	var list func(nodes, rest nodeset.Set)
	list = func(nodes, rest nodeset.Set) {
		if nodes.Len() == size {
			if h.fits(nodes) {
				c.consider(nodes, nodes)
			}
			return
		}
		for id := range rest.All() {
			rest &^= nodeset.Of(id)
			list(nodes.Union(nodeset.Of(id)), rest)
		}
	}
	list(0, h.unused)
}

// SetNodeMemory sets the unused and available memory of the NUMA nodes, as sampled; nil if it is unknown. Of the manager's own decisions only
// those under the strategy LeastUsed depend on it.
func (m *Manager) SetNodeMemory(nodes []deficit.NodeMemory) { m.nodeMemory = nodes }

// NodeMemory is what was sampled, with what has been allocated and released since; nil when it is not known.
func (m *Manager) NodeMemory() []deficit.NodeMemory {
	c := m.column(Memory)
	if c == nil {
		return nil
	}
	nodes := slices.Clone(m.nodeMemory)
	for i, n := range nodes {
		nodes[i] = n.After(c.allocated[n.ID])
	}
	return nodes
}

// choice is the best of the sets of one size that were considered.
type choice struct {
	hints *hints
	best  ranked
	// plain is what the best one would be without the strategy.
	plain ranked
}

// consider takes a set of nodes that comes from a hint.
func (c *choice) consider(nodes, hint nodeset.Set) {
	if c.hints.m.options.Strategy == topologymanager.LeastUsed {
		hint = nodes // what counts is where the memory would be
	}
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
	if c.hints.byDistance {
		if x, y := c.hints.m.distances.sum(a.nodes), c.hints.m.distances.sum(best.nodes); x != y {
			return x < y
		}
	}
	if a.score != best.score {
		return c.hints.m.options.Strategy.Prefers(a.score, best.score)
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
	return fmt.Sprintf("numa-allocation-strategy %s decided: %s (score %d) before %s (score %d)",
		h.m.options.Strategy, best.nodes.Named(), best.score, plain.nodes.Named(), plain.score)
}
