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

// knows reports whether a pod API has this container. A pod gets ephemeral containers later.
func (p *pod) knows(container string) bool {
	if p.Info == nil {
		return false
	}
	_, ok := p.Info.Container(container)
	return ok
}

// PodFacts are the newest that the pod APIs know of a pod.
type PodFacts struct {
	UID   string // Pod.Key
	Known pods.Answer
}

func (e PodFacts) apply(l *Ledger) {
	if p := l.pods[e.UID]; p != nil && p.managed && p.isNew(e.Known) {
		l.learn(l.change(p), e.Known)
	}
}

// isNew reports whether the pod APIs know something else of a pod than before.
func (p *pod) isNew(known pods.Answer) bool {
	return known.Pod != nil && p.Info != known.Pod && (p.Source != known.Source || !reflect.DeepEqual(p.Info, known.Pod))
}

// learn takes what the pod APIs know. It holds for all containers of the pod, running ones included.
func (l *Ledger) learn(p *pod, known pods.Answer) {
	if !p.isNew(known) {
		return
	}
	podLevel := p.podLevel() // which may have been found by comparing limits
	p.Info, p.Source, p.Shared = known.Pod, known.Source, false
	l.learnRoles(p)
	l.annotations(p)
	if podLevel || p.podLevel() {
		l.reallocatePod(p)
	}
}

// learnRoles tells the memory manager the roles of a pod's containers.
func (l *Ledger) learnRoles(p *pod) {
	if l.manager != nil && p.Info != nil {
		l.manager.SetRoles(p.key(), p.role)
	}
}

// request is what a Guaranteed container asks for: its own memory limit, which equals its request, and its huge pages. Under
// pod-level resources it is what the container asks for by itself, because the limit may be its pod's. Memory from resource
// claims is placed by their driver.
func request(c *container) memorymanager.Request {
	if p := c.pod; p.Info != nil && p.Info.PodLevel() {
		spec, _ := p.Info.Container(c.Name)
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

// withMemory adds bytes of ordinary memory to a request for huge pages, and sorts it.
func withMemory(pages memorymanager.Request, bytes uint64) memorymanager.Request {
	if bytes > 0 {
		pages = append(pages, memorymanager.Amount{Type: memorymanager.Memory, Bytes: bytes})
	}
	slices.SortFunc(pages, func(a, b memorymanager.Amount) int { return cmp.Compare(a.Type, b.Type) })
	return pages
}

// pageSize reads a huge page size as CRI and OCI write it: "64KB", "2MB", "1GB".
func pageSize(text string) (bytes uint64, ok bool) {
	for unit, shift := range map[string]int{"KB": 10, "MB": 20, "GB": 30} {
		if digits, found := strings.CutSuffix(text, unit); found {
			n, err := strconv.ParseUint(digits, 10, 20)
			return n << shift, err == nil && n > 0
		}
	}
	return 0, false
}

// pagesToVerify are the sizes, in bytes, of the huge pages that a container asks for and that the kernel must have free before it
// is created; nil where nothing is verified.
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

// estimate is the container's memory request from the best source. During a resize the pod APIs can be behind the event:
// their old request, within the new limit, is still nearer than an estimate from the values of the creation, and they
// have the new one soon.
func (l *Ledger) estimate(c *container) pods.Estimate {
	if claimed, known := l.claimedEstimate(c); known {
		return claimed
	}
	p := c.pod
	if p.Info != nil && (p.class() != memoryqos.Guaranteed || c.Limit == 0 || p.Info.OwnMemory()) {
		if known, ok := (pods.Answer{Pod: p.Info, Source: p.Source}).Estimate(c.Name); ok {
			if c.Limit > 0 {
				known.Request = min(known.Request, c.Limit)
			}
			return known
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

// sharedLimit is the limit that the containers of a pod share, 0 when it is not known that they do.
func (p *pod) sharedLimit() uint64 {
	if p.Shared && p.Info == nil {
		return p.MemoryLimit
	}
	return 0
}

// findShared finds out whether the containers of a pod share its limit, and places them anew where that has changed.
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

// sharing reports whether it has changed that the containers of a Guaranteed pod whose spec is not known share its limit: one has all of
// it, and another one is there with it. Where each has a limit of its own, these add up to the pod's. Anything else says nothing: containers
// come and go, and the limits of a container and its pod are not changed at one moment. next is a container as it would be, nil for none.
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
		if c.alive() && c.Limit > 0 && (c.There || c.Phase == Creating) {
			limited = append(limited, c)
			sum += min(c.Limit, ^uint64(0)-sum)
			whole = whole || c.LimitIsPods
		}
	}
	return limited, len(limited) > 1 && whole != p.Shared && (whole || sum == p.MemoryLimit)
}

// compareLimits compares the limits of a pod's containers with the pod's, which was just said, but for those that are being changed.
func (p *pod) compareLimits() {
	for _, c := range p.containers {
		if c.Pending == nil {
			c.LimitIsPods = c.hasPodLimit()
		}
	}
}

// hasPodLimit reports whether a container's limit is all of its pod's.
func (c *container) hasPodLimit() bool {
	return c.Limit > 0 && c.pod.MemoryLimit > 0 && c.Limit >= c.pod.MemoryLimit
}

// seeContainers takes what was found at the cgroups of containers.
func (l *Ledger) seeContainers(siblings Presence) {
	for _, at := range siblings.There {
		if c := l.containers[at.ID]; c != nil {
			c.Seen, c.There = true, true
		}
	}
	for _, at := range siblings.Gone {
		if c := l.containers[at.ID]; c != nil && c.Revision == at.Revision {
			c.There = false
		}
	}
}

func (p *pod) class() memoryqos.QOSClass { return p.path.Class }

// whyNotGuaranteed names the first container that keeps a Burstable pod from being Guaranteed, where its spec is known.
func (p *pod) whyNotGuaranteed() string {
	if p.class() != memoryqos.Burstable || p.Info == nil || p.Info.PodLevel() {
		return ""
	}
	for _, c := range p.Info.Containers {
		if !c.Guaranteed && c.Kind != memoryqos.Ephemeral {
			return fmt.Sprintf(": its container %s (%s) does not request and limit CPU and memory to the same", c.Name, c.Kind)
		}
	}
	return ""
}

// kind is the container's role; see role.
func (c *container) kind() memoryqos.Kind { return c.pod.role(c.Name) }

// wishes are what the annotations of its pod wish for the container.
func (c *container) wishes() config.Wishes { return c.pod.wishesOf(c.Name) }

// role is how long the container runs within its pod. NRI does not say it: without a pod API every container counts as
// an app container, so that an init container's allocation stays until its pod ends. With one, see releaseInits.
func (p *pod) role(container string) memoryqos.Kind {
	if p.Info != nil {
		if spec, ok := p.Info.Container(container); ok {
			return spec.Kind
		}
	}
	return memoryqos.App
}
