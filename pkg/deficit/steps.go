package deficit

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

const (
	// QuietTime is for how long a node must have room for all that was moved off it before the cgroups may use it again: longer
	// than the swings of a usual load.
	QuietTime = 5 * time.Minute
	// quietMargin, in bytes, is what the node must have beyond that, so that it is not overcommitted again once the memory is back.
	quietMargin = 64 << 20
)

// Step has a cgroup stay off nodes that are overcommitted: it may use all others, and the kernel moves what it has mapped
// on them.
type Step struct {
	Path string
	// Off are the overcommitted nodes, and those that the cgroup is kept off already. They may be all there are.
	Off nodeset.Set
	// Bytes are moved.
	Bytes uint64
	// Received are the bytes that each other node gets.
	Received []Amount
}

// Overfills is the first node that a step would leave without room for its allocations, and what it would receive; false where there is
// none.
func (s *Step) Overfills(nodes []Node) (Amount, bool) {
	for _, received := range s.Received {
		for _, n := range nodes {
			if n.ID == received.Node && received.Bytes+leastDeficit > n.room() {
				return received, true
			}
		}
	}
	return Amount{}, false
}

// Steps yields the overcommitted nodes, the largest deficit first, each with the steps that would help it, in the order in which they are to
// be tried; nil is a node without any. A step moves all that the cgroup has mapped on the overcommitted nodes to where the kernel puts it, and
// must not be made where it Overfills a node. A cgroup is never moved to a node that it is kept off, so that steps end.
func Steps(nodes []Node, cgroups []Cgroup) iter.Seq2[*Node, *Step] {
	var all, off nodeset.Set
	for _, n := range nodes {
		all = all.Union(nodeset.Of(n.ID))
	}
	in := overcommittedNodes(nodes)
	for _, i := range in {
		off = off.Union(nodeset.Of(nodes[i].ID))
	}
	return func(yield func(*Node, *Step) bool) {
		tried := map[string]bool{}
		for _, i := range in {
			order := candidates(&nodes[i], cgroups)
			if len(order) == 0 && !yield(&nodes[i], nil) {
				return
			}
			for _, c := range order {
				if !tried[c.Path] && !yield(&nodes[i], c.leave(all, c.Off.Union(off))) {
					return
				}
				tried[c.Path] = true
			}
		}
	}
}

// candidates are the cgroups that have memory on an overcommitted node which may be moved, in the order in which they are tried. BestEffort
// memory goes first, then Burstable: of those that relieve the deficit alone the one that has least, else the one that has most.
func candidates(node *Node, cgroups []Cgroup) (order []*Cgroup) {
	for i := range cgroups {
		if c := &cgroups[i]; c.Order != Stays && len(c.Allocated) == 0 && !c.Off.Has(node.ID) && c.pages(node.ID).Anon >= leastMove {
			order = append(order, c)
		}
	}
	slices.SortFunc(order, func(a, b *Cgroup) int {
		x, y := a.pages(node.ID).Anon, b.pages(node.ID).Anon
		bySize := cmp.Compare(y, x)
		if min(x, y) >= node.Deficit() {
			bySize = -bySize
		}
		return cmp.Or(cmp.Compare(a.Order, b.Order), bySize, cmp.Compare(a.Path, b.Path))
	})
	return order
}

// leave is the step that has a cgroup leave nodes of a machine.
func (c *Cgroup) leave(all, off nodeset.Set) *Step {
	step := &Step{Path: c.Path, Off: off}
	step.Received = Received(all.Minus(c.Off), all.Minus(off), func(id int) uint64 { return c.pages(id).Mapped })
	for _, received := range step.Received {
		step.Bytes += received.Bytes
	}
	return step
}

// Received is what each node gets where a cgroup may use other nodes than before, of the bytes that it has mapped on each.
func Received(from, to nodeset.Set, mapped func(node int) uint64) (received []Amount) {
	bytes := map[int]uint64{}
	for id := range from.All() {
		if target := from.Remap(id, to); target != id {
			bytes[target] += mapped(id)
		}
	}
	for id := range to.All() {
		if bytes[id] > 0 {
			received = append(received, Amount{id, bytes[id]})
		}
	}
	return received
}

// Quiet is since when nodes have had room for all that was moved off them, by node.
type Quiet map[int]time.Time

// Over takes a sample into account and returns the nodes that have been quiet for QuietTime: the cgroups that are kept off them may use
// them again.
func (quiet Quiet) Over(now time.Time, nodes []Node, cgroups []Cgroup) (over nodeset.Set) {
	moved, off := map[int]uint64{}, nodeset.Set(0)
	for i := range cgroups {
		c := &cgroups[i]
		off = off.Union(c.Off)
		for id := range c.Off.All() {
			moved[id] += c.returns()
		}
	}
	for i := range nodes {
		n := &nodes[i]
		since, isQuiet := quiet[n.ID]
		switch {
		case !off.Has(n.ID) || n.Slack() < moved[n.ID]+quietMargin:
			delete(quiet, n.ID)
		case !isQuiet:
			quiet[n.ID] = now
		case now.Sub(since) >= QuietTime:
			over = over.Union(nodeset.Of(n.ID))
		}
	}
	return over
}

// returns is the most that may come back of a cgroup's memory: what was moved, as far as it still has so much.
func (c *Cgroup) returns() (mapped uint64) {
	for _, p := range c.Pages {
		mapped += p.Mapped
	}
	if c.Moved == 0 {
		return mapped
	}
	return min(c.Moved, mapped)
}
