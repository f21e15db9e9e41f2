package memorymanager

import "slices"

// PodAllocations are all that a pod has, for a checkpoint of one decision. PerNode is left out: State has it, and so have
// the reserved bytes of Nodes.
type PodAllocations struct {
	// Pod is the pod's UID.
	Pod string
	// Blocks are the pod's own; nil without pod-level resources.
	Blocks []Block
	// Entries are its containers', sorted by name; empty when the pod has ended.
	Entries []Entry
}

// Empty reports whether the pod has nothing.
func (p PodAllocations) Empty() bool { return p.Blocks == nil && len(p.Entries) == 0 }

// Allocations returns a pod's allocations.
func (m *Manager) Allocations(uid string) PodAllocations {
	has := PodAllocations{Pod: uid, Blocks: m.PodBlocks(uid)}
	p := m.pods[uid]
	if p == nil {
		return has
	}
	has.Entries = make([]Entry, 0, len(p.containers))
	for i := range p.containers {
		c := &p.containers[i]
		has.Entries = append(has.Entries, Entry{Pod: uid, Container: c.name, Blocks: copied(c.blocks)})
	}
	slices.SortFunc(has.Entries, byContainer)
	return has
}
