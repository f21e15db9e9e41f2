package memorymanager

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Resize changes the request of a running container: less frees, more grows in place, else, when mayMove is set, onto a
// superset of its nodes that keeps the group rules and the policy. The error is a *Rejection and leaves the booking as
// it was.
func (m *Manager) Resize(c Container, mayMove bool) (Placement, error) {
	if cause := c.Request.invalid(); cause != "" {
		return Placement{}, m.reject(c, InvalidRequest, cause)
	}
	existing := m.container(c.Pod, c.Name)
	if existing == nil {
		return Placement{}, m.reject(c, InvalidRequest, "the container has no booking to resize")
	}
	nodes := span(existing.blocks)
	h, known := m.hintsFor(c.Pod, c.Request)
	if !known {
		return Placement{}, m.reject(c, ResizeInfeasible, "no NUMA node has such memory")
	}
	if !m.growsIn(existing.blocks, c.Request, nodes) {
		wider, cause := m.widen(h, existing.blocks, nodes, mayMove)
		if cause != "" {
			return Placement{}, m.reject(c, ResizeInfeasible, cause)
		}
		nodes = wider
	}
	blocks := make([]Block, len(c.Request))
	for i, amount := range c.Request {
		blocks[i] = Block{Nodes: nodes, Type: amount.Type, Size: amount.Bytes}
	}
	m.rewrite(existing, blocks)
	return Placement{
		Affinity: m.policy.Regenerated(m.all, nodes), Blocks: copied(blocks), Nodes: nodes, Bounded: h.bounded,
	}, nil
}

// growsIn reports whether the nodes have what the request asks for beyond the blocks.
func (m *Manager) growsIn(blocks []Block, request Request, nodes nodeset.Set) bool {
	for _, amount := range request {
		more := minus(amount.Bytes, size(blocks, nodes, amount.Type))
		if more > m.column(amount.Type).freeOf(nodes) {
			return false
		}
	}
	return true
}

// widen finds more nodes for a container that has its own to itself.
func (m *Manager) widen(h *hints, blocks []Block, nodes nodeset.Set, mayMove bool) (nodeset.Set, string) {
	switch {
	case !mayMove:
		return 0, fmt.Sprintf("nodes %s have no room for more", nodes)
	case m.policy == topologymanager.SingleNUMANode:
		return 0, fmt.Sprintf("node %s has no room for more, and the policy allows no second one", nodes)
	}
	for id := range nodes.All() {
		if m.assignments[id] != len(blocks) {
			return 0, fmt.Sprintf("nodes %s have no room for more, and other containers on them keep the group from growing", nodes)
		}
	}
	h.unused |= nodes
	want := h.want
	for id := range nodes.All() {
		want = h.without(want, id)
	}
	rest := h.unused &^ nodes
	if found, ok := h.smallest(rest, 1, rest.Len(), want); ok {
		wider := nodes | found
		if m.policy == topologymanager.Restricted && !h.minimal(wider.Len()) {
			return 0, fmt.Sprintf("it would need nodes %s, more than preferred", wider)
		}
		return wider, ""
	}
	return 0, fmt.Sprintf("nodes %s have no room for more, nor with unused nodes", nodes)
}

// rewrite replaces a container's blocks. On the same nodes only the differences move.
func (m *Manager) rewrite(c *container, blocks []Block) {
	old := c.blocks
	c.blocks = blocks
	m.generation++
	if span(old) != span(blocks) {
		c.blocks = nil
		m.unbook(container{blocks: old})
		c.blocks = blocks
		for _, b := range blocks {
			m.assign(b.Nodes)
			m.fill(m.column(b.Type), b.Nodes, b.Size)
		}
		return
	}
	nodes := span(blocks)
	for id := range nodes.All() {
		m.assignments[id] += len(blocks) - len(old)
	}
	for _, b := range blocks {
		m.fill(m.column(b.Type), nodes, minus(b.Size, size(old, nodes, b.Type)))
	}
	for _, b := range old {
		m.drain(m.column(b.Type), nodes, minus(b.Size, size(blocks, nodes, b.Type)))
	}
	if nodes&m.mixed != 0 {
		m.regroup()
	}
}

// Adopt books a running container that was found on these nodes (its cpuset.mems) as it is. What does not fit is booked
// all the same and reported in Overcommitted. Where it overlaps other containers' nodes, the groups join. The error is
// for a request or nodes that can not be booked.
func (m *Manager) Adopt(pod, container string, request Request, nodes nodeset.Set) (Placement, error) {
	c := Container{Pod: pod, Name: container, Request: request}
	if cause := request.invalid(); cause != "" {
		return Placement{}, m.reject(c, InvalidRequest, cause)
	}
	if nodes.Empty() || !nodes.SubsetOf(m.all) {
		return Placement{}, fmt.Errorf("adopt container %s of pod %s: nodes %q are not all of this machine's %s",
			container, pod, nodes, m.all)
	}
	for _, amount := range request {
		if m.column(amount.Type) == nil {
			return Placement{}, m.reject(c, InvalidRequest, "no NUMA node has "+string(amount.Type))
		}
	}
	if existing := m.container(pod, container); existing != nil {
		if span(existing.blocks) == nodes {
			return m.readmit(c, existing), nil
		}
		m.Release(pod, container)
	}
	blocks := make([]Block, len(request))
	for i, amount := range request {
		blocks[i] = Block{Nodes: nodes, Type: amount.Type, Size: amount.Bytes}
		column := m.column(amount.Type)
		column.booked[nodes.First()] += m.fill(column, nodes, amount.Bytes)
	}
	p := m.pod(pod)
	p.containers = append(p.containers, bookedAs(container, blocks))
	m.regroup()
	m.generation++
	return Placement{
		Affinity: m.policy.Regenerated(m.all, nodes), Blocks: copied(blocks), Nodes: nodes,
		Overcommitted: m.shortages(nodes, 0),
	}, nil
}

func bookedAs(name string, blocks []Block) container { return container{name: name, blocks: blocks} }

// shortages are what is booked on these nodes beyond their allocatable bytes, by more than the tolerance.
func (m *Manager) shortages(nodes nodeset.Set, tolerance uint64) (shortages []NodeShortage) {
	for id := range nodes.All() {
		for _, c := range m.columns {
			if over := minus(c.booked[id], c.allocatable[id]); over > tolerance {
				shortages = append(shortages, NodeShortage{Node: id, Amount: Amount{Type: c.name, Bytes: over}})
			}
		}
	}
	return shortages
}
