package memorymanager

import "github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"

// reuse is what the init containers of one pod leave to its later containers. Only the pod that was looked at last has
// any: the containers of a pod come one after the other.
type reuse struct {
	pod     string
	entries []reuseEntry
}

type reuseEntry struct {
	nodes nodeset.Set
	name  MemoryType
	bytes uint64
}

func (r *reuse) entry(nodes nodeset.Set, name MemoryType) *reuseEntry {
	for i := range r.entries {
		if e := &r.entries[i]; e.nodes == nodes && e.name == name {
			return e
		}
	}
	return nil
}

// reusable are the bytes of a type that the pod's init containers leave behind on exactly these nodes. It is never more
// than they still have booked, so that a pod that comes again under the same UID books all it needs.
func (m *Manager) reusable(pod string, nodes nodeset.Set, name MemoryType) uint64 {
	if m.reuse.pod != pod || len(m.reuse.entries) == 0 {
		return 0
	}
	e := m.reuse.entry(nodes, name)
	if e == nil {
		return 0
	}
	var booked uint64
	if p := m.pods[pod]; p != nil {
		for i := range p.containers {
			if c := &p.containers[i]; c.kind == Init {
				booked += size(c.blocks, nodes, name)
			}
		}
	}
	return min(e.bytes, booked)
}

// size of the blocks of a type on exactly these nodes.
func size(blocks []Block, nodes nodeset.Set, name MemoryType) (bytes uint64) {
	for i := range blocks {
		if b := &blocks[i]; b.Nodes == nodes && b.Type == name {
			bytes += b.Size
		}
	}
	return bytes
}

// noteReuse updates what is left to later containers: an init container leaves its blocks behind, any other uses it up.
func (m *Manager) noteReuse(c Container, blocks []Block) {
	r := &m.reuse
	if r.pod != c.Pod {
		r.pod, r.entries = c.Pod, r.entries[:0]
	}
	for _, b := range blocks {
		e := r.entry(b.Nodes, b.Type)
		switch {
		case c.Kind == Init && e == nil:
			r.entries = append(r.entries, reuseEntry{nodes: b.Nodes, name: b.Type, bytes: b.Size})
		case c.Kind == Init:
			e.bytes = max(e.bytes, b.Size)
		case e != nil:
			e.bytes = minus(e.bytes, b.Size)
		}
	}
}

// shrinkInit takes the blocks of a new container off those of the init containers before it, so that the blocks of a pod
// add up to what it has booked.
func (p *pod) shrinkInit(name string, blocks []Block) {
	for _, b := range blocks {
		left := b.Size
		for i := range p.containers {
			c := &p.containers[i]
			if c.kind != Init || c.name == name {
				continue
			}
			for j := range c.blocks {
				if from := &c.blocks[j]; from.Type == b.Type && from.Nodes == b.Nodes {
					taken := min(from.Size, left)
					from.Size -= taken
					left -= taken
				}
			}
		}
	}
}

// appNodes are the nodes of the pod's first app container that has a booking.
func (m *Manager) appNodes(uid string) nodeset.Set {
	p := m.pods[uid]
	if p == nil {
		return 0
	}
	for i := range p.containers {
		if c := &p.containers[i]; c.kind == App {
			return span(c.blocks)
		}
	}
	return 0
}

// rerun books an init container of a pod whose app containers have their memory: it runs again after the sandbox was
// restarted, or is only looked at again, while they do not run. It takes their place and books what it needs beyond
// that, as far as there is room; the scheduler has counted it.
func (m *Manager) rerun(c Container, nodes nodeset.Set) (Placement, error) {
	p := m.pods[c.Pod]
	blocks := make([]Block, 0, len(c.Request))
	for _, amount := range c.Request {
		column := m.column(amount.Type)
		if column == nil {
			return Placement{}, m.reject(c, UnexpectedAdmissionError, "no NUMA node has such memory")
		}
		var apps uint64
		for i := range p.containers {
			if p.containers[i].kind == App {
				apps += size(p.containers[i].blocks, nodes, amount.Type)
			}
		}
		wanted := minus(amount.Bytes, apps)
		blocks = append(blocks, Block{Nodes: nodes, Type: amount.Type, Size: min(wanted, column.freeOf(nodes))})
	}
	for _, b := range blocks {
		m.assign(nodes)
		m.fill(m.column(b.Type), nodes, b.Size)
	}
	p.containers = append(p.containers, container{name: c.Name, kind: Init, blocks: blocks})
	m.generation++
	return Placement{
		Affinity: m.policy.Regenerated(m.all, nodes), Blocks: append([]Block(nil), blocks...), Nodes: nodes,
	}, nil
}
