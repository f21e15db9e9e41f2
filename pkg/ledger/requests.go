package ledger

import (
	"reflect"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// knows reports whether a pod API has this container. A pod gets ephemeral containers later.
func (p *pod) knows(container string) bool {
	if p.info == nil {
		return false
	}
	_, ok := p.info.Container(container)
	return ok
}

// PodFacts are the newest that the pod APIs know of a pod.
type PodFacts struct {
	UID   string // Pod.Key
	Known pods.Answer
}

func (e PodFacts) apply(l *Ledger) {
	if p := l.pods[e.UID]; p != nil && p.managed && l.learn(p, e.Known) {
		l.sumUp(p)
	}
}

// learn takes what the pod APIs know, and reports whether that is new. All containers of the pod are brought to it, running
// ones included.
func (l *Ledger) learn(p *pod, known pods.Answer) bool {
	if known.Pod == nil || p.info == known.Pod || p.source == known.Source && reflect.DeepEqual(p.info, known.Pod) {
		return false
	}
	late := p.info == nil && l.synchronized.message == ""
	p.info, p.source = known.Pod, known.Source
	l.learnRoles(p, late)
	l.touch(p)
	l.annotations(p)
	l.recompute(p)
	return true
}

// learnRoles tells the memory manager the roles of a pod's containers. Where they are late, something may have been placed without
// them: what nothing of the pod needs is free then.
func (l *Ledger) learnRoles(p *pod, late bool) {
	if l.manager == nil || p.info == nil {
		return
	}
	l.manager.SetRoles(p.key(), p.role)
	if late && l.manager.ReleaseRest(p.key(), p.ofSpec()) {
		l.persist(p)
		for _, c := range slices.Clone(p.containers) {
			l.forget(c)
		}
	}
}

// recompute computes a pod's living containers again.
func (l *Ledger) recompute(p *pod) {
	for _, c := range p.containers {
		if !c.alive() {
			continue
		}
		before := c.request
		l.compute(c)
		l.bring(c)
		if c.request != before {
			l.counters.Corrections++
			l.note(Info, "memory request corrected", with(c.fields(), "before", before.Request), nil)
		}
	}
	if p.podLevel() {
		l.reallocatePod(p)
	}
}

// estimate is the container's memory request from the best source. During a resize the pod APIs can be behind the event:
// their old request, within the new limit, is still nearer than an estimate from the values of the creation, and they
// have the new one soon.
func (l *Ledger) estimate(c *container) pods.Estimate {
	if claimed, known := l.claimedEstimate(c); known {
		return claimed
	}
	p := c.pod
	if p.info != nil && (p.class() != memoryqos.Guaranteed || c.limit == 0 || p.info.OwnMemory()) {
		if known, ok := (pods.Answer{Pod: p.info, Source: p.source}).Estimate(c.name); ok {
			if c.limit > 0 {
				known.Request = min(known.Request, c.limit)
			}
			return known
		}
	}
	return l.node.FromEvent(pods.Event{
		Class:        p.class(),
		Container:    c.name,
		Limit:        c.limit,
		PodLimit:     p.sharedLimit(),
		OwnMemory:    p.info != nil && p.info.OwnMemory(),
		WorkloadSwap: l.resolved.WorkloadSwap,
		OOMScoreAdj:  c.resources.OOMScoreAdj,
		Unified:      c.resources.Unified,
		Claims:       p.brought.Claims,
	}, l.resolved.Config.RequestSources...)
}

// sharedLimit is the limit that the containers of a pod share, 0 when it is not known that they do.
func (p *pod) sharedLimit() uint64 {
	if p.shared && p.info == nil {
		return p.MemoryLimit
	}
	return 0
}

// findShared finds out whether the containers of a Guaranteed pod whose spec is not known share its limit: one has all of it, and another
// one is there with it. Where each has a limit of its own, these add up to the pod's. Anything else says nothing: containers come and
// go, and the limits of a container and its pod are not changed at one moment.
func (l *Ledger) findShared(p *pod) {
	if p.info != nil || p.class() != memoryqos.Guaranteed || p.MemoryLimit == 0 {
		return
	}
	var limited []*container
	var sum uint64
	whole := false
	for _, c := range p.containers {
		if c.alive() && c.limit > 0 && (c.there || c.state == Creating) {
			limited = append(limited, c)
			sum += min(c.limit, ^uint64(0)-sum)
			whole = whole || c.limitIsPods
		}
	}
	if len(limited) < 2 || whole == p.shared || !whole && sum != p.MemoryLimit {
		return
	}
	p.shared = whole
	l.recompute(p)
	if !whole {
		l.settleAllocations(limited)
	}
}

// compareLimits compares the limits of a pod's containers with the pod's, which was just said, but for those that are being changed.
func (p *pod) compareLimits() {
	for _, c := range p.containers {
		if c.updating.IsZero() {
			c.limitIsPods = c.hasPodLimit()
		}
	}
}

// hasPodLimit reports whether a container's limit is all of its pod's.
func (c *container) hasPodLimit() bool {
	return c.limit > 0 && c.pod.MemoryLimit > 0 && c.limit >= c.pod.MemoryLimit
}

// Siblings are the places of the other living containers of a pod where it matters whether they are there, because no pod API says what
// is whose.
func (l *Ledger) Siblings(pod Pod, container string) (places []Place) {
	p := l.pods[pod.Key()]
	if p == nil || p.info != nil || p.class() != memoryqos.Guaranteed {
		return nil
	}
	for _, c := range p.containers {
		if c.alive() && c.name != container && c.cgroup != "" {
			places = append(places, c.place())
		}
	}
	return places
}

// seeContainers takes what was found at the cgroups of containers.
func (l *Ledger) seeContainers(siblings Presence) {
	for _, at := range siblings.There {
		if c := l.containers[at.ID]; c != nil {
			c.seen, c.there = true, true
		}
	}
	for _, at := range siblings.Gone {
		if c := l.containers[at.ID]; c != nil {
			c.there = false
		}
	}
}

func (p *pod) class() memoryqos.QOSClass { return p.path.Class }

// role is how long the container runs within its pod. NRI does not say it: without a pod API every container counts as
// an app container, so that an init container's allocation stays until its pod ends.
func (p *pod) role(container string) memoryqos.Kind {
	if p.info != nil {
		if spec, ok := p.info.Container(container); ok {
			return spec.Kind
		}
	}
	return memoryqos.App
}
