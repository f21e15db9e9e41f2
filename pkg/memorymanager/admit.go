package memorymanager

import (
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

const noRoom = "no set of NUMA nodes has room"

// Allocate allocates a container. A container that has blocks keeps them. The error is an *AllocationError and leaves the
// state as it was.
func (m *Manager) Allocate(c Container) (Placement, error) {
	existing := m.container(c.Pod, c.Name)
	if m.whole(c.Pod) {
		return m.part(c, existing)
	}
	if cause := c.Request.invalid(); cause != "" {
		return Placement{}, m.reject(c, InvalidRequest, cause)
	}
	if existing != nil {
		return m.readmit(c, existing)
	}
	if c.Kind == memoryqos.Init {
		if nodes := m.appNodes(c.Pod); !nodes.Empty() {
			return m.rerun(c, nodes)
		}
	}
	placement, rejected := m.chooseNodes(c)
	if rejected != nil {
		return Placement{}, rejected
	}
	placement.Blocks = m.enter(c, placement.Nodes)
	return placement, nil
}

// chooseNodes chooses the nodes of a container that is about to be allocated, or of a pod that is allocated as a whole.
func (m *Manager) chooseNodes(c Container) (Placement, *AllocationError) {
	hint, nodes, refused := m.nodesFor(c)
	if refused != nil {
		return Placement{}, m.rejectNodes(c, refused)
	}
	if rejected := m.verifyPages(c, nodes); rejected != nil {
		return Placement{}, rejected
	}
	bounded := m.hints.bounded
	if bounded {
		m.bounded++
	}
	return Placement{Affinity: hint, Nodes: nodes, Bounded: bounded}, nil
}

// nodesFor returns the Topology Manager's hint for a container, and the nodes to allocate.
func (m *Manager) nodesFor(c Container) (topologymanager.Hint, nodeset.Set, *refusal) {
	hint, h, refused := m.align(c)
	if refused != nil {
		return hint, 0, refused
	}
	nodes, cause := m.nodesOfHint(c.Pod, h, hint)
	reason := TopologyAffinityError
	switch {
	case cause == "":
	case m.options.FallBack && !h.Empty():
		nodes, cause = h.narrow(), ""
	case h.Empty():
		reason, cause = UnexpectedAdmissionError, noRoom
	}
	switch required := c.Required && m.rules.Aligns; {
	case cause == "" && required && !hint.Preferred:
		reason, cause = NotPreferred, fmt.Sprintf("the pod's annotation numa is required: it could only have %s, which are more than it needs", nodes.Named())
		if where := m.misaligned(c); nodes.Len() == 1 && where != "" {
			cause = fmt.Sprintf("the pod's annotation numa is required: it could only have %s, and %s", nodes.Named(), where)
		}
		return hint, 0, &refusal{reason: reason, cause: cause, towards: m.leads(c)}
	case cause == "":
		return hint, nodes, nil
	case len(c.Devices) > 0:
		cause += " (" + m.misaligned(c) + ")"
	}
	return hint, 0, &refusal{reason: reason, cause: cause, towards: hint.Nodes, affinity: &hint}
}

// align is the affinity of a container, or of a pod as if it were one, with the hints of its memory.
func (m *Manager) align(c Container) (topologymanager.Hint, *hints, *refusal) {
	h, known := m.hintsFor(c.Pod, c.Request)
	if !known {
		return topologymanager.Hint{}, h, &refusal{reason: UnexpectedAdmissionError, cause: m.missing(c.Request)}
	}
	hint, admitted := m.affinity(c, h)
	if !admitted {
		return hint, h, &refusal{reason: TopologyAffinityError, cause: m.unpreferred(c, h), towards: m.leads(c)}
	}
	return hint, h, nil
}

// leads are the nodes of the map that the container's CPUs and devices lead to.
func (m *Manager) leads(c Container) nodeset.Set {
	in := m.providers(c)
	nodes := in.CPUs
	for _, device := range in.Devices {
		nodes |= device.Nodes
	}
	return nodes
}

// affinity is the pod's hint in scope pod, the merged hint of the container otherwise, or where its CPUs lead.
func (m *Manager) affinity(c Container, h *hints) (topologymanager.Hint, bool) {
	if p := m.known(c.Pod); p != nil && p.affinity != nil {
		return *p.affinity, true
	}
	hint, admitted := m.merge(c, h)
	if !admitted {
		if nodes := m.follow(c, h); !nodes.Empty() {
			return topologymanager.Hint{Nodes: nodes}, true
		}
	}
	return hint, admitted
}

// merge is the Topology Manager's answer to the hints of a container's memory, its CPUs and its devices. memory is nil where
// the memory provider has no preference.
func (m *Manager) merge(c Container, memory topologymanager.Hints) (topologymanager.Hint, bool) {
	in := m.aligned(c, m.providers(c))
	in.Memory = memory
	hint, admitted := m.options.Policy.Merge(in)
	away := len(in.Devices) > 0 && !hint.Preferred && m.rules.Aligns
	switch {
	case away && c.Required:
		return hint, false
	case away && admitted && m.options.AlignTo != topologymanager.AlignToKubelet && hint.Nodes == m.all && !in.Everywhere():
		in.Devices = nil // nothing is free near them: all nodes are no better than any
		return m.options.Policy.Merge(in)
	}
	return hint, admitted
}

// aligned leaves out what the container's memory is not aligned to. One whose nodes are required is aligned to all.
func (m *Manager) aligned(c Container, in topologymanager.Providers) topologymanager.Providers {
	if c.Required {
		return in
	}
	return in.Aligned(m.options.AlignTo)
}

// providers are the container's CPUs and devices, with the nodes of the map that they are on or nearest to.
func (m *Manager) providers(c Container) topologymanager.Providers {
	in := topologymanager.Providers{All: m.all}
	in.CPUs, in.AnyCPUs = m.near(c.CPUs, false)
	for _, device := range topologymanager.Join(c.Devices) {
		if device = m.onMap(device); !device.Nodes.Empty() {
			in.Devices = append(in.Devices, device)
		}
	}
	return in
}

// nodesOfHint turns a hint into the nodes to allocate, or says why it can not.
func (m *Manager) nodesOfHint(pod string, h *hints, hint topologymanager.Hint) (nodeset.Set, string) {
	nodes := hint.Nodes
	if nodes.Empty() {
		if nodes = h.narrow(); nodes.Empty() {
			return 0, noRoom
		}
		if hint.Preferred && !h.minimal(nodes.Len()) {
			return 0, "more NUMA nodes would be needed than preferred"
		}
	}
	group := m.groups[nodes.First()]
	partOfGroup := nodes.Len() == 1 && group != nodes && !m.overlaps
	if partOfGroup && m.podOn(pod, group) && h.fits(group) {
		return group, "" // the pod itself made the group
	}
	if partOfGroup || !h.free(nodes) {
		extended, ok := h.extend(nodes)
		if !ok {
			return 0, "no set of NUMA nodes with room contains the affinity " + nodes.String()
		}
		if hint.Preferred && !h.minimal(extended.Len()) {
			return 0, "more NUMA nodes would be needed than the preferred affinity " + nodes.String()
		}
		nodes = extended
	}
	if nodes.Len() > 1 && !h.lawful(nodes) {
		return 0, "the affinity " + nodes.String() + " cuts through a group of NUMA nodes"
	}
	return nodes, ""
}

// free reports whether the nodes have the request free, re-usable memory not counted.
func (h *hints) free(nodes nodeset.Set) bool {
	for t, c := range h.columns {
		if c.freeOf(nodes) < h.want[t] {
			return false
		}
	}
	return true
}

// podOn reports whether a container of the pod lives on exactly this group.
func (m *Manager) podOn(uid string, group nodeset.Set) bool {
	p := m.known(uid)
	return p != nil && slices.ContainsFunc(p.containers, func(c container) bool { return span(c.blocks) == group })
}

// enter adds a container's blocks. Its request is covered first by what init containers of the pod leave behind.
func (m *Manager) enter(c Container, nodes nodeset.Set) []Block {
	p, blocks := m.pod(c.Pod), c.Request.on(nodes)
	for _, b := range blocks {
		m.assign(nodes)
		m.fill(m.column(b.Type), nodes, b.Size-p.reuse(b))
	}
	p.containers = append(p.containers, container{name: c.Name, kind: c.Kind, blocks: blocks})
	return m.settle(nodes, blocks)
}

// settle recomputes the allocation of mixed groups, and returns a copy of the blocks that were just allocated.
func (m *Manager) settle(nodes nodeset.Set, blocks []Block) []Block {
	if nodes&m.mixed != 0 {
		m.regroup()
	}
	return copied(blocks)
}

// copied leaves PerNode out, which holds only until the next change.
func copied(blocks []Block) []Block {
	c := append([]Block(nil), blocks...)
	for i := range c {
		c[i].PerNode = nil
	}
	return c
}

// assign counts one block on each of the nodes and makes them a group.
func (m *Manager) assign(nodes nodeset.Set) {
	for id := range nodes.All() {
		m.assignments[id]++
		m.groups[id] = nodes
	}
	m.unused &^= nodes
}

// occupy enters blocks in the node map.
func (m *Manager) occupy(blocks []Block) {
	for _, b := range blocks {
		m.assign(b.Nodes)
		m.fill(m.column(b.Type), b.Nodes, b.Size)
	}
}

// fill allocates bytes on the nodes in ascending order as far as they have room, and returns what found none.
func (m *Manager) fill(c *column, nodes nodeset.Set, bytes uint64) uint64 {
	for id := range nodes.All() {
		part := min(bytes, c.free(id))
		c.allocated[id] += part
		bytes -= part
	}
	return bytes
}

// readmit is the answer to a container that has its allocation.
func (m *Manager) readmit(c Container, existing *container) (Placement, error) {
	placement, err := m.kept(c, existing.blocks)
	if err == nil {
		existing.kind = c.Kind
	}
	return placement, err
}

// kept is the answer to a container or pod that has its allocation, which it keeps where its CPUs and devices may be with it.
func (m *Manager) kept(c Container, blocks []Block) (Placement, error) {
	hint, rejected := m.regenerated(c, blocks)
	if rejected != nil {
		return Placement{}, rejected
	}
	return Placement{Affinity: hint, Blocks: copied(blocks), Nodes: span(blocks), Existing: true}, nil
}

// part is the answer to a container whose memory is a part of its pod's. AllocatePod has given it, and nothing but the end
// of the pod changes it.
func (m *Manager) part(c Container, existing *container) (Placement, error) {
	if existing == nil {
		return Placement{}, m.reject(c, InvalidRequest, "the pod's own allocation has no part for the container")
	}
	p := m.placed(existing.blocks)
	p.Existing = true
	return p, nil
}

// placed is the placement of blocks that are where they are.
func (m *Manager) placed(blocks []Block) Placement {
	nodes := span(blocks)
	return Placement{Affinity: m.options.Policy.Regenerated(m.all, nodes), Blocks: copied(blocks), Nodes: nodes}
}

// regenerated is the hint of an allocation: its nodes, if the allocation is what is asked for, together with the container's
// CPUs and devices. An allocation by itself is never rejected.
func (m *Manager) regenerated(c Container, blocks []Block) (topologymanager.Hint, *AllocationError) {
	if p := m.known(c.Pod); p != nil && p.affinity != nil {
		return *p.affinity, nil
	}
	nodes := span(blocks)
	same := slices.EqualFunc(c.Request, blocks, func(a Amount, b Block) bool { return a == Amount{Type: b.Type, Bytes: b.Size} })
	var memory topologymanager.Hints
	if same {
		memory = topologymanager.Kept(nodes)
	}
	in := m.providers(c)
	hint, admitted := m.merge(c, memory)
	switch {
	case admitted, in.CPUs.Empty() && len(in.Devices) == 0:
		return hint, nil
	case m.options.FollowCPUs && !m.rules.OneNode && !c.Required && nodes.SubsetOf(in.CPUs):
		return topologymanager.Hint{Nodes: nodes}, nil // it has followed them
	}
	return hint, m.reject(c, TopologyAffinityError, "its memory is on "+nodes.Named()+", and "+m.misaligned(c))
}

// on returns the blocks of a request on these nodes.
func (r Request) on(nodes nodeset.Set) []Block {
	blocks := make([]Block, len(r))
	for i, amount := range r {
		blocks[i] = Block{Nodes: nodes, Type: amount.Type, Size: amount.Bytes}
	}
	return blocks
}

// sizes is the request that blocks are of.
func sizes(blocks []Block) Request {
	request := make(Request, len(blocks))
	for i, b := range blocks {
		request[i] = Amount{Type: b.Type, Bytes: b.Size}
	}
	return request
}

// invalid says what is wrong with a request; empty when nothing is.
func (r Request) invalid() string {
	if len(r) == 0 {
		return "the request names no memory"
	}
	if len(r) > maxTypes {
		return "the request names too many memory types"
	}
	for i := 1; i < len(r); i++ {
		if r[i-1].Type >= r[i].Type {
			return "the request is not sorted by memory type, or names one twice"
		}
	}
	return ""
}
