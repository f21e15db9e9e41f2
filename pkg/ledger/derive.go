package ledger

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// derived is computed from the state of a pod, and never modified.
type derived struct {
	cgroup  string // "" for an unmanaged pod
	fresh   bool
	driver  cgroup.Driver
	values  memoryqos.Values // of the pod's cgroup
	runs    []derivedRun     // parallel to pod.containers
	members memoryqos.PodValues
}

// derivedRun is computed for one container.
type derivedRun struct {
	id, cgroup string // empty unless it lives
	basis      requestBasis
	kind       memoryqos.Kind
	request    pods.Estimate
	qos        memoryqos.Values // the result of Memory QoS
	values     memoryqos.Values // what its files should hold: qos with the stall guard's memory.high
	mems       string           // the cpuset.mems to set; "" does not set it
	oomGroup   string           // the memory.oom.group that the kubelet wants; "" if unknown
	byRuntime  bool
	guarded    HighContainer // without Raised; zero for a container whose memory.high this plugin does not set
	// written is set once a file of the container has held, or should have held, a value of this plugin.
	written bool
}

// requestBasis are the container's own inputs of its request. If the request changes and these do not, a better source has corrected it.
type requestBasis struct {
	revision, limit uint64
}

// derive computes everything that depends on a pod's state, the configuration, the machine and the resource claims.
func (l *Ledger) derive(p *pod) *derived {
	d := &derived{runs: make([]derivedRun, len(p.containers))}
	for i, c := range p.containers {
		d.runs[i] = l.deriveRun(c)
	}
	if p.managed {
		d.cgroup, d.driver, d.fresh = p.path.Pod, p.path.Driver, p.Fresh
		d.values = p.settings.Pod(l.qosPod(p, d.runs))
		d.members = memoryqos.PodValues{Class: p.class(), System: p.path.System() != "", Values: d.values}
	}
	return d
}

func (l *Ledger) deriveRun(c *container) derivedRun {
	r := derivedRun{kind: c.kind(), request: l.estimate(c), basis: requestBasis{c.Revision, c.Limit}, oomGroup: c.Resources.OOMGroup}
	qos, overrides := l.qosContainer(c, r.request)
	r.qos = c.pod.settings.Container(qos, overrides)
	if c.Phase == Creating && c.Resources.OOMGroup == "" {
		r.qos.OOMGroup = nil // the kubelet's value is unknown until the runtime has written it
	}
	r.values = raised(r.qos, c.Raised)
	if !c.alive() {
		return r
	}
	r.id, r.cgroup, r.mems = c.ID, c.Cgroup, l.mems(c)
	r.byRuntime = c.Phase == Creating || c.Pending != nil
	if c.Phase != Creating && r.qos.High != nil && c.Cgroup != "" {
		r.guarded = HighContainer{
			ID: c.ID, Name: c.Name, Namespace: c.pod.Namespace, PodName: c.pod.Name, Cgroup: c.Cgroup, High: *r.qos.High, Limit: c.Limit,
			Request: r.qos.Promised(r.request.Request), GuardOff: l.guardOff(c), CacheRoom: c.pod.settings.IsCacheRoom(qos, overrides),
		}
	}
	return r
}

// qosContainer returns a container as Memory QoS sees it. If the stall guard is off, no room is left for page cache: a heap that needs its
// whole limit could not grow beyond memory.high.
func (l *Ledger) qosContainer(c *container, request pods.Estimate) (memoryqos.Container, memoryqos.Overrides) {
	overrides := c.wishes().QoS
	overrides.Own = c.Own
	if l.guardOff(c) {
		overrides.CacheRoom = new(float64)
	}
	return memoryqos.Container{
		Class: c.pod.class(), Request: request.Request, RequestError: request.Error, Limit: c.Limit, OwnLimit: c.ownLimit(),
	}, overrides
}

// raised returns values with the memory.high that the stall guard has set, if that is higher.
func raised(values memoryqos.Values, high uint64) memoryqos.Values {
	if values.High != nil && high > *values.High {
		values.High = &high
	}
	return values
}

// ownLimit returns the memory limit of the container's spec, or nil if the event shows the same or the spec is unknown. In a pod with
// pod-level resources, the event of a container without a limit shows the pod's limit. The limit in an event also includes claimed memory.
func (c *container) ownLimit() *uint64 {
	if c.pod.Info == nil || !c.pod.Info.OwnMemory() {
		return nil
	}
	spec, ok := c.pod.Info.Container(c.Name)
	if !ok {
		return nil
	}
	return &spec.Limit
}

// qosPod returns a pod as Memory QoS sees it.
func (l *Ledger) qosPod(p *pod, runs []derivedRun) memoryqos.Pod {
	sums := memoryqos.Pod{Class: p.class(), Overhead: p.Overhead, Overrides: p.wishesOf("").QoS, Containers: l.qosPodContainers(p, runs)}
	if p.Info != nil {
		sums.Overhead = p.Info.Overhead
		sums.Claimed = p.Info.Claimed
		sums.PodRequest, sums.PodLimit = p.Info.PodRequest, p.Info.PodLimit
		return sums
	}
	sums.CgroupLimit = p.MemoryLimit
	if limit := p.sharedLimit(); limit > 0 { // a Guaranteed pod's request is its limit
		sums.PodRequest = &limit
	}
	return sums
}

// qosPodContainers returns the containers that count for the pod's cgroup: all of the spec, in its order, if a pod API has provided it,
// then the living containers that are not in the spec.
func (l *Ledger) qosPodContainers(p *pod, runs []derivedRun) []memoryqos.PodContainer {
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
				parts = append(parts, l.qosPodContainer(p.containers[i], spec.Kind, &runs[i]))
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
			parts = append(parts, l.qosPodContainer(c, runs[i].kind, &runs[i]))
		}
	}
	return parts
}

// qosPodContainer returns a living container as Memory QoS counts it for its pod.
func (l *Ledger) qosPodContainer(c *container, kind memoryqos.Kind, r *derivedRun) memoryqos.PodContainer {
	values := c.promised(r.qos)
	return memoryqos.PodContainer{Kind: kind, Request: r.request.Request, Limit: c.Limit, Mapped: l.mappedMemory(c), Values: &values}
}

// promised returns what the parent cgroups must carry for a container. While an update lowers its values, that is still the old ones.
func (c *container) promised(qos memoryqos.Values) memoryqos.Values {
	if c.Pending == nil || c.Pending.Before == nil {
		return qos
	}
	before := c.Pending.Before
	return memoryqos.Values{Min: largerValue(qos.Min, before.Min), Low: largerValue(qos.Low, before.Low)}
}

func largerValue(a, b *uint64) *uint64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

func sameValues(a, b memoryqos.Values) bool {
	return sameValue(a.Min, b.Min) && sameValue(a.Low, b.Low) && sameValue(a.High, b.High) && sameValue(a.OOMGroup, b.OOMGroup)
}

func sameValue(a, b *uint64) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// target returns what the pod's cgroup should hold.
func (d *derived) target() cgroup.Target {
	return cgroup.Target{Cgroup: d.cgroup, Level: cgroup.LevelPod, Driver: d.driver, Values: d.values, Fresh: d.fresh}
}

// target returns what a container's files should hold. Files that the runtime is about to write are left to it (ByRuntime).
func (r *derivedRun) target(driver cgroup.Driver) cgroup.Target {
	return cgroup.Target{
		Cgroup: r.cgroup, Level: cgroup.LevelContainer, Driver: driver, Values: r.values, Mems: r.mems, ByRuntime: r.byRuntime,
	}
}
