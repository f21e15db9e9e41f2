package ledger

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// derived is what follows from the state of a pod. It never changes.
type derived struct {
	cgroup  string // "" for a pod that is left alone
	fresh   bool
	driver  cgroup.Driver
	values  memoryqos.Values // desired for the pod's cgroup
	runs    []derivedRun     // of its containers, in their order
	members memoryqos.PodValues
}

// derivedRun is what follows for one container.
type derivedRun struct {
	id, cgroup string // of one that lives
	asked      asked
	kind       memoryqos.Kind
	request    pods.Estimate
	qos        memoryqos.Values // what Memory QoS gives
	values     memoryqos.Values // what its files should hold: qos, with what the stall guard has raised
	mems       string           // the cpuset.mems that it should have from us; "" leaves it alone
	oomGroup   string           // the memory.oom.group that the kubelet wants; "" is not known
	byRuntime  bool
	watched    watched
	// ours is set once a file of it has held, or was to hold, a value of ours.
	ours bool
}

// asked is what a container's request follows from that is its own: where it stays, another request is a correction.
type asked struct {
	revision, limit uint64
}

// watched is what the stall guard goes by; zero for a container without a memory.high of ours.
type watched struct {
	id          string
	high, limit uint64
	request     uint64 // or memory.min or memory.low where that is more
	off         bool
	cacheRoom   bool
}

// derive computes all that follows from a pod's state, the configuration, the machine and the resource claims.
func (l *Ledger) derive(p *pod) *derived {
	d := &derived{runs: make([]derivedRun, len(p.containers))}
	for i, c := range p.containers {
		d.runs[i] = l.deriveRun(c)
	}
	if p.managed {
		d.cgroup, d.driver, d.fresh = p.path.Pod, p.path.Driver, p.Fresh
		d.values = p.settings.Pod(l.sums(p, d.runs))
		d.members = memoryqos.PodValues{Class: p.class(), System: p.path.System() != "", Values: d.values}
	}
	return d
}

func (l *Ledger) deriveRun(c *container) derivedRun {
	r := derivedRun{kind: c.kind(), request: l.estimate(c), asked: asked{c.Revision, c.Limit}, oomGroup: c.Resources.OOMGroup}
	qos, overrides := l.forQoS(c, r.request)
	r.qos = c.pod.settings.Container(qos, overrides)
	if c.Phase == Creating && c.Resources.OOMGroup == "" {
		r.qos.OOMGroup = nil // what the kubelet wants there is not known before the runtime has written it
	}
	r.values = raised(r.qos, c.Raised)
	if !c.alive() {
		return r
	}
	r.id, r.cgroup, r.mems = c.ID, c.Cgroup, l.mems(c)
	r.byRuntime = c.Phase == Creating || c.Pending != nil
	if c.Phase != Creating && r.qos.High != nil && c.Cgroup != "" {
		r.watched = watched{c.ID, *r.qos.High, c.Limit, r.qos.Promised(r.request.Request), l.guardOff(c), c.pod.settings.IsCacheRoom(qos, overrides)}
	}
	return r
}

// forQoS is the container as the rules of Memory QoS see it. Where the stall guard is off, a heap that needs its whole limit would
// make no progress below it, so no room is left for page cache.
func (l *Ledger) forQoS(c *container, request pods.Estimate) (memoryqos.Container, memoryqos.Overrides) {
	overrides := c.wishes().QoS
	overrides.Own = c.Own
	if l.guardOff(c) {
		overrides.CacheRoom = new(float64)
	}
	return memoryqos.Container{
		Class: c.pod.class(), Request: request.Request, RequestError: request.Error, Limit: c.Limit, OwnLimit: c.ownLimit(),
	}, overrides
}

// raised are values with the memory.high that the stall guard has set, where that is more.
func raised(values memoryqos.Values, high uint64) memoryqos.Values {
	if values.High != nil && high > *values.High {
		values.High = &high
	}
	return values
}

// ownLimit is the limit in the container's spec where the event may show another; nil where the event's is the container's own, or
// the spec is not known. In a pod with resources of its own the event of a container without a limit shows the pod's, and claimed
// memory is part of the limit that it shows.
func (c *container) ownLimit() *uint64 {
	if c.pod.Info == nil || !c.pod.Info.OwnMemory() {
		return nil
	}
	spec, known := c.pod.Info.Container(c.Name)
	if !known {
		return nil
	}
	return &spec.Limit
}

// sums is the pod as the rules of Memory QoS see it.
func (l *Ledger) sums(p *pod, runs []derivedRun) memoryqos.Pod {
	sums := memoryqos.Pod{Class: p.class(), Overhead: p.Overhead, Overrides: p.wishesOf("").QoS, Containers: p.parts(runs)}
	if p.Info != nil {
		sums.Overhead = p.Info.Overhead
		sums.Claimed = p.Info.Claimed
		sums.PodRequest, sums.PodLimit = p.Info.PodRequest, p.Info.PodLimit
		return sums
	}
	sums.CgroupLimit = p.MemoryLimit
	if limit := p.sharedLimit(); limit > 0 { // what limits a Guaranteed pod is what it asks for
		sums.PodRequest = &limit
	}
	return sums
}

// parts are the containers that count for the pod's cgroup: all of the spec, in its order, where a pod API has provided it,
// and those that live and are not in it.
func (p *pod) parts(runs []derivedRun) []memoryqos.PodContainer {
	parts := make([]memoryqos.PodContainer, 0, len(p.containers))
	listed := func(string) bool { return false }
	if p.Info != nil {
		living := make(map[string]int, len(p.containers))
		for i, c := range p.containers {
			if c.alive() {
				living[c.Name] = i
			}
		}
		for _, spec := range p.Info.Containers {
			if i, lives := living[spec.Name]; lives {
				parts = append(parts, p.containers[i].part(spec.Kind, &runs[i]))
				continue
			}
			parts = append(parts, memoryqos.PodContainer{
				Kind: spec.Kind, Request: spec.Request, Limit: spec.Limit, Claimed: spec.Claimed,
				Overrides: p.wishesOf(spec.Name).QoS,
			})
		}
		listed = p.knows
	}
	for i, c := range p.containers {
		if c.alive() && !listed(c.Name) {
			parts = append(parts, c.part(runs[i].kind, &runs[i]))
		}
	}
	return parts
}

// part is a living container as a part of its pod's sums.
func (c *container) part(kind memoryqos.Kind, r *derivedRun) memoryqos.PodContainer {
	values := c.promised(r.qos)
	return memoryqos.PodContainer{Kind: kind, Request: r.request.Request, Limit: c.Limit, Values: &values}
}

// promised is what the parent cgroups must carry for a container: what it should have, and until the end of an update that
// lowers it, what it had.
func (c *container) promised(qos memoryqos.Values) memoryqos.Values {
	if c.Pending == nil || c.Pending.Before == nil {
		return qos
	}
	before := c.Pending.Before
	return memoryqos.Values{Min: larger(qos.Min, before.Min), Low: larger(qos.Low, before.Low)}
}

func larger(a, b *uint64) *uint64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

func same(a, b memoryqos.Values) bool {
	return equal(a.Min, b.Min) && equal(a.Low, b.Low) && equal(a.High, b.High) && equal(a.OOMGroup, b.OOMGroup)
}

func equal(a, b *uint64) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// target is what the pod's cgroup should hold.
func (d *derived) target() cgroup.Target {
	return cgroup.Target{Cgroup: d.cgroup, Level: cgroup.LevelPod, Driver: d.driver, Values: d.values, Fresh: d.fresh}
}

// target is what a container's files should hold. What the runtime is about to write, because it is in the answer to it, is
// left to the runtime.
func (r *derivedRun) target(driver cgroup.Driver) cgroup.Target {
	return cgroup.Target{
		Cgroup: r.cgroup, Level: cgroup.LevelContainer, Driver: driver, Values: r.values, Mems: r.mems, ByRuntime: r.byRuntime,
	}
}
