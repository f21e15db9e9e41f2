package ledger

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Files are the values in the files of a container's cgroup. A value that could not be read is nil.
type Files struct {
	// Min, Low, High and Limit are memory.min, memory.low, memory.high and memory.max in bytes; cgroup.Max is "max".
	Min, Low, High, Limit *uint64
	// Mems is cpuset.mems.
	Mems *string
	// Journaled are the files that the journal has for this cgroup: the runtime does not show the kubelet's values for them.
	Journaled map[cgroup.Knob]bool
	// Own is set if this process is in the cgroup.
	Own bool `json:",omitempty"`
	// Empty is set if the cgroup has no processes, as a gVisor container's, whose processes run in the sandbox.
	Empty bool `json:",omitempty"`
}

// Seen returns the values that were read from files that this plugin writes.
func (f *Files) Seen() cgroup.Seen {
	return cgroup.Seen{Values: memoryqos.Values{Min: f.Min, Low: f.Low, High: f.High}, Mems: f.Mems}
}

// CgroupRef refers to a pod or container at a revision, and to its cgroup.
type CgroupRef struct {
	// UID is a pod's Key, and ID its sandbox; a container has only an ID.
	UID, ID string
	// Cgroup is relative to the cgroup mount.
	Cgroup string
	// Revision is the revision of the pod or container when the reference was returned.
	Revision uint64
	// Files is set if memory.max has to be read: for a container that is not being created, and for a pod whose limit nothing else shows.
	Files bool
}

const (
	podsPerLook  = 50 // bounds the cost of a periodic look
	watchedLooks = 60 // ten minutes
)

// CgroupsDue returns what the periodic look with this number visits: managed pods and containers whose turn it is. One that was seen is
// visited only every watchedLooks looks if watched has its cgroup, where a new limit is reported, and the parent cgroup, where its removal is
// reported. Every look visits the pods without a sandbox.
func (l *Ledger) CgroupsDue(look int, watched map[string]bool) (refs []CgroupRef) {
	turns := 1 + len(l.living)/podsPerLook
	for _, p := range l.living {
		seldom, turn := (p.number+look)%watchedLooks == 0, (p.number+look)%turns == 0
		refs = p.refs(refs, func(seen bool, cgroup string) bool {
			return seldom || (turn || cgroup == p.path.Pod) && !(seen && watched[cgroup] && watched[path.Dir(cgroup)])
		})
	}
	return refs
}

// CgroupsOf returns the pods that have one of these cgroups, or a container that has one, and all containers of these pods.
func (l *Ledger) CgroupsOf(cgroups map[string]bool) (refs []CgroupRef) {
	looked := map[*pod]bool{}
	for _, dir := range slices.Sorted(maps.Keys(cgroups)) {
		p := cmp.Or(l.byCgroup[dir], l.byCgroup[path.Dir(dir)])
		if p != nil && !looked[p] {
			looked[p] = true
			refs = p.refs(refs, func(bool, string) bool { return true })
		}
	}
	return refs
}

// refs appends the containers that are due, and then the pod if it is due.
func (p *pod) refs(refs []CgroupRef, due func(seen bool, cgroup string) bool) []CgroupRef {
	for _, c := range p.containers {
		if c.alive() && c.Cgroup != "" && due(c.Seen, c.Cgroup) {
			refs = append(refs, c.ref())
		}
	}
	if p.managed && (p.ending() || due(p.Seen, p.path.Pod)) {
		ref := p.ref()
		ref.Files = p.Info == nil && p.class() == memoryqos.Guaranteed
		refs = append(refs, ref)
	}
	return refs
}

// CgroupOf returns where a container's files are; false if it does not live or has no cgroup.
func (l *Ledger) CgroupOf(id string) (CgroupRef, bool) {
	c := l.containers[id]
	if c == nil || c.Cgroup == "" {
		return CgroupRef{}, false
	}
	return c.ref(), true
}

func (p *pod) ref() CgroupRef {
	return CgroupRef{UID: p.Key(), ID: p.ID, Cgroup: p.path.Pod, Revision: p.Revision}
}

func (c *container) ref() CgroupRef {
	return CgroupRef{ID: c.ID, Cgroup: c.Cgroup, Revision: c.Revision, Files: c.Phase != Creating}
}

// How long a pod, or a container that does not run yet, may be without a cgroup. A container gets its cgroup when it starts. The kubelet
// gives the runtime two minutes each for a create and a start (runtimeRequestTimeout).
const (
	podGrace       = time.Minute
	containerGrace = 4 * time.Minute
)

// Presence says whether cgroups were present. One is in neither list if that could not be found out, for want of
// descriptors, memory or permissions. Gone is ignored for a container that the runtime has started or changed since.
type Presence struct {
	Present, Gone []CgroupRef
}

// apply frees pods and ends containers whose cgroups are gone. After its own restart containerd sends no StopPodSandbox and no
// RemovePodSandbox for the sandboxes that it found. CRI-O sends no StopContainer for a container that died meanwhile. A container that runs
// and never had a cgroup is one of a virtual machine, and ends with its pod.
func (e Presence) apply(l *Ledger) {
	for _, ref := range e.Present {
		if p := l.pods[ref.UID]; p != nil && p.ID == ref.ID {
			p.Seen = true
		}
	}
	l.recordPresence(e)
	for _, ref := range e.Gone {
		p, c := l.pods[ref.UID], l.containers[ref.ID]
		switch {
		case p != nil && p.ID == ref.ID: // the pod has no other sandbox by now
			ending := p.ending()
			if ending || p.Seen || l.step.now.Sub(p.Born) > podGrace {
				l.note(Info, "the pod's cgroup is gone: what it had is free", p.fields(), nil)
				if !ending {
					l.state.Counters.Forgotten++
				}
				l.state.StoppedSandboxes.add(p.ID, l.state.Newest)
				l.endPod(p)
			}
		case ref.UID == "" && c != nil && c.Revision == ref.Revision && (c.Seen || !c.ran() && l.step.now.Sub(c.Born) > containerGrace):
			l.state.EndedContainers.add(c.ID, l.state.Newest)
			l.end(l.changeContainer(c.ID))
			l.dropSlot(c)
		}
	}
}

// Observed is the memory.max in the file of a container or, with a UID, of a pod.
type Observed struct {
	// UID and ID are CgroupRef's.
	UID, ID string
	// Revision is CgroupRef's: the limit is ignored if the runtime has changed the pod or container since.
	Revision uint64
	// Limit is in bytes, a pod's with its overhead; cgroup.Max for "max".
	Limit uint64
	// Own is set if this process was found in the container's cgroup.
	Own bool `json:",omitempty"`
}

// updateTakes is how long the runtime may take to apply an update; until then the files may show the old values.
const updateTakes = 10 * time.Second

// apply takes over the limit in the kernel. If it is not the last requested one, the update failed, or it was made while no plugin was
// connected.
func (e Observed) apply(l *Ledger) {
	if e.UID != "" {
		l.observePod(e)
		return
	}
	c := l.containers[e.ID]
	if c != nil && e.Own {
		l.change(c.pod)
		c.Own = true
	}
	if c == nil || c.Revision != e.Revision || c.Phase == Creating {
		return
	}
	if c.Pending != nil {
		if l.step.now.Sub(c.Pending.Since) < updateTakes && !memoryqos.Holds(e.Limit, c.Limit, l.page()) {
			return // the runtime has not applied the update yet
		}
		l.change(c.pod)
		c.Pending = nil
		l.journalRecord(c)
	}
	if !l.observeLimit(c, &e.Limit) {
		return
	}
	l.change(c.pod)
	l.findShared(c.pod)
	if l.unpinnable(c) == "" {
		l.assign(c, l.fit(c))
	}
}

// observePod takes over the pod limit that the kubelet has written. The exact limit is kept if the file shows it rounded to a page.
func (l *Ledger) observePod(e Observed) {
	p := l.pods[e.UID]
	if p == nil || p.ID != e.ID || p.Revision != e.Revision || p.Info != nil || e.Limit == cgroup.Max || memoryqos.Holds(e.Limit, p.MemoryLimit+p.Overhead, l.page()) {
		return
	}
	l.change(p)
	p.setLimit(e.Limit - min(e.Limit, p.Overhead))
	p.compareLimits()
	l.findShared(p)
}

// applyTo replaces values by those that were read.
func (f *Files) applyTo(values memoryqos.Values) memoryqos.Values {
	read := func(value *uint64, initial uint64, unread *uint64) *uint64 {
		switch {
		case value == nil:
			return unread
		case *value == initial:
			return nil
		}
		return value
	}
	return memoryqos.Values{
		Min: read(f.Min, 0, values.Min), Low: read(f.Low, 0, values.Low), High: read(f.High, cgroup.Max, values.High),
	}
}

func (l *Ledger) page() uint64 { return uint64(l.state.Resolved.Machine.PageSize) }

// observeLimit takes over the limit in memory.max, and reports whether it has changed. The kubelet's exact limit is kept if the file shows
// it rounded to a page. "max" changes nothing: the kubelet never removes the limit of a running container, and some runtimes limit only the
// pod.
func (l *Ledger) observeLimit(c *container, shows *uint64) bool {
	if shows == nil || *shows == cgroup.Max || c.Limit > 0 && memoryqos.Holds(*shows, c.Limit, l.page()) {
		return false
	}
	limit := *shows
	for _, earlier := range c.Earlier {
		if earlier > 0 && memoryqos.Holds(limit, earlier, l.page()) {
			limit = earlier
			break
		}
	}
	before := c.Limit
	c.setLimit(limit)
	value := int64(min(limit, 1<<62))
	c.Resources.MemoryLimit = &value
	l.note(Info, "the container's memory limit is another one than the last update asked for",
		withField(withField(l.fields(c), "limit", c.Limit), "before", before), nil)
	return true
}
