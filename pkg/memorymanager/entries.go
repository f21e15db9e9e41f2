package memorymanager

// Entries returns a pod's bookings as State has them, per-node amounts included, for a checkpoint of one decision.
func (m *Manager) Entries(pod string) []Entry {
	var entries []Entry
	for _, entry := range m.State().Entries {
		if entry.Pod == pod {
			entries = append(entries, entry)
		}
	}
	return entries
}
