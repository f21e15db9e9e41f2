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

// Equal reports whether two are the same but for their pods.
func (p PodAllocations) Equal(other PodAllocations) bool {
	return (p.Blocks == nil) == (other.Blocks == nil) && slices.EqualFunc(p.Blocks, other.Blocks, sameBlock) &&
		slices.EqualFunc(p.Entries, other.Entries, func(a, b Entry) bool {
			return a.Container == b.Container && slices.EqualFunc(a.Blocks, b.Blocks, sameBlock)
		})
}

// Allocations returns a pod's allocations.
func (m *Manager) Allocations(uid string) PodAllocations {
	has := PodAllocations{Pod: uid, Blocks: m.PodBlocks(uid)}
	if p := m.known(uid); p != nil {
		has.Entries = p.entries(copied)
	}
	return has
}
