package ledger

import (
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// pod is a living pod.
type pod struct {
	Pod
	ref  pods.Ref
	born time.Time
	// sandboxes are those that have not ended, in the order of their arrival. Pod.ID is one of them.
	sandboxes []string
	// path is where its cgroup is; it is empty, and managed unset, for a pod outside kubepods, which is left alone.
	path    cgroup.PodPath
	managed bool
	// seen is set once its cgroup was observed: when that is gone later, so is the pod.
	seen bool
	// seq is that of the newest event that has said what its sandbox or its limits are (Header.Seq).
	seq uint64
	// fresh is set for a pod that began while this ledger ran: nothing that its cgroup's files held before is ours.
	fresh bool

	// info is what the pod APIs say, and source which of them; nil while none has.
	info   *pods.Pod
	source memoryqos.Source
	// shared is set once it is found, without info, that its containers share the pod's limit.
	shared bool

	// brought is what the annotations say: it is read once for each sandbox, and never nil.
	brought *Brought
	// settings, rules, wishes and problems follow from the configuration and from brought.
	settings memoryqos.Settings
	rules    config.AnnotationRules
	wishes   config.Wishes
	problems []config.Problem
	// overrides are the annotations' wishes for containers of the spec, as far as they have been found.
	overrides map[string]memoryqos.Overrides

	// containers are in the order of their first appearance; ended ones stay while they have an allocation.
	containers []*container
	// users are the living containers by the parts of claims that they name.
	users map[claims.Ref][]*container
	// values are desired for the pod's cgroup: they always follow from what is above and from the containers.
	values  memoryqos.Values
	dirty   bool // is in step.dirty
	touched bool // is in step.touched
	index   int  // in Ledger.living and Ledger.values
	view    *PodView
}

// key is the pod's UID; pods that no kubelet made may have none.
func (p *pod) key() string { return p.Key() }

// container is a container of a living pod. It outlives its end as long as it has an allocation.
type container struct {
	id, name string
	pod      *pod
	state    State
	born     time.Time
	cgroup   string // "" when it cannot be determined
	seen     bool   // its cgroup was observed
	revision uint64 // moves when the runtime changes the container: an older observation says nothing about it
	seq      uint64 // of the newest event that has decided about it (Header.Seq)

	// resources are what the kubelet asks for, limit is their memory limit (0: none).
	resources Resources
	limit     uint64
	// earlier are the limits before it, the newest first: the updates since may all have failed. A kernel file shows any of them
	// rounded to a page.
	earlier [4]uint64
	// limitIsPods is set where the limit was all of the pod's when both were said, and there where the last look at its cgroup found it:
	// see findShared.
	limitIsPods, there bool
	// updating is when an update of the kubelet's was answered whose end has not been observed; zero otherwise.
	updating time.Time

	// claims are the parts of resource claims that it uses; nil unless the configuration enables them. Of a container that names too
	// many none is kept, and tooManyClaims is set.
	claims        []claims.Ref
	tooManyClaims bool

	// kind, wishes, request, cpus and wanted follow from resources, the pod and the configuration.
	kind    memoryqos.Kind
	wishes  config.Wishes
	request pods.Estimate
	cpus    nodeset.Set // the NUMA nodes of its exclusive CPUs
	devices []topologymanager.Device
	wanted  memoryqos.Values // what Memory QoS gives
	// raised is the memory.high set by the stall guard; 0 when none.
	raised uint64
	// target is what its files should hold, as the driver has it; it follows from the above and from mems. The zero value
	// is a container in whose files nothing of ours is, or ever was.
	target cgroup.Target
	// ours is set once a file has held, or was to hold, a value of ours.
	ours bool
	// oursMems is set once cpuset.mems was given to it by this plugin. Nodes that it has from somebody else are not taken away.
	oursMems bool

	// given and givenMems are what the runtime has in its own record of the container: by our answers, and by what it
	// shows. It writes them again at its next update of the container, whatever the files hold meanwhile.
	given     memoryqos.Values
	givenMems string
	// unsure are the files of which the record may be another: they were in an update whose success the runtime has not
	// reported. The answer to the next one has them again.
	unsure fileSet
	// again is set when the runtime is to be asked again for what is unsure.
	again bool
	// foundMems is the cpuset.mems that was observed when the container was taken over.
	foundMems string
	// before is what the files held when the runtime was answered with something else: the levels above carry the larger
	// until the end of the update is observed. nil outside of updates.
	before *memoryqos.Values

	// nodes is the cpuset.mems that is desired, by us or by the kubelet; empty when not pinned.
	nodes nodeset.Set
	// short is what a resize asks for beyond the allocation; nodes are all then. It follows from both and is not stored.
	short     memorymanager.Request
	refusal   *refusal // the last resize that was refused; nil when none was
	byKubelet bool     // the kubelet has set nodes
	released  bool     // it had nodes from us and must not have them any more
	pinning   string   // how it got its nodes, or why it has none
	// off are the nodes that it is kept off because they owed more than they had, offBytes what it had mapped there, and offSince
	// the last time that memory was moved.
	off      nodeset.Set
	offBytes uint64
	offSince time.Time
	// memoryPolicy is that of its process and policySource what it follows from, noPolicy why it has none although it should.
	memoryPolicy MemoryPolicy
	policySource string
	noPolicy     string
	// unplaced is why it has no nodes although it asked for some; nil when it has, or may not have any.
	unplaced *Rejection
	// moved is why it was moved to other nodes since, and movedTo to which.
	moved   string
	movedTo nodeset.Set
}

// alive reports whether the container holds memory, or is about to.
func (c *container) alive() bool { return c.state.Alive() }

// ran reports whether the container has been started.
func (c *container) ran() bool { return c.state == Running || c.state == Paused }

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

// setLimit gives a container another limit.
func (c *container) setLimit(limit uint64) {
	if limit != c.limit {
		copy(c.earlier[1:], c.earlier[:])
		c.earlier[0], c.limit = c.limit, limit
	}
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

// recent remembers the last ids that were added, each with the Header.Seq of the event that it was added by.
type recent struct {
	ids  map[string]uint64
	ring []string
	next int
}

// recentSize is more sandboxes, and more containers, than a node stops within the longest time that a handler can be late.
const recentSize = 1024

func (r *recent) add(id string, seq uint64) {
	if id == "" || r.has(id) {
		return
	}
	if r.ids == nil {
		r.ids, r.ring = map[string]uint64{}, make([]string, recentSize)
	}
	delete(r.ids, r.ring[r.next])
	r.ring[r.next] = id
	r.ids[id] = seq
	r.next = (r.next + 1) % recentSize
}

func (r *recent) has(id string) bool {
	_, ok := r.ids[id]
	return ok
}

// at is the Seq with which an id was added; 0 for one that was not.
func (r *recent) at(id string) uint64 { return r.ids[id] }
