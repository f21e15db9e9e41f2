package ledger

import (
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// State is all that a ledger remembers: facts, which are the newest that the runtime, the pod APIs, the kernel and the administrator
// have said, and decisions, which do not follow from them. Everything else is derived (derive.go). It is plain data, and
// encoding/json writes and reads it; ledgers with equal States behave alike.
type State struct {
	// Resolved is the configuration in force on the machine as read last. Its JSON has these two, which all else of it follows from.
	Resolved config.Resolved

	// Runtime is the one connected last, and Epoch the number of the connection; 0 when there is none.
	Runtime Runtime
	Epoch   uint64
	// Newest is the highest Header.Seq so far.
	Newest uint64

	// Pods are the living ones, in no order.
	Pods []*PodState
	// Parents are the cgroups above managed pods, those that have ended included until the next full pass.
	Parents []Parents
	// Claims are all that have an allocation, by UID.
	Claims claims.Prepared `json:",omitempty"`
	// Raises are memory.high values that the stall guard had set when the plugin ended, by the ids of containers that have not been
	// seen yet, in bytes.
	Raises map[string]uint64 `json:",omitempty"`
	// StoppedSandboxes and EndedContainers are the last ones: a late event of theirs brings nothing back.
	StoppedSandboxes, EndedContainers Recent

	// Allocations are the memory manager's; nil under the policy None. They are filled in by Ledger.Snapshot.
	Allocations *memorymanager.Snapshot `json:",omitempty"`

	// NodeMemory is what is unused and available on the NUMA nodes, as sampled last.
	NodeMemory []deficit.Node `json:",omitempty"`

	Rejections []Rejection `json:",omitempty"`
	Counters   Counters
	// Connected, Synchronized and Configured are conditions of readiness.
	Connected, Synchronized, Configured Standing
}

// PodState is a living pod.
type PodState struct {
	// Pod is its sandbox as the runtime named it last; Annotations are read once for each sandbox.
	Pod
	Born time.Time
	// Sandboxes are those that have not ended, in the order of their arrival. A pod without one ends with its cgroup.
	Sandboxes []string
	// Seen is set once its cgroup was observed: when that is gone later, so is the pod.
	Seen bool `json:",omitempty"`
	// Seq is that of the newest event that has said what its sandbox or its limits are (Header.Seq).
	Seq uint64 `json:",omitempty"`
	// Revision moves with what its sandbox or its limits are: an older observation says nothing about them.
	Revision uint64 `json:",omitempty"`
	// Fresh is set for a pod that began while the plugin ran: nothing that its cgroup's files held before is ours.
	Fresh bool `json:",omitempty"`
	// Info is what the pod APIs say, and Source which of them; nil while none has.
	Info   *pods.Pod `json:",omitempty"`
	Source memoryqos.Source
	// Shared is set once it is found, without Info, that its containers share the pod's limit.
	Shared bool `json:",omitempty"`
	// Slots are its containers in the order of their first appearance; ended ones stay while they have an allocation.
	Slots []*Slot
}

// Slot is a container of a pod by its name. It outlives its runs: what it has here stays when the container is started again.
type Slot struct {
	Name string
	Placement
	Run
}

// Placement is where a container should have its memory. Only Ledger.assign writes that of a container.
type Placement struct {
	// Nodes is the cpuset.mems that is desired, by us or by the kubelet; empty when not pinned.
	Nodes nodeset.Set `json:",omitempty"`
	// ByKubelet is set where the kubelet has set Nodes.
	ByKubelet bool `json:",omitempty"`
	// PendingResize is what a resize asks for beyond the allocation; Nodes are all then.
	PendingResize memorymanager.Request `json:",omitempty"`
	// Pinning says how it got its nodes, or why it has none.
	Pinning string
	// Unplaced is why it has no nodes although it asked for some; nil when it has, or may not have any.
	Unplaced *Rejection `json:",omitempty"`
	// Refusal is the last resize that was refused; nil when none was.
	Refusal *Refusal `json:",omitempty"`
}

// Run is a container as the runtime knows it, from its creation to its end. A container that is started again is another Run, in
// which nothing of the last one is left.
type Run struct {
	// ID is the runtime's; every run has another one.
	ID    string
	Phase Phase
	Born  time.Time
	// Cgroup is relative to the cgroup mount; "" when it cannot be determined.
	Cgroup string
	// Seen is set once its cgroup was observed, and There where the last look found it.
	Seen  bool `json:",omitempty"`
	There bool `json:",omitempty"`
	// Unanswered is set where it was created without an answer of ours: nothing of ours was there when it was found.
	Unanswered bool `json:",omitempty"`
	// Revision moves when the runtime starts or changes the container: an older observation says nothing about it.
	Revision uint64
	// Seq is that of the newest event that has decided about it (Header.Seq).
	Seq uint64 `json:",omitempty"`

	// Own is set where this process runs in it.
	Own bool `json:",omitempty"`
	// Resources are what the kubelet asks for, and Limit is their memory limit in bytes (0: none).
	Resources Resources
	Limit     uint64
	// Earlier are the limits before it, the newest first: the updates since may all have failed. A kernel file shows any of them
	// rounded to a page.
	Earlier [4]uint64
	// LimitIsPods is set where the limit was all of the pod's when both were said: see findShared.
	LimitIsPods bool `json:",omitempty"`
	// CPUNodes are the NUMA nodes of its exclusive CPUs. That is judged when CPUs are named: it takes other containers' CPUs into account.
	CPUNodes nodeset.Set              `json:",omitempty"`
	Devices  []topologymanager.Device `json:",omitempty"`
	// Claims are the parts of resource claims that it names; nil unless the configuration enables them. Of a container that names too
	// many none is kept, and TooManyClaims is set. HasClaims is set once it has been given all that it names.
	Claims        []claims.Ref `json:",omitempty"`
	TooManyClaims bool         `json:",omitempty"`
	HasClaims     bool         `json:",omitempty"`

	// Pending is an update of the kubelet's that was answered and whose end has not been observed; nil outside of updates.
	Pending *Pending `json:",omitempty"`
	Record  Record
	// FoundMems is the cpuset.mems that was observed when the container was found, or was given to it since.
	FoundMems string `json:",omitempty"`
	// Released is set where it had nodes from us and must not have them any more.
	Released bool `json:",omitempty"`
	// Raised is the memory.high set by the stall guard; 0 when none.
	Raised uint64 `json:",omitempty"`
	Policy Policy
}

// Pending is an update between its answer and its end.
type Pending struct {
	Since time.Time
	// Before is what the files held: the parent cgroups carry the larger of both. nil where nothing of ours has changed.
	Before *memoryqos.Values `json:",omitempty"`
}

// Record is what the runtime has in its own record of a container, by our answers and by what it shows. It writes that again at its next
// update of the container, whatever the files hold meanwhile.
type Record struct {
	Values memoryqos.Values
	Mems   string `json:",omitempty"`
	// Unsure are the files of which the record may be another: they were in an update whose success the runtime has not
	// reported. The answer to the next one has them again.
	Unsure FileSet
	// Resend is set when the runtime is to be asked again for what is unsure.
	Resend bool `json:",omitempty"`
	// Ours is set once a file of the container has held, or was to hold, a value of ours, and OursMems where cpuset.mems has. Nodes that
	// it has from somebody else are not taken away.
	Ours     bool `json:",omitempty"`
	OursMems bool `json:",omitempty"`
}

// Policy is the memory policy with which a container's process was started.
type Policy struct {
	MemoryPolicy MemoryPolicy
	// From says what it follows from, Without why there is none although there should be.
	From    string `json:",omitempty"`
	Without string `json:",omitempty"`
}

// Standing is a Condition in the making; it holds while its message is empty.
type Standing struct {
	Message string
	Since   time.Time
}

func (s *Standing) set(now time.Time, message string) {
	if s.Since.IsZero() || (s.Message == "") != (message == "") {
		s.Since = now
	}
	s.Message = message
}

func (s Standing) named(name string) Condition {
	return Condition{Name: name, OK: s.Message == "", Message: s.Message, Since: s.Since}
}

// Recent remembers the last ids that were added, each with the Header.Seq of the event that it was added by. Its JSON is a list, the
// oldest first.
type Recent []recentID

type recentID struct {
	ID  string
	Seq uint64
}

// recentSize is more sandboxes, and more containers, than a node stops within the longest time that a handler can be late.
const recentSize = 1024

func (r *Recent) add(id string, seq uint64) {
	if id == "" || r.has(id, 0) {
		return
	}
	if *r = append(*r, recentID{id, seq}); len(*r) > recentSize {
		*r = (*r)[1:]
	}
}

// has reports whether an id was added, with this Header.Seq or a later one.
func (r Recent) has(id string, since uint64) bool {
	return slices.ContainsFunc(r, func(ended recentID) bool { return ended.Seq >= since && ended.ID == id })
}

// pod is a living pod with what follows from it.
type pod struct {
	*PodState
	number int // in the order in which pods became known
	// path is where its cgroup is; it is empty, and managed unset, for a pod outside kubepods, which is left alone.
	path    cgroup.PodPath
	managed bool
	// containers are its Slots.
	containers []*container

	// settings, rules, wishes and problems follow from the configuration and from Annotated.
	settings memoryqos.Settings
	rules    config.AnnotationRules
	wishes   map[string]config.Wishes // by container, "" for the pod, as far as they have been found
	problems []config.Problem

	derived *derived
	stored  memorymanager.PodAllocations // of its last Delta
	changed bool                         // in this Step
	view    *PodView
}

// key is the pod's UID; pods that no kubelet made may have none.
func (p *pod) key() string { return p.Key() }

// container is a container of a living pod.
type container struct {
	*Slot
	pod    *pod
	judged judged
}

// hold gives the pod a container.
func (p *pod) hold(s *Slot) *container {
	c := &container{Slot: s, pod: p}
	p.containers = append(p.containers, c)
	return c
}

// addSlot is hold of a container that is new.
func (p *pod) addSlot(name string) *container {
	s := &Slot{Name: name}
	p.Slots = append(p.Slots, s)
	return p.hold(s)
}

// named finds a pod's container.
func (p *pod) named(name string) *container {
	for _, c := range p.containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// alive reports whether the container holds memory, or is about to.
func (c *container) alive() bool { return c.Phase.Alive() }

// ran reports whether the container has been started.
func (c *container) ran() bool { return c.Phase == Running || c.Phase == Paused }

// limitedTo takes a limit of the pod that was said or observed.
func (p *pod) limitedTo(bytes uint64) {
	p.MemoryLimit = bytes
	p.Revision++
}

// setLimit gives a container another limit.
func (r *Run) setLimit(limit uint64) {
	if limit != r.Limit {
		copy(r.Earlier[1:], r.Earlier[:])
		r.Earlier[0], r.Limit = r.Limit, limit
	}
}
