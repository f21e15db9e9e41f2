package memorymanager

import (
	"cmp"
	"iter"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Release ends a container's booking; false when there was none.
func (m *Manager) Release(pod, container string) bool {
	p := m.pods[pod]
	if p == nil {
		return false
	}
	for i := range p.containers {
		if p.containers[i].name == container {
			blocks := p.containers[i].blocks
			p.containers = slices.Delete(p.containers, i, i+1)
			m.unbook(blocks)
			m.forget(p)
			m.generation++
			return true
		}
	}
	return false
}

// ReleasePod ends all bookings of a pod and forgets its affinity; false when there were no bookings.
func (m *Manager) ReleasePod(pod string) bool {
	p := m.pods[pod]
	if p == nil {
		return false
	}
	containers := p.containers
	p.containers, p.affinity = nil, nil
	for i := range containers {
		m.unbook(containers[i].blocks)
	}
	m.forget(p)
	if len(containers) > 0 {
		m.generation++
	}
	return len(containers) > 0
}

// unbook frees blocks that are no longer in any container: per block the nodes in ascending order, as the kubelet does.
func (m *Manager) unbook(blocks []Block) {
	if span(blocks)&m.mixed != 0 {
		m.regroup()
		return
	}
	for i := range blocks {
		b := &blocks[i]
		for id := range b.Nodes.All() {
			m.unassign(id)
		}
		m.drain(m.column(b.Type), b.Nodes, b.Size)
	}
}

func (m *Manager) unassign(id int) {
	if m.assignments[id]--; m.assignments[id] == 0 {
		m.groups[id] = nodeset.Of(id)
		m.unused |= nodeset.Of(id)
	}
}

// drain frees bytes on the nodes in ascending order.
func (m *Manager) drain(c *column, nodes nodeset.Set, bytes uint64) {
	for id := range nodes.All() {
		part := min(bytes, c.booked[id])
		c.booked[id] -= part
		bytes -= part
	}
}

// groupsOfMany yields every group of more than one node, by its lowest node.
func (m *Manager) groupsOfMany() iter.Seq[nodeset.Set] {
	return func(yield func(nodeset.Set) bool) {
		for id := range (m.all &^ m.unused).All() {
			if group := m.groups[id]; group.First() == id && group.Len() > 1 && !yield(group) {
				return
			}
		}
	}
}

// blocks yields every block there is.
func (m *Manager) blocks() iter.Seq[*Block] {
	return func(yield func(*Block) bool) {
		for _, p := range m.pods {
			for i := range p.containers {
				for j := range p.containers[i].blocks {
					if !yield(&p.containers[i].blocks[j]) {
						return
					}
				}
			}
		}
	}
}

// regroup counts assignments anew and joins the nodes of blocks that overlap into one group each. Groups whose blocks do
// not all span them are mixed; there, booked bytes can not be told apart by node when a block goes, so they are booked
// anew, the blocks with the fewest nodes first. Only adopted and restored containers make such groups.
func (m *Manager) regroup() {
	before := m.mixed
	for id := range m.all.All() {
		m.assignments[id] = 0
		m.groups[id] = nodeset.Of(id)
	}
	m.unused, m.mixed = m.all, 0
	for b := range m.blocks() {
		joined := b.Nodes
		for id := range b.Nodes.All() {
			m.assignments[id]++
			joined |= m.groups[id]
		}
		m.unused &^= b.Nodes
		for id := range joined.All() {
			m.groups[id] = joined
		}
	}
	for b := range m.blocks() {
		if group := m.groups[b.Nodes.First()]; group != b.Nodes {
			m.mixed |= group
		}
	}
	m.rebook(before | m.mixed)
}

// rebook books the blocks that touch these nodes anew.
func (m *Manager) rebook(nodes nodeset.Set) {
	if nodes.Empty() {
		return
	}
	var again []*Block
	for b := range m.blocks() {
		if b.Nodes&nodes != 0 {
			again = append(again, b)
		}
	}
	slices.SortFunc(again, func(a, b *Block) int {
		if a.Nodes.Len() != b.Nodes.Len() {
			return a.Nodes.Len() - b.Nodes.Len()
		}
		return cmp.Compare(a.Nodes, b.Nodes)
	})
	for _, c := range m.columns {
		for id := range nodes.All() {
			c.booked[id] = 0
		}
	}
	for _, b := range again {
		c := m.column(b.Type)
		c.booked[b.Nodes.First()] += m.fill(c, b.Nodes, b.Size)
	}
}
