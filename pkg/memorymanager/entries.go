package memorymanager

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
	if p := m.pods[uid]; p != nil {
		has.Entries = p.entries(copied)
	}
	return has
}
