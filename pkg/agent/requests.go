package agent

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// knows reports whether a pod API has told of this container. A pod gets ephemeral containers later.
func (p *pod) knows(container string) bool {
	if p.info == nil {
		return false
	}
	_, ok := p.info.Container(container)
	return ok
}

// learn takes the best that the pod APIs know of a pod now, and reports whether that is new. It does not use the answer to a
// question or a notification itself, because one may overtake the other. The lock is held.
func (a *Agent) learn(p *pod) bool {
	answer, ok := a.requests.Known(p.ref)
	if !ok || p.info == answer.Pod {
		return false
	}
	p.info, p.source = answer.Pod, answer.Source
	a.touch(p)
	return true
}

// recompute computes a pod's living containers again. Run brings those that have been created already to their values. The lock is
// held.
func (a *Agent) recompute(p *pod) {
	for _, c := range p.containers {
		if c.alive() {
			a.compute(c)
		}
	}
	a.revise(keyOf(p.Pod))
}

// revise has Run recompute a pod's containers and bring them to their values. The lock is held.
func (a *Agent) revise(uid string) {
	a.revised[uid] = true
	a.poke()
}

// estimate is the container's memory request from the best source. During a resize the pod APIs can be behind the event:
// their old request, within the new limit, is still nearer than an estimate from the values of the creation, and they
// tell the new one soon. The lock is held.
func (a *Agent) estimate(c *container) podinfo.Estimate {
	p := c.pod
	if p.info != nil && (p.class() != memoryqos.Guaranteed || c.limit == 0 || p.info.PodLevel()) {
		if known, ok := (podinfo.Answer{Pod: p.info, Source: p.source}).Estimate(c.name); ok {
			if c.limit > 0 {
				known.Request = min(known.Request, c.limit)
			}
			return known
		}
	}
	return a.node.FromEvent(podinfo.Event{
		Class:       p.class(),
		Container:   c.name,
		Limit:       c.limit,
		PodLimit:    p.sharedLimit(),
		OOMScoreAdj: c.resources.OOMScoreAdj,
		Unified:     c.resources.Unified,
		Annotations: p.Annotations,
	}, a.sources...)
}

// sharedLimit is the limit that the containers of a pod share, 0 when it is not known that they do.
func (p *pod) sharedLimit() uint64 {
	if p.shared && p.info == nil {
		return p.MemoryLimit
	}
	return 0
}

// findShared finds out that the containers of a Guaranteed pod whose spec is not known share its limit, and reports whether that
// is news: one has all of it and is not alone. Where each has a limit of its own, these add up to the pod's.
func (p *pod) findShared() bool {
	if p.shared || p.info != nil || p.class() != memoryqos.Guaranteed || p.MemoryLimit == 0 {
		return false
	}
	limited, whole := 0, false
	for _, c := range p.containers {
		if c.alive() && c.limit > 0 {
			limited++
			whole = whole || c.limit >= p.MemoryLimit
		}
	}
	p.shared = whole && limited > 1
	return p.shared
}

// eventSources are the estimates that the configuration allows; nil allows all.
func eventSources(c config.Config) []podinfo.Source {
	if len(c.RequestSources) == 0 {
		return nil
	}
	sources := []podinfo.Source{podinfo.SourceLimit, podinfo.SourceUnified, podinfo.SourceSwap}
	if slices.Contains(c.RequestSources, config.SourceAnnotation) {
		sources = append(sources, podinfo.SourceAnnotation)
	}
	if slices.Contains(c.RequestSources, config.SourceOOMScore) {
		sources = append(sources, podinfo.SourceOOMScore)
	}
	return sources
}

func (p *pod) class() memoryqos.QOSClass { return p.path.Class }

// role is how long the container runs within its pod. NRI does not tell it: without a pod API every container counts as
// an app container, so that an init container's booking stays until its pod ends.
func (p *pod) role(container string) memoryqos.Kind {
	if p.info != nil {
		if spec, ok := p.info.Container(container); ok {
			return spec.Kind
		}
	}
	return memoryqos.App
}

// placementRole is a role as the memory manager names it. Ephemeral containers can have no requests.
func placementRole(kind memoryqos.Kind) memorymanager.Kind {
	switch kind {
	case memoryqos.Init:
		return memorymanager.Init
	case memoryqos.Sidecar:
		return memorymanager.Sidecar
	}
	return memorymanager.App
}
