package memorymanager

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// The kubelet's CPU manager assigns exclusive CPUs before the runtime is asked to create the container. If the kubelet's own
// topology policy is none or best-effort, they can be on more NUMA nodes than ours admits. A rejection does not help then: the
// CPUs remain assigned, and the kubelet creates the same container again and again.

// tooWide reports whether a container's CPUs are on more nodes than the policy admits for its request.
func (m *Manager) tooWide(c Container, h *hints) bool {
	cpus, anyOf := m.near(c.CPUs, false)
	width := cpus.Len()
	return m.rules.Insists && width > 1 && !anyOf && (m.rules.OneNode || !h.minimal(width))
}

// follow returns the nodes for a container whose memory follows its CPUs: all nodes of the CPUs, or, where containers on
// them keep these from being one group or they have no room, the fewest of them that do. It is empty where the memory may
// not follow the CPUs, or there is no room.
func (m *Manager) follow(c Container, h *hints) (nodes nodeset.Set) {
	if !m.options.FollowCPUs || c.Required || m.rules.OneNode || !m.tooWide(c, h) {
		return 0
	}
	cpus, _ := m.near(c.CPUs, false)
	if h.has(cpus) {
		return cpus
	}
	for id := range cpus.All() {
		if group := m.groups[id]; group.SubsetOf(cpus) && narrower(group, nodes) && h.has(group) {
			nodes = group
		}
	}
	unused := h.unused & cpus
	if found, ok := h.smallest(unused, 2, unused.Len(), h.want); ok && narrower(found, nodes) {
		nodes = found
	}
	return nodes
}

// wayOut says why a container is rejected whose CPUs are on too many nodes, and what to do about it.
func (m *Manager) wayOut(c Container) string {
	text := "its exclusive CPUs are on " + m.named(c.CPUs) + ", more than the policy admits for this request"
	kubelet := fmt.Sprintf("topologyManagerPolicy: %s in the kubelet's configuration has it assign CPUs on fewer nodes", m.options.Policy)
	switch {
	case m.rules.OneNode:
		return text + "; " + kubelet
	case c.Required:
		return text + ", and the pod's annotation numa is required; " + kubelet
	case m.options.FollowCPUs:
		return text + ", and its memory does not fit there; " + kubelet
	}
	return text + "; onConflict: CPUs in the plugin's configuration lets its memory follow them, and " + kubelet
}
