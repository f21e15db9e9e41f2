package memorymanager

import (
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// A container whose pod wants that (the annotation numa: spread) has an even part of its memory and huge pages on each of
// several NUMA nodes (kubernetes#119851). The nodes are a group as those of any container on several nodes, so that the rules of
// groups hold and a kubelet can read the blocks; but each block knows its bytes on each node, and others move around them.

// LeastEvenShare is the least even part: one of so many of all that a node has allocatable. The nodes of a container that is spread
// are closed to containers on one of them, so that its pod must ask for a part of what it keeps from others: one of some pages would
// close the machine.
const LeastEvenShare = 16

// Spreads reports whether a container is to be spread: its pod wants that, and asks for enough on two nodes. The policy
// single-numa-node has it on one node as any other.
func (m *Manager) Spreads(c Container) bool {
	if !c.Spread || m.rules.OneNode {
		return false
	}
	var nodes nodeset.Set
	for id := range m.all.All() {
		if m.allocatable(id) > 0 {
			nodes |= nodeset.Of(id)
		}
	}
	return nodes.Len() < 2 || m.enough(c, nodes, 2).Len() > 1
}

// enough are those of these nodes for which one of so many even parts is large enough.
func (m *Manager) enough(c Container, nodes nodeset.Set, parts int) (enough nodeset.Set) {
	part := m.evenBytes(c) / uint64(parts)
	for id := range nodes.All() {
		if m.options.EvenShare == 0 || part >= m.allocatable(id)/m.options.EvenShare {
			enough |= nodeset.Of(id)
		}
	}
	return enough
}

// evenBytes is what a container's pod has, or will have, spread over its nodes: its containers share them.
func (m *Manager) evenBytes(c Container) (bytes uint64) {
	for _, amount := range c.Request {
		bytes = plus(bytes, amount.Bytes)
	}
	if p := m.pods[c.Pod]; p != nil {
		for i := range p.containers {
			if other := &p.containers[i]; other.name != c.Name && isEven(other.blocks) {
				for _, b := range other.blocks {
					bytes = plus(bytes, b.Size)
				}
			}
		}
	}
	return max(bytes, c.PodBytes)
}

// allocatable is what a node has allocatable of all types, in bytes.
func (m *Manager) allocatable(id int) (bytes uint64) {
	for _, column := range m.columns {
		bytes = plus(bytes, column.allocatable[id])
	}
	return bytes
}

// evenly divides bytes over nodes into parts that differ by at most one unit, which is a page. What does not divide goes to the
// lowest nodes that have room for a unit more, a unit each; what is less than a unit is on one of them. It reports whether every
// node has room for its part.
func evenly(bytes, unit uint64, nodes nodeset.Set, room func(id int) uint64) (parts []NodeAmount, fits bool) {
	least, rest := divided(bytes, unit, uint64(nodes.Len()))
	fits = true
	for id := range nodes.All() {
		part := least
		if more := min(rest, unit); room(id) >= plus(least, more) {
			part, rest = part+more, rest-more
		}
		fits = fits && room(id) >= part
		if part > 0 {
			parts = append(parts, NodeAmount{Node: id, Bytes: part})
		}
	}
	return parts, fits && rest == 0
}

// evenRoom is what each of these nodes has for an even part of a type: all but the parts of others, and what is on fewer nodes.
// What others have on exactly these nodes can be on any of them. What the pod's init containers leave behind counts as free.
func (m *Manager) evenRoom(pod string, nodes nodeset.Set, column *column) func(id int) uint64 {
	var taken [nodeset.Max]uint64
	for b := range m.blocks() {
		if b.Type == column.name && (b.Even || b.Nodes != nodes) {
			for _, amount := range b.PerNode {
				taken[amount.Node] += amount.Bytes
			}
		}
	}
	left := m.pods[pod].evenParts(memoryqos.Init, nodes, column.name)
	return func(id int) uint64 { return minus(column.allocatable[id], minus(taken[id], left[id])) }
}

// evenParts are the even parts on these nodes of the pod's containers of one kind.
func (p *pod) evenParts(kind memoryqos.Kind, nodes nodeset.Set, name MemoryType) (parts [nodeset.Max]uint64) {
	for b := range p.blocksOf(kind, nodes, name, true) {
		for _, amount := range b.PerNode {
			parts[amount.Node] += amount.Bytes
		}
	}
	return parts
}

// evenBlocks are a container's blocks on these nodes. It reports whether there is room for them; it does not look at groups.
func (m *Manager) evenBlocks(c Container, nodes nodeset.Set) (blocks []Block, fits bool) {
	fits = true
	for _, amount := range c.Request {
		column := m.column(amount.Type)
		parts, room := evenly(amount.Bytes, column.unit, nodes, m.evenRoom(c.Pod, nodes, column))
		free, left := column.freeOf(nodes), m.pods[c.Pod].evenParts(memoryqos.Init, nodes, amount.Type)
		for _, part := range parts {
			free = plus(free, min(part.Bytes, left[part.Node]))
		}
		fits = fits && room && free >= amount.Bytes
		block := Block{Nodes: nodes, Type: amount.Type, Size: amount.Bytes}
		if nodes.Len() > 1 {
			block.Even, block.PerNode = true, parts
		}
		blocks = append(blocks, block)
	}
	return blocks, fits
}

// evenNodes are the most nodes over which a container can be spread: those over which its pod is spread already, else the
// largest group or the most unused nodes, the group where these are as many. They are empty where it cannot be on several nodes.
func (m *Manager) evenNodes(c Container) (nodes nodeset.Set) {
	fits := func(nodes nodeset.Set) bool {
		_, fits := m.evenBlocks(c, nodes)
		return fits && m.isGroup(nodes) && nodes.SubsetOf(m.spreadable(c)) && m.enough(c, nodes, nodes.Len()) == nodes
	}
	if p := m.pods[c.Pod]; p != nil {
		for i := range p.containers {
			if own := span(p.containers[i].blocks); isEven(p.containers[i].blocks) && fits(own) {
				return own
			}
		}
	}
	for group := range m.groupsOfMany() {
		if group.Len() > nodes.Len() && fits(group) {
			nodes = group
		}
	}
	if found := m.mostUnused(c, 0, max(nodes.Len(), 1)); !found.Empty() {
		return found
	}
	return nodes
}

// mostUnused are the most unused nodes, more than so many, over which a container can be spread, with its own among them; none where
// there are not.
func (m *Manager) mostUnused(c Container, own nodeset.Set, more int) nodeset.Set {
	unused := m.unused & m.spreadable(c)
	for count := unused.Len(); count > more; count-- {
		if found := m.evenUnused(c, unused, own, count); !found.Empty() {
			return found
		}
	}
	return 0
}

// evenOn reports whether an app container of the pod is spread over these nodes.
func (m *Manager) evenOn(pod string, nodes nodeset.Set) bool {
	return slices.ContainsFunc(m.pods[pod].containers, func(c container) bool {
		return c.kind == memoryqos.App && isEven(c.blocks) && span(c.blocks) == nodes
	})
}

// spreadable are the nodes that a container may be spread over: those of its exclusive CPUs, or all.
func (m *Manager) spreadable(c Container) nodeset.Set {
	if cpus := c.CPUs & m.all; !cpus.Empty() {
		return cpus
	}
	return m.all
}

// evenUnused takes this many of the unused nodes that have room for an even part, the lowest ones of those that have room for a
// page more. own are part of them in any case.
func (m *Manager) evenUnused(c Container, unused, own nodeset.Set, count int) nodeset.Set {
	var ids []int
	var lacks [nodeset.Max]int
	large := m.enough(c, unused, count)
	for id := range unused.All() {
		enough := large.Has(id)
		for _, amount := range c.Request {
			column := m.column(amount.Type)
			least, rest := divided(amount.Bytes, column.unit, uint64(count))
			enough = enough && column.free(id) >= least
			if column.free(id) < plus(least, min(rest, column.unit)) {
				lacks[id]++
			}
		}
		if own.Has(id) {
			lacks[id] = -1
		}
		if enough {
			ids = append(ids, id)
		}
	}
	if len(ids) < count {
		return 0
	}
	slices.SortStableFunc(ids, func(a, b int) int { return lacks[a] - lacks[b] })
	nodes := nodeset.Of(ids[:count]...)
	if _, fits := m.evenBlocks(c, nodes); !fits || !own.SubsetOf(nodes) {
		return 0
	}
	return nodes
}

// placeEvenly decides where a container goes that is to be spread. Where no two nodes have room for even parts, it goes on one, as
// any other.
func (m *Manager) placeEvenly(c Container) (topologymanager.Hint, nodeset.Set, *Rejection) {
	m.hints = hints{m: m}
	if cause := m.missing(c.Request); cause != "" {
		return topologymanager.Hint{}, 0, m.reject(c, UnexpectedAdmissionError, cause)
	}
	if nodes := m.evenNodes(c); !nodes.Empty() {
		return topologymanager.Hint{Nodes: nodes, Preferred: true}, nodes, nil
	}
	alone := c
	alone.Spread = false
	hint, nodes, rejected := m.place(alone)
	if rejected == nil && nodes.Len() == 1 {
		return hint, nodes, nil
	}
	reason := TopologyAffinityError
	if rejected != nil {
		reason = rejected.Reason
	}
	return hint, 0, m.rejectParts(c, reason, m.spreadable(c))
}

// rejectParts rejects a container that cannot be spread, with what each of these nodes has for an even part.
func (m *Manager) rejectParts(c Container, reason Reason, nodes nodeset.Set) *Rejection {
	rejected := m.reject(c, reason, "its memory cannot be spread evenly over "+nodes.Named())
	rejected.Nodes = m.rooms(nodes, c.Request, func(id int, amount Amount) Room { return m.roomForPart(c, amount, id, uint64(nodes.Len())) })
	var alone nodeset.Set
	for id := range nodes.All() {
		if group := m.groups[id]; group.Len() == 1 && !m.unused.Has(id) {
			alone |= group
		}
	}
	if nodes.Len() > 1 && !alone.Empty() {
		rejected.Cause += fmt.Sprintf(" (%s cannot be part of a group: containers are on one node alone)", alone.Named())
	}
	return rejected
}

// roomForPart is what a node has of one of so many even parts of an amount, beyond what the container has there.
func (m *Manager) roomForPart(c Container, amount Amount, id int, count uint64) Room {
	column, group := m.column(amount.Type), m.groups[id]
	least, rest := divided(amount.Bytes, column.unit, count)
	room := Room{
		Type: amount.Type, Allocatable: column.allocatable[id],
		Free:   min(m.evenRoom(c.Pod, group, column)(id), column.freeOf(group)),
		Needed: plus(least, min(rest, column.unit)),
	}
	if existing := m.container(c.Pod, c.Name); existing != nil {
		room.Needed, room.More = minus(room.Needed, size(existing.blocks, span(existing.blocks), amount.Type)/uint64(span(existing.blocks).Len())), true
	}
	return room
}

// divided is what each of so many even parts of bytes has at least, in whole units, and what is left then.
func divided(bytes, unit, count uint64) (least, rest uint64) {
	least = bytes / unit / count * unit
	return least, bytes - least*count
}

// enterEvenly adds a container's even blocks. They take over first what init containers of the pod have left on each node.
func (m *Manager) enterEvenly(c Container, nodes nodeset.Set) []Block {
	blocks, _ := m.evenBlocks(c, nodes)
	p := m.pod(c.Pod)
	for _, b := range blocks {
		p.reuseEvenly(b)
	}
	p.containers = append(p.containers, container{name: c.Name, kind: c.Kind, blocks: blocks})
	m.hasChanged(c.Pod)
	m.regroup()
	return copied(blocks)
}

func (p *pod) reuseEvenly(b Block) {
	var wanted [nodeset.Max]uint64
	for _, amount := range b.PerNode {
		wanted[amount.Node] = amount.Bytes
	}
	for from := range p.blocksOf(memoryqos.Init, b.Nodes, b.Type, true) {
		var rest []NodeAmount
		for _, amount := range from.PerNode {
			part := min(amount.Bytes, wanted[amount.Node])
			wanted[amount.Node] -= part
			from.Size -= part
			if amount.Bytes > part {
				rest = append(rest, NodeAmount{Node: amount.Node, Bytes: amount.Bytes - part})
			}
		}
		from.PerNode = rest
	}
}

// rerunEvenly is rerun for an init container that is to be spread as the app containers of its pod are: on each node it allocates
// what its part needs beyond theirs, as far as there is room.
func (m *Manager) rerunEvenly(c Container, nodes nodeset.Set) Placement {
	p := m.pods[c.Pod]
	blocks := make([]Block, 0, len(c.Request))
	for _, amount := range c.Request {
		column := m.column(amount.Type)
		parts, _ := evenly(amount.Bytes, column.unit, nodes, unbounded)
		apps, inits := p.evenParts(memoryqos.App, nodes, amount.Type), p.evenParts(memoryqos.Init, nodes, amount.Type)
		room, free := m.evenRoom("", nodes, column), column.freeOf(nodes)
		block := Block{Nodes: nodes, Type: amount.Type, Even: true}
		for _, part := range parts {
			if more := min(minus(part.Bytes, apps[part.Node]+inits[part.Node]), room(part.Node), free); more > 0 {
				block.PerNode = append(block.PerNode, NodeAmount{Node: part.Node, Bytes: more})
				block.Size, free = block.Size+more, free-more
			}
		}
		blocks = append(blocks, block)
	}
	p.containers = append(p.containers, container{name: c.Name, kind: memoryqos.Init, blocks: blocks})
	m.hasChanged(c.Pod)
	m.regroup()
	return Placement{Affinity: topologymanager.Hint{Nodes: nodes, Preferred: true}, Blocks: copied(blocks), Nodes: nodes}
}

// unbounded is the room of parts that are on their nodes in any case.
func unbounded(int) uint64 { return ^uint64(0) }

// regeneratedEvenly is the hint of an allocation that is to be spread. It stays on one node, and on several where it is even.
func (m *Manager) regeneratedEvenly(c Container, blocks []Block) (topologymanager.Hint, *Rejection) {
	nodes := span(blocks)
	switch {
	case !nodes.SubsetOf(m.spreadable(c)):
		return topologymanager.Hint{}, m.reject(c, TopologyAffinityError, "its memory is on "+nodes.Named()+", and "+m.misaligned(c))
	case nodes.Len() > 1 && !isEven(blocks):
		return topologymanager.Hint{}, m.reject(c, TopologyAffinityError, "its memory is on "+nodes.Named()+", and not spread evenly")
	}
	return topologymanager.Hint{Nodes: nodes, Preferred: true}, nil
}

// MakeEven has the allocation of a container that is to be spread even on the nodes that it is on: one that was found running,
// or was allocated by a release that could not spread it. It is false where nothing changes, for want of room or of need.
func (m *Manager) MakeEven(c Container) bool {
	existing := m.container(c.Pod, c.Name)
	if existing == nil || !m.Spreads(c) || m.whole(c.Pod) || span(existing.blocks).Len() < 2 || isEven(existing.blocks) {
		return false
	}
	has := Container{Request: sizes(existing.blocks)}
	blocks, fits := m.without(c.Pod, c.Name).evenBlocks(has, span(existing.blocks))
	if fits {
		m.rewrite(c.Pod, existing, blocks)
	}
	return fits
}

// resizeEvenly is Resize for a container that is to be spread: it stays even on its nodes, or else gets more nodes as far as it has
// its own to itself.
func (m *Manager) resizeEvenly(c Container, existing *container, whole bool) (Placement, error) {
	nodes := span(existing.blocks)
	spare, wanted := m.without(c.Pod, c.Name), Container{Request: c.Request, CPUs: c.CPUs, PodBytes: m.evenBytes(c)}
	blocks, fits := spare.evenBlocks(wanted, nodes)
	if !fits {
		if wider := spare.mostUnused(wanted, nodes, nodes.Len()); !wider.Empty() { // it has its own to itself
			nodes = wider
			blocks, fits = spare.evenBlocks(wanted, wider)
		}
	}
	placement := Placement{Affinity: topologymanager.Hint{Nodes: nodes, Preferred: true}, Nodes: nodes}
	switch {
	case fits:
	case slices.Equal(c.Request, sizes(existing.blocks)): // it is not even, and cannot be
		blocks = existing.blocks
	case whole:
		return Placement{}, m.rejectParts(c, ResizeInfeasible, nodes)
	default:
		blocks = spare.evenPart(c.Request, existing.blocks)
		placement.Nodes, placement.PendingResize = m.all, c.Request.beyond(blocks)
	}
	if !slices.EqualFunc(existing.blocks, blocks, sameBlock) {
		m.rewrite(c.Pod, existing, blocks)
	}
	placement.Blocks = copied(blocks)
	return placement, nil
}

func sameBlock(a, b Block) bool {
	return a.Nodes == b.Nodes && a.Type == b.Type && a.Size == b.Size && a.Even == b.Even && (!a.Even || slices.Equal(a.PerNode, b.PerNode))
}

// evenPart is as much of a request as the nodes have even room for; nothing of what the container has is taken away.
func (m *Manager) evenPart(request Request, has []Block) (blocks []Block) {
	nodes := span(has)
	for _, amount := range request {
		column := m.column(amount.Type)
		room, count := m.evenRoom("", nodes, column), uint64(nodes.Len())
		part := column.freeOf(nodes) / count
		for id := range nodes.All() {
			part = min(part, room(id))
		}
		part = min(amount.Bytes, part/column.unit*column.unit*count)
		at := slices.IndexFunc(has, func(b Block) bool { return b.Type == amount.Type })
		if at >= 0 && part < has[at].Size && has[at].Size <= amount.Bytes {
			blocks = append(blocks, has[at])
			continue
		}
		even, _ := m.evenBlocks(Container{Request: Request{{Type: amount.Type, Bytes: part}}}, nodes)
		blocks = append(blocks, even...)
	}
	return blocks
}

// isEven reports whether blocks are spread evenly.
func isEven(blocks []Block) bool {
	return slices.ContainsFunc(blocks, func(b Block) bool { return b.Even })
}

// whyUneven says what keeps a container from being spread over exactly these nodes; empty when nothing does.
func (m *Manager) whyUneven(nodes nodeset.Set, c Container) string {
	if !m.Spreads(c) || nodes.Len() == 1 || m.missing(c.Request) != "" {
		return m.why(nodes, c)
	}
	switch _, fits := m.evenBlocks(c, nodes); {
	case !m.lawful(nodes):
		return m.why(nodes, c)
	case !nodes.SubsetOf(m.spreadable(c)):
		return m.misaligned(c)
	case !fits:
		return "has no room for even parts"
	case m.enough(c, nodes, nodes.Len()) != nodes:
		return fmt.Sprintf("even parts would be less than 1/%d of a node", m.options.EvenShare)
	}
	return ""
}

// mend brings the parts of an even block of a stored state to its size and nodes, where they are not.
func (b *Block) mend(unit uint64) {
	var sum uint64
	for _, amount := range b.PerNode {
		sum = plus(sum, amount.Bytes)
	}
	outside := func(a NodeAmount) bool { return !b.Nodes.Has(a.Node) }
	if sum != b.Size || slices.ContainsFunc(b.PerNode, outside) {
		b.PerNode, _ = evenly(b.Size, unit, b.Nodes, unbounded)
	}
	if b.Nodes.Len() == 1 {
		b.Even, b.PerNode = false, nil
	}
}
