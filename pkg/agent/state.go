package agent

import (
	"context"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// state is all that the agent's lock guards.
type state struct {
	resolved config.Resolved
	manager  *memorymanager.Manager // nil under the policy None
	runtime  Runtime
	apply    func(context.Context, []Update) error

	pods       map[string]*pod       // by UID
	living     []*pod                // the same, quick to run over
	values     []memoryqos.PodValues // of living, side by side in memory, to be summed up
	containers map[string]*container // by the runtime's id, those that have not ended
	stopped    recent                // ids of sandboxes that were stopped

	generation uint64   // moves with every change
	sums       uint64   // moves when the levels above the containers must change
	dirty      []*pod   // whose sums have changed since protect looked
	gone       []string // cgroups of pods that have ended since
	allDirty   bool     // all pods may have changed
	view       *picture // of generation; nil when there is none yet
	rejections []RejectionView
	anyShort   bool   // a container may be short
	fitted     uint64 // generation of the manager when short containers were last looked at

	connected, synchronized, configured condition
	storeError                          string // why there is no checkpoint
	lastCheckpointError                 string // told in the log
	protectFails                        bool   // told in the log

	sources []podinfo.Source  // estimates that the configuration allows
	revised map[string]bool   // UIDs of pods of whose requests more is known since Run looked
	kept    map[string]uint64 // raised memory.high values of the last start, by container id
	// raiseChanges counts what the file of raises has to follow.
	raiseChanges uint64
	batch        bool // the checkpoint is handed the whole state at the end
	next         int  // the pod whose containers Run checks next
}

func newState(resolved config.Resolved, now time.Time) state {
	s := state{
		resolved: resolved, sources: eventSources(resolved.Config),
		pods: map[string]*pod{}, containers: map[string]*container{}, revised: map[string]bool{},
	}
	s.connected.set(now, "not connected to a runtime yet")
	s.synchronized.set(now, "not synchronized with a runtime yet")
	s.configured.set(now, "")
	return s
}

// changed marks the state as another one than the last View shows.
func (s *state) changed() { s.generation++ }

// pod is a living pod.
type pod struct {
	Pod
	ref  podinfo.Ref
	born time.Time
	// path is empty and managed unset for a pod outside kubepods, which is left alone.
	path    cgroup.PodPath
	managed bool
	// seen is set once the pod's cgroup was there: when it is gone then, so is the pod.
	seen bool
	// fresh is set for a pod that began while this agent ran: nothing that its cgroup's files held before is ours.
	fresh bool
	// asked is set once the pod APIs were asked for the pod: they tell of its changes from then on.
	asked bool
	// info is what the pod APIs say; nil while none has.
	info   *podinfo.Pod
	source podinfo.Source
	// shared is set once it is found that containers have the pod's limit, while info is nil.
	shared bool
	// settings are the namespace's rules, annotated is set when the pod has any annotation of ours.
	settings  memoryqos.Settings
	rules     config.AnnotationRules
	annotated bool
	wishes    config.Wishes // of the pod itself
	problems  []config.Problem
	// overrides are the annotations' wishes for containers of the spec, as far as they have been read.
	overrides map[string]memoryqos.Overrides
	// aligned is set once the whole pod has its affinity (scope pod).
	aligned bool
	// containers are in the order of their first appearance.
	containers []*container
	// values are the pod cgroup's; dirty is set while protect has not seen them.
	values memoryqos.Values
	dirty  bool
	index  int // in living and values
	// ticket is the pod's last decision on its way to the disk.
	ticket checkpoint.Ticket
	view   *PodView // nil when it must be made again
}

// container is a container of a living pod. It outlives its end as long as it has a booking.
type container struct {
	id, name string
	pod      *pod
	kind     memoryqos.Kind
	state    State
	born     time.Time
	cgroup   string // "" when it cannot be told
	seen     bool   // its cgroup was there
	wishes   config.Wishes

	limit     uint64 // memory.max; 0 when there is none
	resources Resources
	request   podinfo.Estimate

	// wanted is what Memory QoS gives. given is what the container is believed to have, by our answers.
	wanted, given memoryqos.Values
	// before is what it had when an answer that lowers it went out; the levels above keep carrying it until the runtime
	// has applied the answer.
	before *memoryqos.Values
	// had are the files that held a value of ours at any time of the container's life.
	had struct{ min, low, high bool }
	// raised is the memory.high set by the stall guard; 0 when none.
	raised uint64
	// check asks Run to compare the container's files with what they should hold.
	check bool
	// held is set while a look at them waits for the calm after a repair to end.
	held bool
	// repaired is when they were last found otherwise.
	repaired time.Time

	cpus  nodeset.Set // NUMA nodes of its exclusive CPUs
	nodes nodeset.Set // its cpuset.mems, from us or from the kubelet; empty when not pinned
	// short is what a resize asks for beyond the allocation; nodes are all then. It follows from both and is not stored.
	short     memorymanager.Request
	refusal   *refusal // the last resize that was refused; nil when none was
	givenMems string   // the cpuset.mems that the container is believed to have
	byKubelet bool     // the kubelet has set nodes
	released  bool     // it had nodes from us and must not have them any more
	pinning   string   // how it got its nodes, or why it has none
}

// alive reports whether the container holds memory, or is about to.
func (c *container) alive() bool { return c.state.Alive() }

// ran reports whether the container has been started.
func (c *container) ran() bool { return c.state != Unknown && c.state != Created }

// high is the memory.high that should stand in the container's file.
func (c *container) high() *uint64 {
	if c.wanted.High != nil && c.raised > *c.wanted.High {
		raised := c.raised
		return &raised
	}
	return c.wanted.High
}

// effective are the values that should stand in the container's files.
func (c *container) effective() memoryqos.Values {
	return memoryqos.Values{Min: c.wanted.Min, Low: c.wanted.Low, High: c.high()}
}

// named finds a pod's container.
func (p *pod) named(name string) *container {
	for _, c := range p.containers {
		if c.name == name {
			return c
		}
	}
	return nil
}

// condition is a Condition in the making; it holds while its message is empty.
type condition struct {
	message string
	since   time.Time
}

func (c *condition) set(now time.Time, message string) {
	if c.since.IsZero() || (c.message == "") != (message == "") {
		c.since = now
	}
	c.message = message
}

func (c condition) named(name string) Condition {
	return Condition{Name: name, OK: c.message == "", Message: c.message, Since: c.since}
}

// recent remembers the last ids that were added.
type recent struct {
	ids  map[string]struct{}
	ring []string
	next int
}

// recentSize is more sandboxes than a node stops within the longest time that a handler can be late.
const recentSize = 1024

func (r *recent) add(id string) {
	if id == "" || r.has(id) {
		return
	}
	if r.ids == nil {
		r.ids, r.ring = map[string]struct{}{}, make([]string, recentSize)
	}
	delete(r.ids, r.ring[r.next])
	r.ring[r.next] = id
	r.ids[id] = struct{}{}
	r.next = (r.next + 1) % recentSize
}

func (r *recent) has(id string) bool {
	_, ok := r.ids[id]
	return ok
}
