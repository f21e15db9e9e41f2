package memorymanager

import (
	"cmp"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Movable reports whether allocations can be moved to other nodes at all: not where the containers of a pod are placed together
// (scope pod), and not where groups overlap (AlignToKubelet).
func (m *Manager) Movable() bool {
	return m.options.Scope == topologymanager.ContainerScope && !m.overlaps
}

// Move allocates a container's memory on other nodes, and reports whether the group rules and the room there let it; otherwise
// nothing has changed. To fewer nodes of its own group it may go while others span the group: the group ends with the last of them.
func (m *Manager) Move(pod, container string, to nodeset.Set) bool {
	c := m.container(pod, container)
	if c == nil || isEven(c.blocks) || m.whole(pod) || !m.Movable() || to.Empty() || !to.SubsetOf(m.all) || to == span(c.blocks) {
		return false
	}
	_, moved := m.move(c, to, true)
	if moved {
		m.hasChanged(pod)
		m.allChanged = true // the bytes of the others in a group may be on other nodes of it now
	}
	return moved
}

// move is Move of a container, and returns what there was before; within allows fewer nodes of a group that others span.
func (m *Manager) move(c *container, to nodeset.Set, within bool) (was before, moved bool) {
	from := span(c.blocks)
	if (from & to).Empty() && !m.hold(to, c.blocks) {
		return before{}, false
	}
	was = m.before(c)
	c.blocks = nil
	m.freeBlocks(was.blocks)
	blocks := slices.Clone(was.blocks)
	for i := range blocks {
		blocks[i].Nodes, blocks[i].PerNode = to, nil
	}
	switch lawful := m.lawful(to); {
	case lawful && m.hold(to, blocks):
		c.blocks = blocks
		m.occupy(blocks)
		m.settle(to, nil)
		return was, true
	case !lawful && within && to.SubsetOf(from):
		c.blocks = blocks
		if m.overallocate(blocks); len(m.shortages(from, 0)) == 0 {
			return was, true
		}
	}
	m.revert(c, was)
	return before{}, false
}

// Leave has nobody be allocated what blocks had on nodes, on each of them, until the next Leave: a container has moved off them, and
// its pages follow. No nodes end that. It is no part of the State.
func (m *Manager) Leave(nodes nodeset.Set, blocks []Block) {
	changed := len(blocks) > 0
	for _, c := range m.columns {
		changed = changed || c.leaving != [nodeset.Max]uint64{}
		c.leaving = [nodeset.Max]uint64{}
	}
	for _, b := range blocks {
		column := m.column(b.Type)
		for id := range nodes.All() {
			column.leaving[id] = plus(column.leaving[id], b.Size)
		}
	}
	if changed {
		m.generation++
	}
}

// FitsLater reports whether a container that was rejected would be placed once what leaves has left.
func (m *Manager) FitsLater(c Container) bool {
	later := m.Clone()
	later.Leave(0, nil)
	if later.generation == m.generation || c.Request.invalid() != "" || m.container(c.Pod, c.Name) != nil || m.whole(c.Pod) {
		return false
	}
	_, fits := later.placeable(c)
	return fits
}

// hold reports whether nodes have as much free as blocks need.
func (m *Manager) hold(nodes nodeset.Set, blocks []Block) bool {
	return !slices.ContainsFunc(blocks, func(b Block) bool { return m.column(b.Type).freeOf(nodes) < b.Size })
}

// before is what a move of one container changes, as it was.
type before struct {
	nodeGroups
	allocated [][nodeset.Max]uint64
	blocks    []Block
}

func (m *Manager) before(c *container) before {
	b := before{nodeGroups: m.nodeGroups, allocated: make([][nodeset.Max]uint64, len(m.columns)), blocks: c.blocks}
	for i, column := range m.columns {
		b.allocated[i] = column.allocated
	}
	return b
}

func (m *Manager) revert(c *container, b before) {
	m.nodeGroups, c.blocks = b.nodeGroups, b.blocks
	for i, column := range m.columns {
		column.allocated = b.allocated[i]
	}
	m.reassign(m.mixed) // also where the bytes of other blocks are
}

// reliefTries bounds the search for relocations, in tries: a few milliseconds.
const reliefTries = 2000

// Relief finds relocations of tenants, as few as will do and at most so many, after which a rejected container would be placed, and
// on which nodes; none where there are none, or none was found in time. A relocation follows the group rules, and never takes a
// container to more nodes than it has. Small containers are tried first.
func (m *Manager) Relief(c Container, tenants []Tenant, most int) (moves []Relocation, nodes nodeset.Set) {
	if !m.Movable() || !m.mixed.Empty() || m.Spreads(c) || m.whole(c.Pod) || c.Request.invalid() != "" || m.container(c.Pod, c.Name) != nil {
		return nil, 0
	}
	for _, amount := range c.Request { // moves leave the sum as it is
		column := m.column(amount.Type)
		if column == nil || plus(column.freeOf(m.all), m.reusable(c.Pod, m.all, amount.Type)) < amount.Bytes {
			return nil, 0
		}
	}
	movable := slices.DeleteFunc(slices.Clone(tenants), func(t Tenant) bool {
		return t.Stays || isEven(t.Blocks) || t.Container == "" || m.container(t.Pod, t.Container) == nil
	})
	slices.SortStableFunc(movable, func(a, b Tenant) int {
		return cmp.Or(cmp.Compare(ordinary(a.Blocks), ordinary(b.Blocks)), cmp.Compare(span(a.Blocks), span(b.Blocks)))
	})
	r := relief{m: m, c: c, tries: reliefTries}
	for n := 1; n <= most && moves == nil; n++ {
		moves = r.search(movable, n)
	}
	return moves, r.nodes
}

type relief struct {
	m     *Manager
	c     Container
	tries int
	nodes nodeset.Set // where the container would be
}

// search tries every relocation of a tenant, with n-1 of others after it.
func (r *relief) search(tenants []Tenant, n int) []Relocation {
	for i, t := range tenants {
		if i > 0 && alike(t, tenants[i-1]) {
			continue
		}
		moved := r.m.container(t.Pod, t.Container)
		for _, to := range r.m.elsewhere(t) {
			was, can := r.m.move(moved, to, n > 1) // a group that others span ends with the last move at best
			if !can {
				continue
			}
			if r.tries--; r.tries < 0 {
				r.m.revert(moved, was)
				return nil
			}
			var after []Relocation
			fits := false
			if n == 1 {
				r.nodes, fits = r.m.placeable(r.c)
			} else {
				after = r.search(slices.Delete(slices.Clone(tenants), i, i+1), n-1)
				fits = after != nil
			}
			r.m.revert(moved, was)
			if fits {
				return append([]Relocation{t.to(to)}, after...)
			}
		}
	}
	return nil
}

// alike reports whether it makes no difference which of two tenants moves.
func alike(a, b Tenant) bool {
	return a.CPUs == b.CPUs && slices.EqualFunc(a.Blocks, b.Blocks, sameBlock)
}

// elsewhere are the nodes to which a tenant might move: single ones, groups, and unused ones that would be a group with it.
func (m *Manager) elsewhere(t Tenant) (sets []nodeset.Set) {
	from := span(t.Blocks)
	consider := func(nodes nodeset.Set) {
		if nodes != from && nodes.Len() <= from.Len() && t.CPUs.SubsetOf(nodes) && !nodes.Empty() {
			sets = append(sets, nodes)
		}
	}
	for id := range m.all.All() {
		if single := nodeset.Of(id); m.groups[id] == single || from.Has(id) {
			consider(single)
		}
	}
	for group := range m.groupsOfMany() {
		consider(group)
	}
	if h, known := m.hintsFor(t.Pod, sizes(t.Blocks)); known && from.Len() > 1 {
		unused, _ := h.smallest(m.unused, 2, from.Len(), h.want)
		consider(unused)
	}
	return sets
}

// placeable reports whether a new container would be placed, and on which nodes.
func (m *Manager) placeable(c Container) (nodeset.Set, bool) {
	h, known := m.hintsFor(c.Pod, c.Request)
	if !known {
		return 0, false
	}
	hint, admitted := m.affinity(c, h)
	if !admitted || c.Required && m.rules.Aligns && !hint.Preferred {
		return 0, false
	}
	nodes, cause := m.allocate(c.Pod, h, hint)
	if cause != "" && m.options.FallBack {
		nodes, cause = h.narrow(), ""
	}
	return nodes, cause == "" && !nodes.Empty() && m.verifyPages(c, nodes) == nil
}
