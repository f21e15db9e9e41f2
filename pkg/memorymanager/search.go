package memorymanager

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// searchBudget is how many nodes the search for one container may look at, again and again: about a millisecond. With one
// memory type, with equal nodes, or with up to ten nodes the exact answer takes far less. When it is used up (several
// types, or prefer-closest, over dozens of unequal nodes) the answer is a set of nodes that has room and keeps the group
// rules, perhaps a wider or less close one than the best; such decisions are counted.
const searchBudget = 200_000

// maxTypes bounds the memory types of one request: memory and every huge page size of any architecture.
const maxTypes = 8

// need is what is still wanted of each type of a request.
type need [maxTypes]uint64

func (n *need) met() bool { return *n == need{} }

// spend takes n node visits from the budget and reports whether there is still some.
func (h *hints) spend(n int) bool {
	if h.budget < n {
		h.budget = 0
		h.bounded = true
		return false
	}
	h.budget -= n
	return true
}

// without is what is left to want once the node has given all it has.
func (h *hints) without(want need, id int) need {
	for t, c := range h.columns {
		want[t] = minus(want[t], c.allocatable[id])
	}
	return want
}

// reachable reports whether r of the nodes could meet the need as far as each type by itself can say, and all types by
// their shares. For one type, and for equal nodes, that is exact.
func (h *hints) reachable(nodes nodeset.Set, r int, want *need) bool {
	for t, c := range h.columns {
		if want[t] > 0 && c.largest(nodes, r) < want[t] {
			return false
		}
	}
	return len(h.columns) == 1 || largest(&h.shares.of, h.shares.descending, nodes, r) >= h.share(want)*(1-1e-9)
}

// shares has for every node the sum over the types of the share of the request that it could hold. The r largest of them
// bound what r nodes can hold of all types at once.
type shares struct {
	of         [nodeset.Max]float64
	descending []int
}

func (h *hints) rankByShares() {
	s := &h.shares
	for id := range h.m.all.All() {
		var available need
		for t, c := range h.columns {
			available[t] = min(c.allocatable[id], h.want[t])
		}
		s.of[id] = h.share(&available)
		s.descending = append(s.descending, id)
	}
	slices.SortStableFunc(s.descending, func(a, b int) int { return cmp.Compare(s.of[b], s.of[a]) })
}

// share is the sum over the types of the share of the request.
func (h *hints) share(part *need) (sum float64) {
	for t := range h.columns {
		if h.want[t] > 0 {
			sum += float64(part[t]) / float64(h.want[t])
		}
	}
	return sum
}

// narrowest is the smallest mask, as a number, of r of the nodes that together have what is wanted.
// It decides node by node from the highest down, without the node first: the first answer is the smallest.
// They are the intersection of so many lists of unused nodes: see intersects.
func (h *hints) narrowest(nodes nodeset.Set, r int, want need, chosen nodeset.Set, lists int) (nodeset.Set, bool) {
	if r == 0 {
		return chosen, want.met() && h.intersects(chosen, lists)
	}
	if nodes.Len() < r || !h.spend(nodes.Len()) || !h.reachable(nodes, r, &want) {
		return 0, false
	}
	top := 63 - bits.LeadingZeros64(uint64(nodes))
	if found, ok := h.narrowest(nodes&^(1<<top), r, want, chosen, lists); ok {
		return found, true
	}
	// Without this node nothing does. A node like it could take its place, so all of its like are in every answer.
	twins := h.twins(nodes, top)
	for id := range twins.All() {
		want = h.without(want, id)
	}
	if r -= twins.Len(); r < 0 {
		return 0, false
	}
	return h.narrowest(nodes&^twins, r, want, chosen|twins, lists)
}

// twins are the nodes that have as much of each wanted type as this one.
func (h *hints) twins(nodes nodeset.Set, like int) (twins nodeset.Set) {
	for id := range nodes.All() {
		if !slices.ContainsFunc(h.columns, func(c *column) bool { return c.allocatable[id] != c.allocatable[like] }) {
			twins |= 1 << id
		}
	}
	return twins
}

// smallest is the smallest mask of the fewest of the nodes that together have what is wanted; an easy one when the
// budget is used up.
func (h *hints) smallest(nodes nodeset.Set, from, to int, want need) (nodeset.Set, bool) {
	for size := from; size <= min(to, nodes.Len()) && !h.bounded; size++ {
		if found, ok := h.narrowest(nodes, size, want, 0, 1); ok {
			return found, true
		}
	}
	if !h.bounded {
		return 0, false
	}
	best := h.greedy(nodes, from, want)
	for _, c := range h.columns {
		if found := h.first(c.descending, nodes, from, want); narrower(found, best) && !found.Empty() {
			best = found
		}
	}
	return best, !best.Empty() && best.Len() <= to
}

// first takes the nodes in an order, at least so many, until they have what is wanted; none if they never do.
func (h *hints) first(order []int, nodes nodeset.Set, least int, want need) (chosen nodeset.Set) {
	for _, id := range order {
		if want.met() && least <= 0 {
			return chosen
		}
		if nodes.Has(id) {
			chosen |= 1 << id
			want = h.without(want, id)
			least--
		}
	}
	if !want.met() {
		return 0
	}
	return chosen
}

// greedy takes the nodes that add most to what is still wanted, one by one.
func (h *hints) greedy(nodes nodeset.Set, least int, want need) (chosen nodeset.Set) {
	for ; !want.met() || least > 0; least-- {
		best, most := -1, -1.0
		for id := range (nodes &^ chosen).All() {
			left := h.without(want, id)
			if gain := h.share(&want) - h.share(&left); gain > most {
				best, most = id, gain
			}
		}
		if best < 0 {
			return 0
		}
		chosen |= 1 << best
		want = h.without(want, best)
	}
	return chosen
}

// exists reports whether r of the nodes can have what is wanted.
func (h *hints) exists(nodes nodeset.Set, r int, want need) bool {
	if len(h.columns) == 1 {
		return h.reachable(nodes, r, &want)
	}
	for _, c := range h.columns {
		if easy := h.first(c.descending, nodes, r, want); !easy.Empty() && easy.Len() == r {
			return true
		}
	}
	_, ok := h.narrowest(nodes, r, want, 0, 1)
	return ok
}

// intersects reports whether the chosen unused nodes are the intersection of so many hints of unused nodes. Each hint
// leaves out some of the others, at most what it can spare; together they leave out all of them. That is packing the
// others into as many bins of the size of what can be spared.
func (h *hints) intersects(chosen nodeset.Set, lists int) bool {
	if lists == 1 {
		return true
	}
	var bins [maxTypes]need
	lists = min(lists, maxTypes)
	for i := range lists {
		for t, c := range h.columns {
			bins[i][t] = c.allocatableOf(h.unused) - h.want[t]
		}
	}
	return h.pack(h.unused&^chosen, bins[:lists], 0)
}

func (h *hints) pack(nodes nodeset.Set, bins []need, used int) bool {
	if nodes.Empty() {
		return true
	}
	if !h.spend(len(bins)) {
		return false
	}
	id := nodes.First()
	for i := range min(used+1, len(bins)) {
		before := bins[i]
		fits := true
		for t, c := range h.columns {
			fits = fits && c.allocatable[id] <= before[t]
			bins[i][t] = minus(before[t], c.allocatable[id])
		}
		if fits && h.pack(nodes&^(1<<id), bins, max(used, i+1)) {
			return true
		}
		bins[i] = before
	}
	return false
}
