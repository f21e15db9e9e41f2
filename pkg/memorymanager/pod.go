package memorymanager

import (
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// AlignPod decides the affinity of a whole pod (scope pod); the Allocate calls of its containers then use it.
// The containers are in pod order, init containers first. Without AlignPod, Allocate aligns each container by itself. The error
// is an *AllocationError.
func (m *Manager) AlignPod(uid string, containers []Container) (topologymanager.Hint, error) {
	whole := together(uid, containers)
	if cause := whole.Request.invalid(); cause != "" {
		return topologymanager.Hint{}, m.reject(whole, InvalidRequest, cause)
	}
	hint, rejected := m.podHint(whole, containers)
	if rejected != nil {
		return topologymanager.Hint{}, rejected
	}
	m.pod(uid).affinity = &hint
	return hint, nil
}

// together is a pod as if it were one container: what it needs at one time, with the CPUs and devices of all of them.
func together(uid string, containers []Container) Container {
	whole := Container{Pod: uid, Request: podRequest(containers)}
	for _, c := range containers {
		whole.CPUs |= c.CPUs
		whole.Devices = append(whole.Devices, c.Devices...)
		whole.Required = whole.Required || c.Required
	}
	return whole
}

func (m *Manager) podHint(whole Container, containers []Container) (topologymanager.Hint, *AllocationError) {
	if p := m.known(whole.Pod); p != nil {
		p.affinity = nil
		defer m.forget(p)
		for _, c := range containers {
			if existing := m.container(c.Pod, c.Name); existing != nil {
				return m.regenerated(whole, existing.blocks)
			}
		}
	}
	hint, _, refused := m.align(whole)
	if refused == nil && whole.Required && m.rules.Aligns && !hint.Preferred { // none of its containers would be placed
		_, _, refused = m.nodesFor(whole)
	}
	if refused != nil {
		return hint, m.rejectNodes(whole, refused)
	}
	return hint, nil
}

// podRequest is what a pod needs at one time, by type. As in the kubelet, only types that an app container asks for count.
func podRequest(containers []Container) (request Request) {
	peaks, asked := map[MemoryType]*memoryqos.Peak{}, map[MemoryType]bool{}
	for _, c := range containers {
		for _, amount := range c.Request {
			if peaks[amount.Type] == nil {
				peaks[amount.Type] = &memoryqos.Peak{}
			}
			peaks[amount.Type].Add(c.Kind, amount.Bytes)
			asked[amount.Type] = asked[amount.Type] || c.Kind == memoryqos.App
		}
	}
	for _, name := range slices.Sorted(maps.Keys(peaks)) {
		if asked[name] {
			request = append(request, Amount{Type: name, Bytes: peaks[name].Bytes()})
		}
	}
	return request
}

// plus is a + b, the largest number instead of an overflow.
func plus(a, b uint64) uint64 { return a + min(b, ^a) }

// Aligned reports whether the pod has an affinity. A pod without one that has allocations gets the affinity that they
// show.
func (m *Manager) Aligned(uid string) bool {
	p := m.known(uid)
	if p == nil {
		return false
	}
	if p.affinity == nil && len(p.containers) > 0 {
		hint := m.options.Policy.Regenerated(m.all, p.span())
		p.affinity = &hint
	}
	return p.affinity != nil
}

// SetRoles says how long each container of a pod runs, those included that have ended and keep their allocation. A stored
// state does not say it. What an init container leaves behind can be used again.
func (m *Manager) SetRoles(uid string, role func(container string) memoryqos.Kind) {
	p := m.known(uid)
	if p == nil {
		return
	}
	for i := range p.containers {
		p.containers[i].kind = role(p.containers[i].name)
	}
}
