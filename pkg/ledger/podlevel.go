package ledger

import (
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// By default a Guaranteed pod with pod-level resources (spec.resources) is not pinned, as in the kubelet. With podLevelResourceManagers it
// is, as with the kubelet's feature gate of that name: in scope pod it is allocated as a whole; in scope container only its containers
// with a request of their own are allocated.

// podLevel reports whether the pod is known to have pod-level resources.
func (p *pod) podLevel() bool {
	return p.Info != nil && p.Info.PodLevel() || p.Shared && p.Info == nil
}

// asWhole reports whether a pod is allocated as a whole.
func (l *Ledger) asWhole(p *pod) bool {
	options := l.state.Resolved.Manager
	return l.state.Resolved.Config.PodLevelResourceManagers && p.Info != nil && p.Info.PodLevel() &&
		options.Scope == topologymanager.PodScope && options.Policy.Rules().Aligns
}

// hasOnlyParts reports whether containers of a pod have allocations, but not the pod as a whole.
func (l *Ledger) hasOnlyParts(p *pod) bool {
	return l.manager.PodBlocks(p.Key()) == nil && len(l.manager.Allocations(p.Key()).Entries) > 0
}

// unpinnableOfPodLevel says why a container of a pod with pod-level resources has no allocation; "" if it may have one.
func (l *Ledger) unpinnableOfPodLevel(c *container) string {
	switch {
	case !l.state.Resolved.Config.PodLevelResourceManagers:
		return "not pinned: the pod's resources are its own, not its containers' (pod-level resources)"
	case c.pod.Info == nil && l.manager.PodBlocks(c.pod.Key()) != nil && l.blocks(c) != nil: // from a spec, which is known again soon
		return ""
	case c.pod.Info == nil:
		return "not pinned: the pod has pod-level resources, and no source of requests says which part is the container's"
	}
	spec, ok := c.pod.Info.Container(c.Name)
	switch {
	case !ok || spec.Kind == memoryqos.Ephemeral:
		return "not pinned: the pod's resources are its own, and the container is none of its spec"
	case !spec.Guaranteed && !l.asWhole(c.pod):
		return "not pinned: the container shares its pod's resources, and only scope pod allocates these"
	}
	return ""
}

// ownRequest returns the request of a container in a pod with pod-level resources. It is empty unless the container's requests and limits
// of CPU and memory are equal.
func ownRequest(spec pods.Container) memorymanager.Request {
	if !spec.Guaranteed {
		return nil
	}
	return withMemory(slices.Clone(spec.Hugepages), spec.Request)
}

// managerPod returns a pod with pod-level resources as the Memory Manager sees it.
func (l *Ledger) managerPod(c *container) memorymanager.Pod {
	p := c.pod
	whole := memorymanager.Pod{Whole: memorymanager.Container{
		Pod: p.Key(), Request: p.Info.Budget(), CPUs: c.CPUNodes, Devices: c.Devices, Required: l.managerContainer(c).Required, FreePages: l.step.facts.FreePages,
	}}
	for name, others := range l.step.facts.Devices {
		if name != c.Name {
			whole.Whole.Devices = append(whole.Whole.Devices, others...)
		}
	}
	for _, others := range l.step.facts.CPUs {
		whole.Whole.CPUs = whole.Whole.CPUs.Union(l.nodesOfCPUs(others))
	}
	for _, spec := range p.Info.Containers {
		if spec.Kind != memoryqos.Ephemeral {
			whole.Containers = append(whole.Containers, memorymanager.Container{
				Pod: p.Key(), Name: spec.Name, Kind: spec.Kind, Request: ownRequest(spec),
			})
		}
	}
	return whole
}

// allocateWhole allocates the container's pod as a whole, and the container's part of it.
func (l *Ledger) allocateWhole(c *container, wanted memorymanager.Container) (memorymanager.Placement, error) {
	whole, err := l.manager.AllocatePod(l.managerPod(c))
	if err != nil {
		return whole, err
	}
	part, err := l.manager.Allocate(wanted)
	part.Affinity, part.Bounded, part.Overcommitted = whole.Affinity, whole.Bounded, whole.Overcommitted
	return part, err
}

// allocateWholeOn allocates the container's pod on nodes, unless the pod has an allocation, and the container's part of it.
func (l *Ledger) allocateWholeOn(c *container, nodes nodeset.Set) (memorymanager.Placement, error) {
	var whole memorymanager.Placement
	if key := c.pod.Key(); l.manager.PodBlocks(key) == nil {
		var err error
		if whole, err = l.manager.AdoptPod(l.managerPod(c), nodes); err != nil {
			return whole, fmt.Errorf("adopt the pod: %w", err)
		}
	}
	part, err := l.manager.Allocate(l.managerContainer(c))
	part.Overcommitted = whole.Overcommitted
	return part, err
}

// placeParts places the containers that began to run before their pod was allocated as a whole.
func (l *Ledger) placeParts(p *pod) {
	if l.manager == nil || !l.asWhole(p) || l.manager.PodBlocks(p.Key()) == nil {
		return
	}
	for _, c := range p.containers {
		if blocks := l.blocks(c); blocks == nil || !c.alive() || c.ByKubelet || c.Nodes == nodesOf(blocks) || l.unpinnable(c) != "" {
			continue
		}
		if part, err := l.manager.Allocate(l.managerContainer(c)); err == nil {
			l.assign(c, assignment{Placement: Placement{Pinning: l.howPlaced(p, part)}.withAllocation(part)})
		}
	}
}

// reallocatePod allocates the containers of a pod again, after it was found whether the pod has pod-level resources.
func (l *Ledger) reallocatePod(p *pod) {
	if l.manager == nil {
		return
	}
	for _, c := range p.containers {
		if !c.alive() || c.ByKubelet && p.podLevel() {
			continue
		}
		var over []Note
		if l.asWhole(p) && l.manager.PodBlocks(p.Key()) == nil && l.blocks(c) != nil {
			whole, err := l.manager.AllocatePod(l.managerPod(c))
			if err != nil {
				l.note(Warn, "a pod with pod-level resources cannot be allocated as a whole", p.fields(), err)
			}
			over = overcommitted(whole)
		}
		decided, has := l.keep(c)
		if !has {
			decided, _ = l.decide(c) // a running container is never refused
		}
		decided.notes = append(over, decided.notes...)
		l.assign(c, decided)
	}
}
