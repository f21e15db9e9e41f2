package memorymanager

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// hints are the sets of nodes that a request could live on, never listed. A set of one node is one that is in no wider
// group. A wider set is exactly one group, or made of unused nodes only, and any superset of such within the unused
// nodes is one too. That leaves few single nodes and groups to look at, and one search over the unused nodes.
type hints struct {
	m *Manager
	// pod may re-use the memory of its init containers.
	pod     string
	columns []*column
	want    need
	unused  nodeset.Set

	budget  int
	bounded bool
	shares  shares // where the request has several types

	nodes    nodeset.Set // the narrowest hint, once found
	searched bool
	// byDistance is set where the closest is the best of hints of one size.
	byDistance bool
	decided    [2]ranked // what the strategy took, and what it took it before; empty when it did not decide
}

var _ topologymanager.Hints = (*hints)(nil)

// hintsFor prepares the hints of a request. A type that no node has makes it impossible; that is reported as false.
func (m *Manager) hintsFor(pod string, request Request) (*hints, bool) {
	h := &m.hints
	*h = hints{m: m, pod: pod, columns: h.columns[:0], unused: m.unused, shares: shares{descending: h.shares.descending[:0]},
		budget: m.budget, byDistance: m.options.PreferClosest && !m.rules.OneNode}
	for t, amount := range request {
		c := m.column(amount.Type)
		if c == nil {
			h.searched = true
			return h, false
		}
		h.columns = append(h.columns, c)
		h.want[t] = amount.Bytes
	}
	if len(request) > 1 {
		h.rankByShares()
	}
	return h, true
}

// fits reports whether the set has the request, now and by its size; it does not look at groups.
func (h *hints) fits(nodes nodeset.Set) bool {
	for t, c := range h.columns {
		want := h.want[t]
		if c.allocatableOf(nodes) < want {
			return false
		}
		if free := c.freeOf(nodes); free < want && free+h.m.reusable(h.pod, nodes, c.name) < want {
			return false
		}
	}
	return true
}

// lawful reports whether the group rules let a new container live on exactly these nodes.
func (h *hints) lawful(nodes nodeset.Set) bool { return nodes.SubsetOf(h.unused) || h.m.isGroup(nodes) }

// isGroup reports whether exactly these nodes are a group.
func (m *Manager) isGroup(nodes nodeset.Set) bool {
	for id := range nodes.All() {
		if m.groups[id] != nodes {
			return false
		}
	}
	return true
}

func (h *hints) has(nodes nodeset.Set) bool { return h.lawful(nodes) && h.fits(nodes) }

// narrower orders sets like the Topology Manager: fewer nodes first, then the smaller mask.
func narrower(a, b nodeset.Set) bool {
	if b.Empty() || a.Len() != b.Len() {
		return b.Empty() || a.Len() < b.Len()
	}
	return a < b
}

// narrow returns the narrowest hint; empty when there is none.
func (h *hints) narrow() nodeset.Set {
	if h.searched {
		return h.nodes
	}
	h.searched = true
	for id := range h.m.all.All() {
		if single := nodeset.Of(id); h.m.groups[id] == single && h.fits(single) {
			h.nodes = single
			return single
		}
	}
	for group := range h.m.groupsOfMany() {
		if narrower(group, h.nodes) && h.has(group) {
			h.nodes = group
		}
	}
	most := h.unused.Len()
	if !h.nodes.Empty() {
		most = min(most, h.nodes.Len())
	}
	if found, ok := h.smallest(h.unused, 2, most, h.want); ok && narrower(found, h.nodes) {
		h.nodes = found
	}
	return h.nodes
}

// minimal reports whether no smaller number of nodes could hold the request if the machine were empty, for a size that
// does hold it. Once the budget is used up it takes the size for minimal: the set of nodes may be wider than it had to
// be, and a restricted policy would turn down what is there.
func (h *hints) minimal(size int) bool {
	least := 1
	for t, c := range h.columns {
		for least <= h.m.all.Len() && c.largest(h.m.all, least) < h.want[t] {
			least++
		}
	}
	for ; least < size && !h.bounded; least++ {
		if h.exists(h.m.all, least, h.want) {
			return false
		}
	}
	return true
}

// Empty is set when nothing fits.
func (h *hints) Empty() bool { return h.narrow().Empty() }

// PreferredAt reports whether exactly these nodes are a preferred hint.
func (h *hints) PreferredAt(nodes nodeset.Set) bool {
	return nodes.SubsetOf(h.m.all) && h.has(nodes) && h.minimal(nodes.Len())
}

// PreferredSingle is the best single node of these, without a strategy the lowest or closest; a single node is always
// preferred.
func (h *hints) PreferredSingle(within nodeset.Set) (nodeset.Set, bool) {
	found := choice{hints: h}
	for id := range (within & h.m.all).All() {
		if single := nodeset.Of(id); h.m.groups[id] == single && h.fits(single) {
			found.consider(single, single)
		}
	}
	nodes := found.taken()
	return nodes, !nodes.Empty()
}

// BestPreferred is the best of the hints of minimal size.
func (h *hints) BestPreferred() (nodeset.Set, bool) {
	nodes := h.narrow()
	if nodes.Empty() || !h.minimal(nodes.Len()) {
		return 0, false
	}
	if h.byDistance || h.m.options.Strategy.Scores() {
		nodes = h.bestOfSize(nodes.Len(), 1)
	}
	return nodes, true
}

// BestIntersection is the best intersection of a hint of each type with the size of the smallest hint.
func (h *hints) BestIntersection() nodeset.Set {
	nodes := h.narrow()
	if !h.byDistance && len(h.columns) == 1 && !h.m.options.Strategy.Scores() {
		return nodes
	}
	return h.bestOfSize(nodes.Len(), len(h.columns))
}

// BestOverlap looks at every group, every single node and the unused nodes as a whole: a larger hint overlaps more.
func (h *hints) BestOverlap(nodes nodeset.Set) nodeset.Set {
	found := choice{hints: h}
	consider := func(hint nodeset.Set) {
		overlap, least := hint&nodes, found.best.nodes.Len()
		if overlap.Empty() || overlap.Len() < least || !h.has(hint) {
			return
		}
		if overlap.Len() > least {
			found = choice{hints: h}
		}
		found.consider(overlap, hint)
	}
	for id := range (nodes & h.m.all).All() {
		if group := h.m.groups[id]; group.First() == id || !nodes.Has(group.First()) {
			consider(group)
		}
	}
	consider(h.unused)
	return found.taken()
}

// bestOfSize is the best intersection of up to count hints that has this size; there is at least a hint of it.
func (h *hints) bestOfSize(size, count int) nodeset.Set {
	found := choice{hints: h}
	for id := range h.m.all.All() {
		if group := h.m.groups[id]; group.Len() == size && group.First() == id && h.has(group) {
			found.consider(group, group)
		}
	}
	if size > 1 || count > 1 { // single nodes are groups
		if nodes := h.bestUnused(size, count); nodes.Len() == size {
			found.consider(nodes, nodes)
		}
	}
	if size > 1 && count == 1 {
		found.considerUnused(size)
	}
	if found.best.nodes.Empty() {
		return h.nodes // the budget ran out
	}
	return found.taken()
}

// bestUnused is bestOfSize among the unused nodes; empty when there is none.
func (h *hints) bestUnused(size, count int) nodeset.Set {
	want := h.want
	if count > 1 {
		if !h.fits(h.unused) {
			return 0
		}
		// The intersection may be short of what each of the hints can spare, once for each but one.
		for t, c := range h.columns {
			all := c.allocatableOf(h.unused)
			spare := all - h.want[t]
			want[t] = all
			for range count {
				want[t] = minus(want[t], spare)
			}
		}
	}
	if size > h.unused.Len() {
		return 0
	}
	if h.byDistance {
		return h.closest(h.unused, size, want, count)
	}
	if found, ok := h.narrowest(h.unused, size, want, 0, count); ok {
		return found
	}
	return 0
}

// extend is the narrowest hint that contains the nodes.
func (h *hints) extend(nodes nodeset.Set) (nodeset.Set, bool) {
	if h.has(nodes) {
		return nodes, true
	}
	if group := h.m.groups[nodes.First()]; nodes.SubsetOf(group) && nodes != group {
		return group, h.has(group)
	}
	if !nodes.SubsetOf(h.unused) {
		return 0, false
	}
	want := h.want
	for id := range nodes.All() {
		want = h.without(want, id)
	}
	rest := h.unused &^ nodes
	found, ok := h.smallest(rest, 1, rest.Len(), want)
	return nodes | found, ok
}
