package memorymanager

import (
	"cmp"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// table is what the state shows of one node: never more reserved than is allocatable, as the kubelet counts it.
func (c *column) table(id int) Table {
	return Table{
		Total: c.total[id], SystemReserved: c.systemReserved[id], Allocatable: c.allocatable[id],
		Reserved: min(c.allocated[id], c.allocatable[id]), Free: c.free(id),
	}
}

// Nodes returns the node map, by id.
func (m *Manager) Nodes() []NodeState {
	nodes := make([]NodeState, 0, m.all.Len())
	tables := make([]TypeTable, 0, m.all.Len()*len(m.columns))
	for id := range m.all.All() {
		first := len(tables)
		for _, c := range m.columns {
			if c.listed.Has(id) {
				tables = append(tables, TypeTable{Type: c.name, Table: c.table(id)})
			}
		}
		nodes = append(nodes, NodeState{
			ID: id, Assignments: m.assignments[id], Cells: m.groups[id],
			Memory: tables[first:len(tables):len(tables)],
		})
	}
	return nodes
}

// State returns a deep copy of nodes and allocations.
func (m *Manager) State() State {
	s := State{Nodes: m.Nodes()}
	for _, p := range m.pods {
		if p.blocks != nil {
			s.Pods = append(s.Pods, PodEntry{Pod: p.uid, Blocks: slices.Clone(p.blocks)})
		}
		s.Entries = append(s.Entries, p.entries(slices.Clone[[]Block])...)
	}
	m.attribute(s.Entries, s.Pods)
	return s
}

// entries are a pod's containers, sorted by name, with copies of their blocks.
func (p *pod) entries(copied func([]Block) []Block) []Entry {
	entries := make([]Entry, len(p.containers))
	for i, c := range p.containers {
		entries[i] = Entry{Pod: p.uid, Container: c.name, Blocks: copied(c.blocks)}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Container, b.Container) })
	return entries
}

// attribute says for every block on which nodes its bytes are allocated, so that they add up to what the nodes have allocated.
// The kubelet drains a group from its lowest node whichever container leaves, so that is not a property of one block;
// only blocks of mixed groups know it. A part of a pod's allocation has bytes on no node of its own, unless it is on one alone.
func (m *Manager) attribute(entries []Entry, pods []PodEntry) {
	var blocks []*Block
	add := func(list []Block) {
		for i := range list {
			b := &list[i]
			if b.Nodes&m.mixed != 0 {
				b.PerNode = slices.Clone(b.PerNode)
				continue
			}
			blocks = append(blocks, b)
		}
	}
	for i := range pods {
		add(pods[i].Blocks)
	}
	for i := range entries {
		if m.known(entries[i].Pod).blocks == nil {
			add(entries[i].Blocks)
		}
	}
	if m.overlaps { // what is on one node of a group has nowhere else to be
		slices.SortStableFunc(blocks, func(a, b *Block) int { return cmp.Compare(a.Nodes.Len(), b.Nodes.Len()) })
	}
	var left [][nodeset.Max]uint64
	for _, c := range m.columns {
		left = append(left, c.allocated)
	}
	for _, b := range blocks {
		t := slices.IndexFunc(m.columns, func(c *column) bool { return c.name == b.Type })
		rest := b.Size
		b.PerNode = nil
		for id := range b.Nodes.All() {
			if part := min(rest, left[t][id]); part > 0 {
				b.PerNode = append(b.PerNode, NodeAmount{Node: id, Bytes: part})
				left[t][id] -= part
				rest -= part
			}
		}
	}
}
