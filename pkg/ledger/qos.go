package ledger

import (
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// compute decides all about a container that follows from its resources and its pod: role, request, wishes and values.
func (l *Ledger) compute(c *container) {
	p := c.pod
	c.kind = p.role(c.name)
	c.wishes, _ = p.wishesFor(c.name)
	c.cpus = l.exclusiveCPUs(c)
	c.request = l.estimate(c)
	wanted := p.settings.Container(c.forQoS(), c.wishes.QoS)
	if !equal(wanted.High, c.wanted.High) {
		l.highChanged()
	}
	c.wanted = wanted
	if !c.off.Empty() && !l.excludable(c) {
		l.useAllNodes(c)
	}
}

// forQoS is the container as the rules of Memory QoS see it.
func (c *container) forQoS() memoryqos.Container {
	return memoryqos.Container{
		Class: c.pod.class(), Request: c.request.Request, RequestError: c.request.Error, Limit: c.limit, OwnLimit: c.ownLimit(),
	}
}

// ownLimit is the limit in the container's spec where the event may show another; nil where the event's is the container's own, or
// the spec is not known. In a pod with resources of its own the event of a container without a limit shows the pod's, and claimed
// memory is part of the limit that it shows.
func (c *container) ownLimit() *uint64 {
	if c.pod.info == nil || !c.pod.info.OwnMemory() {
		return nil
	}
	spec, known := c.pod.info.Container(c.name)
	if !known {
		return nil
	}
	return &spec.Limit
}

// sumUp derives the values of a pod's cgroup from its containers, and of the levels above from all pods.
func (l *Ledger) sumUp(p *pod) {
	sums := memoryqos.Pod{UID: p.UID, Class: p.class(), Overhead: p.Overhead, Overrides: p.wishes.QoS, Containers: p.parts()}
	if p.info != nil {
		sums.Overhead = p.info.Overhead
		sums.Claimed = p.info.Claimed
		sums.PodRequest, sums.PodLimit = p.info.PodRequest, p.info.PodLimit
	} else {
		sums.CgroupLimit = p.MemoryLimit
		if limit := p.sharedLimit(); limit > 0 { // what limits a Guaranteed pod is what it asks for
			sums.PodRequest = &limit
		}
	}
	values := p.settings.Pod(sums)
	if !same(values, p.values) {
		p.values = values
		l.values[p.index] = memoryqos.PodValues{Class: p.class(), System: p.path.System() != "", Values: values}
		l.sumChanged(p)
	}
	l.touch(p)
}

// parts are the containers that count for the pod's cgroup: all of the spec, in its order, where a pod API has provided it,
// and those that live and are not in it.
func (p *pod) parts() []memoryqos.PodContainer {
	parts := make([]memoryqos.PodContainer, 0, len(p.containers))
	if p.info != nil {
		for _, spec := range p.info.Containers {
			if c := p.named(spec.Name); c != nil && c.alive() {
				parts = append(parts, c.part(spec.Kind))
				continue
			}
			parts = append(parts, memoryqos.PodContainer{
				Name: spec.Name, Kind: spec.Kind, Request: spec.Request, Limit: spec.Limit, Claimed: spec.Claimed,
				Overrides: p.overridesFor(spec.Name),
			})
		}
	}
	for _, c := range p.containers {
		if c.alive() && !p.knows(c.name) {
			parts = append(parts, c.part(c.kind))
		}
	}
	return parts
}

// part is a living container as a part of its pod's sums.
func (c *container) part(kind memoryqos.Kind) memoryqos.PodContainer {
	values := c.promised()
	return memoryqos.PodContainer{Name: c.name, Kind: kind, Request: c.request.Request, Limit: c.limit, Values: &values}
}

// promised is what the levels above must carry for a container: what it should have, and until the end of an update that
// lowers it, what it had.
func (c *container) promised() memoryqos.Values {
	if c.before == nil {
		return c.wanted
	}
	return memoryqos.Values{Min: larger(c.wanted.Min, c.before.Min), Low: larger(c.wanted.Low, c.before.Low)}
}

func larger(a, b *uint64) *uint64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

func same(a, b memoryqos.Values) bool {
	return equal(a.Min, b.Min) && equal(a.Low, b.Low) && equal(a.High, b.High)
}

func equal(a, b *uint64) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// adjustment is what a new container gets.
func (c *container) adjustment() Adjustment {
	var adjustment Adjustment
	if !c.byKubelet {
		adjustment.CpusetMems = c.nodes.String()
	}
	adjustment.Unified = changes(memoryqos.Values{}, c.effective(), nil, fileSet{})
	return adjustment
}

// fileSet are some of the files of a container.
type fileSet struct{ min, low, high, mems bool }

// also adds the files of an adjustment.
func (f fileSet) also(a Adjustment) fileSet {
	has := func(knob cgroup.Knob) bool { _, there := a.Unified[string(knob)]; return there }
	return fileSet{
		f.min || has(cgroup.MemoryMin), f.low || has(cgroup.MemoryLow), f.high || has(cgroup.MemoryHigh), f.mems || a.CpusetMems != "",
	}
}

// changes are the files to be written so that a container that has given holds wanted. What shown (the unified map of a
// request) sets otherwise is set again, and so is what is unsure. nil when there are none.
func changes(given, wanted memoryqos.Values, shown map[string]string, unsure fileSet) map[string]string {
	var files map[string]string
	put := func(knob cgroup.Knob, given, wanted *uint64, unsure bool) {
		text := cgroup.Default(string(knob))
		if wanted != nil {
			text = cgroup.FormatLimit(*wanted)
		}
		other, set := shown[string(knob)]
		foreign := set && wanted != nil && other != text
		if equal(given, wanted) && !foreign && !unsure {
			return
		}
		if files == nil {
			files = make(map[string]string, 3)
		}
		files[string(knob)] = text
	}
	put(cgroup.MemoryMin, given.Min, wanted.Min, unsure.min)
	put(cgroup.MemoryLow, given.Low, wanted.Low, unsure.low)
	put(cgroup.MemoryHigh, given.High, wanted.High, unsure.high)
	return files
}

// journalFound has the journal know the values of a container that was found, also those that it has already: the journal
// may have been lost. For the same reason only what is not ours counts as the kubelet's.
func (l *Ledger) journalFound(c *container) {
	others := maps.Clone(c.resources.Unified)
	for _, values := range []memoryqos.Values{c.wanted, c.effective()} {
		for file, text := range changes(memoryqos.Values{}, values, nil, fileSet{}) {
			if others[file] == text {
				delete(others, file)
			}
		}
	}
	l.journal(c, c.adjustment(), others, nil)
}

// journal has the journal know what an answer or an update writes in a container's cgroup, so that rollback restores it.
// asked are the values that the kubelet wants there, where they are new to the journal; wanted replaces those.
func (l *Ledger) journal(c *container, adjustment Adjustment, asked, wanted map[string]string) {
	if c.cgroup == "" || adjustment.Empty() && len(wanted) == 0 {
		return
	}
	l.step.effects.Journal = append(l.step.effects.Journal, Journaled{
		Cgroup: c.cgroup, Adjustment: adjustment, Asked: asked, Wanted: wanted,
	})
}
