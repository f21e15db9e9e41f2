package memorymanager

import (
	"cmp"
	"slices"
	"strings"

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
	s := State{Nodes: m.Nodes(), Entries: m.entries(func(*container) bool { return true }), Pods: m.podEntries()}
	m.attribute(s.Entries, s.Pods)
	return s
}

// podEntries returns the pods' own allocations, sorted by pod.
func (m *Manager) podEntries() (entries []PodEntry) {
	for _, p := range m.list {
		if p.blocks != nil {
			entries = append(entries, PodEntry{Pod: p.uid, Blocks: slices.Clone(p.blocks)})
		}
	}
	return entries
}

// Grouped returns the allocations of the containers and pods that span several NUMA nodes, sorted by pod and container, with
// PerNode as State has it. An allocation or a release in a group may change the PerNode of each container in it.
func (m *Manager) Grouped() (entries []Entry, pods []PodEntry) {
	for range m.groupsOfMany() {
		entries = m.entries(func(c *container) bool { return m.overlaps || span(c.blocks).Len() > 1 })
		pods = slices.DeleteFunc(m.podEntries(), func(e PodEntry) bool { return span(e.Blocks).Len() == 1 })
		m.attribute(entries, pods)
		break
	}
	return entries, pods
}

// entries returns the allocations of some containers, sorted by pod and container.
func (m *Manager) entries(wanted func(*container) bool) (entries []Entry) {
	for _, p := range m.list {
		first := len(entries)
		for i := range p.containers {
			if c := &p.containers[i]; wanted(c) {
				entries = append(entries, Entry{Pod: p.uid, Container: c.name, Blocks: slices.Clone(c.blocks)})
			}
		}
		slices.SortFunc(entries[first:], byContainer)
	}
	return entries
}

func byContainer(a, b Entry) int { return strings.Compare(a.Container, b.Container) }

// attribute says for every block on which nodes its bytes are allocated, so that they add up to what the nodes have allocated.
// The kubelet drains a group from its lowest node whichever container leaves, so that is not a property of one block;
// only blocks of mixed groups know it. Entries with a block of a group must have all blocks of that group. A part of a pod's
// allocation has bytes on no node of its own, unless it is on one alone.
func (m *Manager) attribute(entries []Entry, pods []PodEntry) {
	var blocks []*Block
	amounts := 0
	add := func(list []Block) {
		for i := range list {
			b := &list[i]
			if b.Nodes&m.mixed != 0 {
				b.PerNode = slices.Clone(b.PerNode)
				continue
			}
			blocks = append(blocks, b)
			amounts += b.Nodes.Len()
		}
	}
	for i := range pods {
		add(pods[i].Blocks)
	}
	for i := range entries {
		if m.pods[entries[i].Pod].blocks == nil {
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
	backing := make([]NodeAmount, 0, amounts)
	for _, b := range blocks {
		t := slices.IndexFunc(m.columns, func(c *column) bool { return c.name == b.Type })
		rest, first := b.Size, len(backing)
		for id := range b.Nodes.All() {
			if part := min(rest, left[t][id]); part > 0 {
				backing = append(backing, NodeAmount{Node: id, Bytes: part})
				left[t][id] -= part
				rest -= part
			}
		}
		b.PerNode = backing[first:len(backing):len(backing)]
	}
}
