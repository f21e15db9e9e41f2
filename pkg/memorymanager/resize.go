package memorymanager

import (
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Resize changes the request of a running container: less frees, more grows in place, else onto a superset of its nodes
// that keeps the group rules and the policy. If there is no such room and whole is set, the error is an *AllocationError and the
// allocation does not change. If whole is not set, the container keeps its nodes, is allocated what they have free of each
// type, and lacks the rest until another Resize finds room. Meanwhile it may use all nodes, so that the kernel takes memory
// that is free elsewhere instead of killing a process on full nodes.
func (m *Manager) Resize(c Container, whole bool) (Placement, error) {
	if cause := c.Request.invalid(); cause != "" {
		return Placement{}, m.reject(c, InvalidRequest, cause)
	}
	existing := m.container(c.Pod, c.Name)
	if existing == nil {
		return Placement{}, m.reject(c, InvalidRequest, "the container has no allocation to resize")
	}
	if m.whole(c.Pod) {
		return m.part(c, existing)
	}
	nodes := span(existing.blocks)
	h, known := m.hintsFor(c.Pod, c.Request)
	if !known {
		return Placement{}, m.reject(c, ResizeInfeasible, m.missing(c.Request))
	}
	lacks := func(more Amount) bool { return m.column(more.Type).freeOf(nodes) < more.Bytes }
	if slices.ContainsFunc(c.Request.beyond(existing.blocks), lacks) {
		wider, cause := m.widen(c, h, existing.blocks, nodes)
		switch {
		case cause == "":
			nodes = wider
		case whole:
			return Placement{}, m.rejectNodes(c, &refusal{reason: ResizeInfeasible, cause: cause})
		default:
			return m.fitPartly(c, existing), nil
		}
	}
	blocks := c.Request.on(nodes)
	m.rewrite(existing, blocks)
	placement := m.placed(blocks)
	placement.Bounded = h.bounded
	return placement, nil
}

// fitPartly gives a container what its nodes have free of a request.
func (m *Manager) fitPartly(c Container, existing *container) Placement {
	nodes := span(existing.blocks)
	blocks := c.Request.on(nodes)
	for i := range blocks {
		b := &blocks[i]
		b.Size = min(b.Size, plus(size(existing.blocks, nodes, b.Type), m.column(b.Type).freeOf(nodes)))
	}
	if !slices.EqualFunc(existing.blocks, blocks, sameBlock) {
		m.rewrite(existing, blocks)
	}
	placement := m.placed(blocks)
	placement.Nodes, placement.PendingResize = m.all, c.Request.beyond(blocks)
	return placement
}

// beyond is what a request has beyond blocks; nil when they hold all of it.
func (r Request) beyond(blocks []Block) (short Request) {
	for _, amount := range r {
		if more := minus(amount.Bytes, size(blocks, span(blocks), amount.Type)); more > 0 {
			short = append(short, Amount{Type: amount.Type, Bytes: more})
		}
	}
	return short
}

// Reinstate allocates blocks again that were just released, for a container that found no room elsewhere, and brings them
// to its request as far as there is room: see Resize.
func (m *Manager) Reinstate(c Container, blocks []Block) (Placement, error) {
	if _, err := m.Adopt(c.Pod, c.Name, sizes(blocks), span(blocks)); err != nil {
		return Placement{}, err
	}
	m.container(c.Pod, c.Name).kind = c.Kind
	return m.Resize(c, false)
}

// widen finds more nodes for a container that has its own to itself.
func (m *Manager) widen(c Container, h *hints, blocks []Block, nodes nodeset.Set) (nodeset.Set, string) {
	full := nodes.Named() + " has no room for more"
	if nodes.Len() > 1 {
		full = nodes.Named() + " have no room for more"
	}
	if m.rules.OneNode {
		return 0, full + ", and the policy allows no second one"
	}
	for id := range nodes.All() {
		if m.assignments[id] != len(blocks) {
			return 0, full + ", and other containers there keep it from getting more nodes"
		}
	}
	h.unused |= nodes
	wider, ok := h.extend(nodes)
	switch insists := m.rules.Insists || c.Required && m.rules.Aligns; {
	case !ok:
		return 0, full + ", nor with unused nodes"
	case insists && !h.minimal(wider.Len()):
		return 0, fmt.Sprintf("it would need nodes %s, more than preferred", wider)
	}
	return wider, ""
}

// rewrite replaces a container's blocks. On the same nodes only the differences move.
func (m *Manager) rewrite(c *container, blocks []Block) {
	old := c.blocks
	c.blocks = blocks
	if span(old) != span(blocks) {
		c.blocks = nil
		m.freeBlocks(old)
		c.blocks = blocks
		m.occupy(blocks)
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

// Adopt allocates a running container that was found on these nodes (its cpuset.mems) as it is. What does not fit is allocated
// all the same and reported in Overcommitted. Where it overlaps other containers' nodes, the groups join. The error is
// for a request or nodes that can not be allocated.
func (m *Manager) Adopt(pod, name string, request Request, nodes nodeset.Set) (Placement, error) {
	c := Container{Pod: pod, Name: name, Request: request}
	if err := m.adoptable(c, nodes); err != nil {
		return Placement{}, err
	}
	existing := m.container(pod, name)
	switch {
	case m.whole(pod):
		return m.part(c, existing)
	case existing != nil && span(existing.blocks) == nodes:
		return m.readmit(c, existing)
	case existing != nil:
		m.Release(pod, name)
	}
	p, blocks := m.pod(pod), request.on(nodes)
	p.containers = append(p.containers, container{name: name, blocks: blocks})
	m.overallocate(blocks)
	return m.adopted(blocks), nil
}

// adopted is the placement of blocks that were allocated as they were found.
func (m *Manager) adopted(blocks []Block) Placement {
	p := m.placed(blocks)
	p.Overcommitted = m.shortages(p.Nodes, 0)
	return p
}

// Overcommitted reports whether more is allocated on a node than it has. Only a whole State shows where that is.
func (m *Manager) Overcommitted() bool { return len(m.shortages(m.all, 0)) > 0 }

// adoptable refuses what can not be allocated on these nodes.
func (m *Manager) adoptable(c Container, nodes nodeset.Set) error {
	if cause := c.Request.invalid(); cause != "" {
		return m.reject(c, InvalidRequest, cause)
	}
	if nodes.Empty() || !nodes.SubsetOf(m.all) {
		return fmt.Errorf("adopt %s: nodes %q are not all of this machine's %s", c.named(), nodes, m.all)
	}
	if cause := m.missing(c.Request); cause != "" {
		return m.reject(c, InvalidRequest, cause)
	}
	return nil
}

// named names a container in an error; without a name it is its whole pod.
func (c Container) named() string {
	if c.Name == "" {
		return "pod " + c.Pod
	}
	return "container " + c.Name + " of pod " + c.Pod
}

// overallocate allocates blocks that a pod or container has by now, on their first node where there is no room.
func (m *Manager) overallocate(blocks []Block) {
	for _, b := range blocks {
		column := m.column(b.Type)
		column.allocated[b.Nodes.First()] += m.fill(column, b.Nodes, b.Size)
	}
	m.regroup()
}

// Spread reports whether a container that was found on these nodes without an allocation is spread over the machine, as
// one that is short is: they are all nodes, and an allocation there would join groups. With nodes that are left out none can be made.
func (m *Manager) Spread(nodes nodeset.Set) bool {
	return m.all.SubsetOf(nodes) && nodes != m.unused && m.groups[nodes.First()] != nodes
}

// shortages are what is allocated on these nodes beyond their allocatable bytes, by more than the tolerance.
func (m *Manager) shortages(nodes nodeset.Set, tolerance uint64) (shortages []NodeShortage) {
	for id := range nodes.All() {
		for _, c := range m.columns {
			if over := minus(c.allocated[id], c.allocatable[id]); over > tolerance {
				shortages = append(shortages, NodeShortage{Node: id, Amount: Amount{Type: c.name, Bytes: over}})
			}
		}
	}
	return shortages
}

func sameBlock(a, b Block) bool { return a.Nodes == b.Nodes && a.Type == b.Type && a.Size == b.Size }
