package ledger

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// knows reports whether the pod APIs have reported this container. A pod gets ephemeral containers later.
func (p *pod) knows(container string) bool {
	if p.Info == nil {
		return false
	}
	_, ok := p.Info.Container(container)
	return ok
}

// PodFacts has the newest data of the pod APIs about a pod.
type PodFacts struct {
	UID     string // Pod.Key
	PodInfo pods.Answer
}

func (e PodFacts) apply(l *Ledger) {
	if p := l.pods[e.UID]; p != nil && p.managed && p.isNew(e.PodInfo) {
		l.learn(l.change(p), e.PodInfo)
	}
}

// isNew reports whether the pod APIs say something else about a pod than before.
func (p *pod) isNew(info pods.Answer) bool {
	return info.Pod != nil && p.Info != info.Pod && (p.Source != info.Source || !reflect.DeepEqual(p.Info, info.Pod))
}

// learn takes over the data of the pod APIs for all containers of the pod, including running ones.
func (l *Ledger) learn(p *pod, info pods.Answer) {
	if !p.isNew(info) {
		return
	}
	podLevel := p.podLevel() // it may have been found by comparing limits
	p.Info, p.Source, p.Shared = info.Pod, info.Source, false
	l.learnRoles(p)
	l.recheckAnnotations(p)
	if podLevel || p.podLevel() {
		l.reallocatePod(p)
	}
	for _, c := range p.containers {
		if c.alive() { // the spec limits what counts of the runtime's limit
			l.assign(c, l.fit(c))
		}
	}
}

// learnRoles gives the Memory Manager the roles of a pod's containers.
func (l *Ledger) learnRoles(p *pod) {
	if l.manager != nil && p.Info != nil {
		l.manager.SetRoles(p.Key(), p.role)
	}
}

// request returns the request of a Guaranteed container: its own memory limit, which equals its memory request, and its huge pages. In a
// pod with pod-level resources it is ownRequest, because the limit may be the pod's; of a resize, the spec may know first. Memory from
// resource claims is not included.
func request(c *container) memorymanager.Request {
	if p := c.pod; p.Info != nil && p.Info.PodLevel() {
		spec, _ := p.Info.Container(c.Name)
		if c.Limit > 0 {
			spec.Request = min(spec.Request, c.Limit)
		}
		return ownRequest(spec)
	}
	wanted := make(memorymanager.Request, 0, 1+len(c.Resources.Hugepages))
	limit := c.Limit
	if own := c.ownLimit(); own != nil {
		limit = min(limit, *own)
	}
	for _, pages := range c.Resources.Hugepages {
		if size, ok := pageSize(pages.PageSize); ok && pages.Limit > 0 {
			wanted = append(wanted, memorymanager.Amount{Type: memorymanager.Hugepages(size), Bytes: pages.Limit})
		}
	}
	return withMemory(wanted, limit)
}

// withMemory adds ordinary memory to a request for huge pages, and sorts it.
func withMemory(pages memorymanager.Request, bytes uint64) memorymanager.Request {
	if bytes > 0 {
		pages = append(pages, memorymanager.Amount{Type: memorymanager.Memory, Bytes: bytes})
	}
	slices.SortFunc(pages, func(a, b memorymanager.Amount) int { return cmp.Compare(a.Type, b.Type) })
	return pages
}

// pageSize parses a huge page size as CRI and OCI write it: "64KB", "2MB", "1GB".
func pageSize(text string) (bytes uint64, ok bool) {
	for unit, shift := range map[string]int{"KB": 10, "MB": 20, "GB": 30} {
		if digits, found := strings.CutSuffix(text, unit); found {
			n, err := strconv.ParseUint(digits, 10, 20)
			return n << shift, err == nil && n > 0
		}
	}
	return 0, false
}

// pagesToVerify returns the sizes in bytes of the huge pages that must be free in the kernel before a container is created; nil if nothing
// is verified.
func (l *Ledger) pagesToVerify(c Container) (sizes []uint64) {
	if !l.state.Resolved.Config.VerifyHugepages {
		return nil
	}
	for _, pages := range c.Resources.Hugepages {
		if size, ok := pageSize(pages.PageSize); ok && pages.Limit > 0 {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// estimate returns the container's memory request from the best source. During a resize the pod APIs may still have the old request. Within
// the new limit it is closer than an estimate from the values of the creation, and the APIs have the new one soon.
func (l *Ledger) estimate(c *container) pods.Estimate {
	if claimed, ok := l.claimedEstimate(c); ok {
		return claimed
	}
	p := c.pod
	if p.Info != nil && (p.class() != memoryqos.Guaranteed || c.Limit == 0 || p.Info.OwnMemory()) {
		if estimate, ok := (pods.Answer{Pod: p.Info, Source: p.Source}).Estimate(c.Name); ok {
			if c.Limit > 0 {
				estimate.Request = min(estimate.Request, c.Limit)
			}
			return estimate
		}
	}
	return l.node.FromEvent(pods.Event{
		Class:        p.class(),
		Container:    c.Name,
		Limit:        c.Limit,
		PodLimit:     p.sharedLimit(),
		OwnMemory:    p.Info != nil && p.Info.OwnMemory(),
		WorkloadSwap: l.state.Resolved.WorkloadSwap,
		OOMScoreAdj:  c.Resources.OOMScoreAdj,
		Unified:      c.Resources.Unified,
		Claims:       p.Annotated.Claims,
	}, l.state.Resolved.Config.RequestSources...)
}

// sharedLimit returns the limit that the containers of a pod share; 0 unless they are known to share one.
func (p *pod) sharedLimit() uint64 {
	if p.Shared && p.Info == nil {
		return p.MemoryLimit
	}
	return 0
}

// findShared finds whether the containers of a pod share its limit, and places them again if that has changed.
func (l *Ledger) findShared(p *pod) {
	limited, changed := p.sharing(nil)
	if !changed {
		return
	}
	if p.Shared = !p.Shared; p.Shared {
		l.reallocatePod(p)
	} else {
		l.placeAll(limited)
	}
}

// sharing reports whether it has changed that the containers of a Guaranteed pod share its limit, if its spec is unknown. They do if one
// container has the whole limit and another one is present. They do not if their limits add up to the pod's. Anything else is inconclusive:
// containers come and go, and the limits of a container and its pod do not change at one moment. next replaces the container of its name;
// it may be nil.
func (p *pod) sharing(next *container) (limited []*container, changed bool) {
	if p.Info != nil || p.class() != memoryqos.Guaranteed || p.MemoryLimit == 0 {
		return nil, false
	}
	var sum uint64
	whole := false
	for _, c := range p.containers {
		if next != nil && next.Name == c.Name {
			c = next
		}
		if c.alive() && c.Limit > 0 && (c.Present || c.Phase == Creating) {
			limited = append(limited, c)
			sum += min(c.Limit, ^uint64(0)-sum)
			whole = whole || c.LimitIsPods
		}
	}
	return limited, len(limited) > 1 && whole != p.Shared && (whole || sum == p.MemoryLimit)
}

// compareLimits compares the limits of a pod's containers with the pod's new limit, except those of containers under update.
func (p *pod) compareLimits() {
	for _, c := range p.containers {
		if c.Pending == nil {
			c.LimitIsPods = c.hasPodLimit()
		}
	}
}

// hasPodLimit reports whether a container's limit is the whole limit of its pod.
func (c *container) hasPodLimit() bool {
	return c.Limit > 0 && c.pod.MemoryLimit > 0 && c.Limit >= c.pod.MemoryLimit
}

// recordPresence records whether containers' cgroups were present.
func (l *Ledger) recordPresence(siblings Presence) {
	for _, ref := range siblings.Present {
		if c := l.containers[ref.ID]; c != nil {
			c.Seen, c.Present = true, true
		}
	}
	for _, ref := range siblings.Gone {
		if c := l.containers[ref.ID]; c != nil && c.Revision == ref.Revision {
			c.Present = false
		}
	}
}

func (p *pod) class() memoryqos.QOSClass { return p.path.Class }

// whyNotGuaranteed names the first container that keeps a Burstable pod from being Guaranteed, or its resources of its own, if its spec is known.
func (p *pod) whyNotGuaranteed() string {
	switch {
	case p.class() != memoryqos.Burstable || p.Info == nil:
		return ""
	case p.Info.PodLevel():
		return ": its own resources (spec.resources) do not request and limit CPU and memory to the same"
	}
	for _, c := range p.Info.Containers {
		if !c.Guaranteed && c.Kind != memoryqos.Ephemeral {
			return fmt.Sprintf(": its container %s (%s) %s", c.Name, c.Kind, cmp.Or(c.Lacks, "does not request and limit CPU and memory to the same"))
		}
	}
	return ""
}

// kind returns the container's role; see role.
func (c *container) kind() memoryqos.Kind { return c.pod.role(c.Name) }

// wishes returns what the pod's annotations wish for the container.
func (c *container) wishes() config.Wishes { return c.pod.wishesOf(c.Name) }

// role returns a container's role in its pod. NRI does not report it: without a pod API every container counts as an app container, so an
// init container keeps its allocation until its pod ends. With a pod API, see releaseInits.
func (p *pod) role(container string) memoryqos.Kind {
	if p.Info != nil {
		if spec, ok := p.Info.Container(container); ok {
			return spec.Kind
		}
	}
	return memoryqos.App
}
