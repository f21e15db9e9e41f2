package memorymanager

import "github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"

// SetBudget bounds the search to fewer steps.
func (m *Manager) SetBudget(budget int) { m.budget = budget }

// Align is the Topology Manager's answer to a container whose memory is not placed: what its CPUs and devices prefer. The
// error is an *AllocationError.
func (m *Manager) Align(c Container) (topologymanager.Hint, error) {
	hint, admitted := m.merge(c, nil)
	if !admitted {
		return hint, m.reject(c, TopologyAffinityError, m.misaligned(c))
	}
	return hint, nil
}
