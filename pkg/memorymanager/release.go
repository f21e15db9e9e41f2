package memorymanager

import (
	"cmp"
	"iter"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Release ends a container's allocation; false when there was none.
func (m *Manager) Release(pod, container string) bool {
	freed, there := m.take(pod, container)
	if there {
		m.freeBlocks(freed)
	}
	return there
}

// take removes a container, and returns the blocks that are to be freed for it.
func (m *Manager) take(pod, container string) (freed []Block, there bool) {
	p := m.known(pod)
	i := p.index(container)
	if i < 0 {
		return nil, false
	}
	freed = p.containers[i].blocks
	p.containers = slices.Delete(p.containers, i, i+1)
	if p.blocks != nil {
		freed = nil // a part of the pod's, which goes with the last container
		if len(p.containers) == 0 {
			freed, p.blocks = p.blocks, nil
		}
	}
	m.forget(p)
	return freed, true
}

// ReleasePod ends all allocations of a pod and forgets its affinity; false when there were no allocations.
func (m *Manager) ReleasePod(pod string) bool {
	p := m.known(pod)
	if p == nil {
		return false
	}
	var freed []Block
	for b := range p.counted() {
		freed = append(freed, *b)
	}
	p.containers, p.blocks, p.affinity = nil, nil, nil
	m.freeBlocks(freed)
	m.forget(p)
	return len(freed) > 0
}

// counted yields the blocks that the node map counts: the pod's own, or its containers'.
func (p *pod) counted() iter.Seq[*Block] {
	return func(yield func(*Block) bool) {
		for i := range p.blocks {
			if !yield(&p.blocks[i]) {
				return
			}
		}
		for i := range p.containers {
			for j := range p.containers[i].blocks {
				if p.blocks == nil && !yield(&p.containers[i].blocks[j]) {
					return
				}
			}
		}
	}
}

// freeBlocks frees blocks that no pod has any more: per block the nodes in ascending order, as the kubelet does.
func (m *Manager) freeBlocks(blocks []Block) {
	regroup := false
	for _, b := range blocks {
		if b.Nodes&m.mixed != 0 {
			regroup = true
			continue
		}
		for id := range b.Nodes.All() {
			m.unassign(id)
		}
		if m.drain(m.column(b.Type), b.Nodes, b.Size) > 0 {
			m.mixed, regroup = m.all, true // where groups overlap, another container's bytes were drained before
		}
	}
	if m.overlaps && m.leftOver() {
		m.mixed, regroup = m.all, true
	}
	if regroup {
		m.regroup()
	}
}

func (m *Manager) unassign(id int) {
	if m.assignments[id]--; m.assignments[id] == 0 {
		m.groups[id] = nodeset.Of(id)
		m.unused |= nodeset.Of(id)
	}
}

// drain frees bytes on the nodes in ascending order, and returns what was not allocated there.
func (m *Manager) drain(c *column, nodes nodeset.Set, bytes uint64) uint64 {
	for id := range nodes.All() {
		part := min(bytes, c.allocated[id])
		c.allocated[id] -= part
		bytes -= part
	}
	return bytes
}

// leftOver reports whether bytes are allocated on a node without containers. If groups overlap, a release may have freed another
// container's bytes in place of these.
func (m *Manager) leftOver() bool {
	return slices.ContainsFunc(m.columns, func(c *column) bool { return sum(&c.allocated, m.unused) > 0 })
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

// blocks yields every block that the node map counts, in the order of pods.
func (m *Manager) blocks() iter.Seq[*Block] {
	return func(yield func(*Block) bool) {
		for _, p := range m.pods {
			for b := range p.counted() {
				if !yield(b) {
					return
				}
			}
		}
	}
}

// regroup counts assignments again and joins the nodes of blocks that overlap into one group each. Groups whose blocks do
// not all span them are mixed; there, allocated bytes cannot be told apart by node when a block goes, so
// they are allocated again, the blocks with the fewest nodes first. Only adopted and restored containers make such groups.
func (m *Manager) regroup() {
	before := m.mixed
	m.nodeGroups = ungrouped(m.all)
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
	m.reassign(before | m.mixed)
}

// reassign allocates the blocks that touch these nodes again, and notes in them on which nodes.
func (m *Manager) reassign(nodes nodeset.Set) {
	if nodes.Empty() {
		return
	}
	var again []*Block
	for b := range m.blocks() {
		if b.Nodes&nodes != 0 {
			again = append(again, b)
		}
	}
	slices.SortStableFunc(again, func(a, b *Block) int {
		return cmp.Or(cmp.Compare(a.Nodes.Len(), b.Nodes.Len()), cmp.Compare(a.Nodes, b.Nodes))
	})
	for _, c := range m.columns {
		for id := range nodes.All() {
			c.allocated[id] = 0
		}
	}
	for _, b := range again {
		m.overfill(m.column(b.Type), b)
	}
}

// overfill allocates a block on its nodes in ascending order, and what finds no room on the first of them.
func (m *Manager) overfill(c *column, b *Block) {
	var parts [nodeset.Max]uint64
	rest := b.Size
	for id := range b.Nodes.All() {
		parts[id] = min(rest, c.free(id))
		rest -= parts[id]
	}
	parts[b.Nodes.First()] += rest
	b.PerNode = nil
	for id := range b.Nodes.All() {
		if parts[id] > 0 {
			b.PerNode = append(b.PerNode, NodeAmount{Node: id, Bytes: parts[id]})
			c.allocated[id] += parts[id]
		}
	}
}
