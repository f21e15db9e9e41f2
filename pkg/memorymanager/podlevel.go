package memorymanager

import (
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// A pod with pod-level resources (spec.resources) has a budget that its containers share. In scope pod it is allocated as
// a whole: the node map counts the budget once. Each container has a part of it: one with a request of its own has that,
// the others share what is left, the pod's shared pool. The parts of a pod may overlap.
// https://github.com/kubernetes/enhancements/tree/master/keps/sig-node/5526-pod-level-resource-managers

// Pod is a Guaranteed pod with pod-level resources.
type Pod struct {
	// Whole is the pod as one container without a name: its Request is the budget, spec.resources.requests, and it has the CPUs
	// and devices of all containers.
	Whole Container
	// Containers are in pod order, init containers first. The Request of one that shares the pool is empty: only a container
	// that requests CPU and memory and limits both to the same has a part of its own.
	Containers []Container
}

// AllocatePod places and allocates a pod with pod-level resources, and gives its containers their parts of it: Blocks has
// them. A pod that has its allocation keeps it, and a container that has no part of it gets one. One whose containers have
// allocations of their own is allocated where they are. The error is an *AllocationError and leaves the state as it was.
func (m *Manager) AllocatePod(p Pod) (Placement, error) {
	if cause := p.Whole.Request.invalid(); cause != "" {
		return Placement{}, m.reject(p.Whole, InvalidRequest, cause)
	}
	known := m.known(p.Whole.Pod)
	if known != nil && known.blocks != nil {
		return m.keep(p, known)
	}
	if cause := p.emptyPool(); cause != "" {
		return Placement{}, m.rejectEmptyPool(p.Whole, cause)
	}
	if known != nil && len(known.containers) > 0 {
		return m.AdoptPod(p, known.span())
	}
	placement, rejected := m.chooseNodes(p.Whole)
	if rejected != nil {
		return Placement{}, rejected
	}
	known = m.podOf(p, placement.Nodes)
	m.occupy(known.blocks)
	placement.Blocks = m.settle(placement.Nodes, known.blocks)
	return placement, nil
}

// podOf is the record of a pod on nodes, with its blocks and the parts of its containers.
func (m *Manager) podOf(p Pod, nodes nodeset.Set) *pod {
	known := m.pod(p.Whole.Pod)
	known.blocks, known.containers = p.Whole.Request.some(nodes), p.parts(nodes)
	return known
}

// AdoptPod allocates a pod that was found running on these nodes as it is: see Adopt.
func (m *Manager) AdoptPod(p Pod, nodes nodeset.Set) (Placement, error) {
	if err := m.adoptable(p.Whole, nodes); err != nil {
		return Placement{}, err
	}
	m.ReleasePod(p.Whole.Pod)
	known := m.podOf(p, nodes)
	m.overallocate(known.blocks)
	return m.adopted(known.blocks), nil
}

// keep is the answer to a pod that has its allocation.
func (m *Manager) keep(p Pod, known *pod) (Placement, error) {
	placement, err := m.kept(p.Whole, known.blocks)
	if err != nil {
		return placement, err
	}
	for _, part := range p.parts(placement.Nodes) {
		if known.index(part.name) < 0 {
			known.containers = append(known.containers, part)
		}
	}
	return placement, nil
}

// PodBlocks returns a pod's own allocation, sorted by type; nil when it has none. PerNode is left out.
func (m *Manager) PodBlocks(uid string) []Block {
	if !m.whole(uid) {
		return nil
	}
	return copied(m.known(uid).blocks)
}

// whole reports whether a pod is allocated as a whole.
func (m *Manager) whole(uid string) bool {
	p := m.known(uid)
	return p != nil && p.blocks != nil
}

// some returns the blocks of a request on these nodes, without types of zero bytes.
func (r Request) some(nodes nodeset.Set) (blocks []Block) {
	for _, b := range r.on(nodes) {
		if b.Size > 0 {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// less returns what a request leaves of this one.
func (r Request) less(taken Request) Request {
	left := slices.Clone(r)
	for i := range left {
		left[i].Bytes = minus(left[i].Bytes, taken.Of(left[i].Type))
	}
	return left
}

// requests are what the containers have of the pod's. A container that shares the pool has all of the budget that those with a request of
// their own leave. An init container that ends before the others run has what the sidecars before it leave, and takes nothing from anybody.
func (p Pod) requests() []Request {
	pool, left := p.Whole.Request, p.Whole.Request
	for _, c := range p.Containers {
		if c.Kind != memoryqos.Init {
			pool = pool.less(c.Request)
		}
	}
	requests := make([]Request, len(p.Containers))
	for i, c := range p.Containers {
		switch {
		case len(c.Request) > 0:
			if requests[i] = c.Request; c.Kind == memoryqos.Sidecar {
				left = left.less(c.Request)
			}
		case c.Kind == memoryqos.Init:
			requests[i] = left
		default:
			requests[i] = pool
		}
	}
	return requests
}

// parts are the containers with their blocks.
func (p Pod) parts(nodes nodeset.Set) (parts []container) {
	for i, request := range p.requests() {
		if blocks := request.some(nodes); blocks != nil {
			parts = append(parts, container{name: p.Containers[i].Name, kind: p.Containers[i].Kind, blocks: blocks})
		}
	}
	return parts
}

// emptyPool says why the shared pool would be empty for containers without a request of their own. It is "" if the pool is not
// empty or no container shares it.
func (p Pod) emptyPool() (cause string) {
	for i, request := range p.requests() {
		empty := slices.IndexFunc(request, func(a Amount) bool { return a.Bytes == 0 })
		switch c := p.Containers[i]; {
		case empty < 0 || len(c.Request) > 0:
		case c.Kind == memoryqos.Init:
			return fmt.Sprintf("the sidecars before the init container %s request all of the pod's %s, and it has no request of its own",
				c.Name, request[empty].Type)
		default:
			cause = fmt.Sprintf("the containers' own requests are all of the pod's %s, which leaves nothing to the containers without one", request[empty].Type)
		}
	}
	return cause
}

// rejectEmptyPool rejects a pod whose containers would share an empty pool. As in the kubelet, restricted and single-numa-node
// reject it because there are no hints; under best-effort the allocation fails.
func (m *Manager) rejectEmptyPool(whole Container, cause string) *AllocationError {
	if m.rules.Insists {
		return m.reject(whole, TopologyAffinityError, cause)
	}
	rejected := m.reject(whole, EmptyPodSharedPoolError, cause)
	rejected.Affinity = &topologymanager.Hint{Nodes: m.all}
	return rejected
}
