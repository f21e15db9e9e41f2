package memorymanager

import (
	"iter"

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

// blocksOf yields the blocks of a type that the pod's containers of one kind have on exactly these nodes.
func (p *pod) blocksOf(kind memoryqos.Kind, nodes nodeset.Set, name MemoryType) iter.Seq[*Block] {
	return func(yield func(*Block) bool) {
		for i := 0; p != nil && i < len(p.containers); i++ {
			c := &p.containers[i]
			for j := 0; c.kind == kind && j < len(c.blocks); j++ {
				if b := &c.blocks[j]; b.Nodes == nodes && b.Type == name && !yield(b) {
					return
				}
			}
		}
	}
}

// sizeOf the blocks of the pod's containers of one kind.
func (p *pod) sizeOf(kind memoryqos.Kind, nodes nodeset.Set, name MemoryType) (bytes uint64) {
	for b := range p.blocksOf(kind, nodes, name) {
		bytes += b.Size
	}
	return bytes
}

// reusable are the bytes of a type that the pod's init containers leave behind on exactly these nodes.
func (m *Manager) reusable(pod string, nodes nodeset.Set, name MemoryType) uint64 {
	return m.known(pod).sizeOf(memoryqos.Init, nodes, name)
}

// reuse shrinks the blocks of init containers, in their order, and returns the bytes that a later block takes over.
func (p *pod) reuse(b Block) (taken uint64) {
	for from := range p.blocksOf(memoryqos.Init, b.Nodes, b.Type) {
		part := min(from.Size, b.Size-taken)
		from.Size -= part
		taken += part
	}
	return taken
}

// appNodes are the nodes of the pod's first app container that has an allocation.
func (m *Manager) appNodes(uid string) nodeset.Set {
	if p := m.known(uid); p != nil {
		for _, c := range p.containers {
			if c.kind == memoryqos.App {
				return span(c.blocks)
			}
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
	p, blocks := m.known(c.Pod), c.Request.on(nodes)
	for i := range blocks {
		b := &blocks[i]
		idle := p.sizeOf(memoryqos.App, nodes, b.Type) + p.sizeOf(memoryqos.Init, nodes, b.Type)
		b.Size = min(minus(b.Size, idle), m.column(b.Type).freeOf(nodes))
	}
	m.occupy(blocks)
	p.containers = append(p.containers, container{name: c.Name, kind: memoryqos.Init, blocks: blocks})
	m.settle(nodes, blocks)
	return m.placed(blocks), nil
}
