package memorymanager

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// The init containers of a pod leave their memory to its later containers: those run when the init containers have
// ended. A later container takes the blocks of init containers on exactly its nodes over, as far as it needs them, so
// that the blocks of a pod always add up to what is allocated for it. That needs no table beside the blocks, as the
// kubelet has one, and holds when the containers of several pods come by turns.

// size of the blocks of a type on exactly these nodes.
func size(blocks []Block, nodes nodeset.Set, name MemoryType) (bytes uint64) {
	for i := range blocks {
		if b := &blocks[i]; b.Nodes == nodes && b.Type == name {
			bytes += b.Size
		}
	}
	return bytes
}

// sizeOf the blocks of the pod's containers of one kind, without even ones: only an even container takes those over.
func (p *pod) sizeOf(kind memoryqos.Kind, nodes nodeset.Set, name MemoryType) (bytes uint64) {
	if p == nil {
		return 0
	}
	for i := range p.containers {
		if c := &p.containers[i]; c.kind == kind && !isEven(c.blocks) {
			bytes += size(c.blocks, nodes, name)
		}
	}
	return bytes
}

// reusable are the bytes of a type that the pod's init containers leave behind on exactly these nodes.
func (m *Manager) reusable(pod string, nodes nodeset.Set, name MemoryType) uint64 {
	return m.pods[pod].sizeOf(memoryqos.Init, nodes, name)
}

// takeOver shrinks the blocks of init containers, in their order, and returns the bytes that a later block takes over.
func (p *pod) takeOver(b Block) (taken uint64) {
	for i := range p.containers {
		if p.containers[i].kind != memoryqos.Init {
			continue
		}
		blocks := p.containers[i].blocks
		for j := range blocks {
			if from := &blocks[j]; from.Type == b.Type && from.Nodes == b.Nodes && !from.Even {
				part := min(from.Size, b.Size-taken)
				from.Size -= part
				taken += part
			}
		}
	}
	return taken
}

// appNodes are the nodes of the pod's first app container that has an allocation.
func (m *Manager) appNodes(uid string) nodeset.Set {
	p := m.pods[uid]
	if p == nil {
		return 0
	}
	for i := range p.containers {
		if c := &p.containers[i]; c.kind == memoryqos.App {
			return span(c.blocks)
		}
	}
	return 0
}

// rerun allocates an init container of a pod whose app containers have their memory: it runs again after the sandbox was
// restarted, or is only looked at again, while they do not run. It takes their place and allocates what it needs beyond
// that, as far as there is room; the scheduler has counted it.
func (m *Manager) rerun(c Container, nodes nodeset.Set) (Placement, error) {
	if cause := m.missing(c.Request); cause != "" {
		return Placement{}, m.reject(c, UnexpectedAdmissionError, cause)
	}
	if m.Spreads(c) && m.evenOn(c.Pod, nodes) {
		return m.rerunEvenly(c, nodes), nil
	}
	p := m.pods[c.Pod]
	blocks := make([]Block, 0, len(c.Request))
	for _, amount := range c.Request {
		column := m.column(amount.Type)
		idle := p.sizeOf(memoryqos.App, nodes, amount.Type) + p.sizeOf(memoryqos.Init, nodes, amount.Type)
		more := min(minus(amount.Bytes, idle), column.freeOf(nodes))
		blocks = append(blocks, Block{Nodes: nodes, Type: amount.Type, Size: more})
	}
	m.occupy(blocks)
	p.containers = append(p.containers, container{name: c.Name, kind: memoryqos.Init, blocks: blocks})
	m.hasChanged(c.Pod)
	return Placement{
		Affinity: m.options.Policy.Regenerated(m.all, nodes), Blocks: m.settle(nodes, blocks), Nodes: nodes,
	}, nil
}
