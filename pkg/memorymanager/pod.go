package memorymanager

import (
	"cmp"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// AdmitPod decides the affinity of a whole pod (scope pod); the Admit calls of its containers then use it.
// The containers are in pod order, init containers first. Without AdmitPod, Admit aligns each container by itself. The error
// is a *Rejection.
func (m *Manager) AdmitPod(uid string, containers []Container) (topologymanager.Hint, error) {
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

// AlignPod is Align for a pod whose memory is not placed.
func (m *Manager) AlignPod(uid string, containers []Container) (topologymanager.Hint, error) {
	return m.Align(together(uid, containers))
}

func (m *Manager) podHint(whole Container, containers []Container) (topologymanager.Hint, *Rejection) {
	if p := m.pods[whole.Pod]; p != nil {
		p.affinity = nil
		defer m.forget(p)
		for _, c := range containers {
			if existing := m.container(c.Pod, c.Name); existing != nil {
				return m.regenerated(whole, existing.blocks)
			}
		}
	}
	h, known := m.hintsFor(whole.Pod, whole.Request)
	if !known {
		return topologymanager.Hint{}, m.reject(whole, UnexpectedAdmissionError, m.missing(whole.Request))
	}
	hint, admitted := m.affinity(whole, h)
	if !admitted {
		return hint, m.rejectNodes(whole, TopologyAffinityError, m.unpreferred(whole, h))
	}
	return hint, nil
}

// podRequest is what a pod needs at one time, by type. As in the kubelet, only types that an app container asks for count.
func podRequest(containers []Container) Request {
	peaks := map[MemoryType]*memoryqos.Peak{}
	var request Request
	for _, c := range containers {
		for _, amount := range c.Request {
			p := peaks[amount.Type]
			if p == nil {
				p = &memoryqos.Peak{}
				peaks[amount.Type] = p
			}
			p.Add(c.Kind, amount.Bytes)
			asked := func(a Amount) bool { return a.Type == amount.Type }
			if c.Kind == memoryqos.App && !slices.ContainsFunc(request, asked) {
				request = append(request, Amount{Type: amount.Type})
			}
		}
	}
	for i := range request {
		request[i].Bytes = peaks[request[i].Type].Bytes()
	}
	slices.SortFunc(request, func(a, b Amount) int { return cmp.Compare(a.Type, b.Type) })
	return request
}

// plus is a + b, the largest number instead of an overflow.
func plus(a, b uint64) uint64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return ^uint64(0)
}

// Aligned reports whether the pod has an affinity. A pod without one that has allocations gets the affinity that they
// show.
func (m *Manager) Aligned(uid string) bool {
	p := m.pods[uid]
	if p == nil {
		return false
	}
	if p.affinity == nil && len(p.containers) > 0 {
		var nodes nodeset.Set
		for i := range p.containers {
			nodes = nodes.Union(span(p.containers[i].blocks))
		}
		hint := m.policy.Regenerated(m.all, nodes)
		p.affinity = &hint
	}
	return p.affinity != nil
}

// SetKind corrects the kind of a container that was allocated before its kind was known: what an init container leaves
// behind can be used again.
func (m *Manager) SetKind(pod, name string, kind memoryqos.Kind) {
	if c := m.container(pod, name); c != nil && c.kind != kind {
		c.kind = kind
		m.generation++
	}
}
