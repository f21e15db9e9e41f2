package memorymanager

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Snapshot is all that a manager remembers: its State, and what that and the kubelet's file do not have.
type Snapshot struct {
	State
	// Order are the names of each pod's containers in the order in which they were allocated.
	Order map[string][]string
	// Affinities are what AlignPod has decided, by pod.
	Affinities map[string]topologymanager.Hint `json:",omitempty"`
	// Bounded is the manager's.
	Bounded uint64
}

// Snapshot returns a deep copy.
func (m *Manager) Snapshot() Snapshot {
	s := Snapshot{State: m.State(), Order: map[string][]string{}, Bounded: m.bounded}
	for _, p := range m.pods {
		for i := range p.containers {
			s.Order[p.uid] = append(s.Order[p.uid], p.containers[i].name)
		}
		if p.affinity != nil {
			if s.Affinities == nil {
				s.Affinities = map[string]topologymanager.Hint{}
			}
			s.Affinities[p.uid] = *p.affinity
		}
	}
	return s
}

// Open replaces all allocations by a snapshot's, which was taken from a manager of the same nodes. The error is Restore's.
func (m *Manager) Open(s Snapshot) error {
	if _, err := m.Restore(s.State, DefaultTolerance); err != nil {
		return err
	}
	for uid, hint := range s.Affinities {
		m.pod(uid).affinity = &hint
	}
	for uid, names := range s.Order {
		if p := m.known(uid); p != nil {
			slices.SortFunc(p.containers, func(a, b container) int { return slices.Index(names, a.name) - slices.Index(names, b.name) })
		}
	}
	m.bounded = s.Bounded
	return nil
}
