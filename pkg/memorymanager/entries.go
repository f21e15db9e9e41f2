package memorymanager

import (
	"slices"
	"strings"
)

// Entries returns a pod's allocations sorted by container, for a checkpoint of one decision. PerNode is left out: State
// has it, and so have the reserved bytes of Nodes.
func (m *Manager) Entries(pod string) []Entry {
	p := m.pods[pod]
	if p == nil {
		return nil
	}
	entries := make([]Entry, 0, len(p.containers))
	for i := range p.containers {
		c := &p.containers[i]
		entries = append(entries, Entry{Pod: pod, Container: c.name, Blocks: copied(c.blocks)})
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Container, b.Container) })
	return entries
}
