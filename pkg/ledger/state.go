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

// State is everything that a ledger remembers: facts, which are the newest from the runtime, the pod APIs, the kernel and the
// administrator, and decisions, which do not follow from these facts. Everything else is derived (derive.go). It is plain data for
// encoding/json. Ledgers with equal States behave the same.
type State struct {
	// Resolved is the configuration in force, with the machine as last read. Its JSON has only these two, because the rest follows from
	// them.
	Resolved config.Resolved

	// Runtime is the runtime that was connected last. Epoch is the number of the connection; 0 if there is none.
	Runtime Runtime
	Epoch   uint64
	// Newest is the highest Header.Seq so far.
	Newest uint64

	// Pods are the living pods, in no order.
	Pods []*PodState
	// Parents are the cgroups above managed pods. Those of ended pods are included until the next full pass.
	Parents []Parents
	// Claims are the allocated claims, by UID.
	Claims claims.Prepared `json:",omitempty"`
	// Raises are memory.high values in bytes that the stall guard had set when the plugin ended, by id of containers that have not been
	// seen yet.
	Raises map[string]uint64 `json:",omitempty"`
	// StoppedSandboxes and EndedContainers are the last ones that ended: a late event does not add them again.
	StoppedSandboxes, EndedContainers Recent

	// Restored is set if the allocations of the state file were restored: a container that runs without one had none.
	Restored bool `json:",omitempty"`
	// Allocations are the Memory Manager's; nil under the policy None. Only Ledger.Snapshot sets them.
	Allocations *memorymanager.Snapshot `json:",omitempty"`

	// NodeMemory is the unused and available memory of the NUMA nodes, as last sampled.
	NodeMemory []deficit.NodeMemory `json:",omitempty"`

	Rejections []Rejection `json:",omitempty"`
	Counters   Counters
	// Connected, Synchronized and Configured are the conditions of readiness.
	Connected, Synchronized, Configured Standing
}

// PodState is a living pod.
type PodState struct {
	// Pod is the sandbox as last reported by the runtime. Its annotations and labels are those that the sandbox started with.
	Pod
	Born time.Time
	// Sandboxes are the sandboxes that have not ended, oldest first. A pod without one ends when its cgroup is removed.
	Sandboxes []string
	// Seen is set once its cgroup was observed. When the cgroup is gone later, the pod has ended.
	Seen bool `json:",omitempty"`
	// Seq is the Header.Seq of the newest event about its sandbox or limits.
	Seq uint64 `json:",omitempty"`
	// Revision increases when its sandbox or limits change: older observations are ignored.
	Revision uint64 `json:",omitempty"`
	// Fresh is set if the pod started while the plugin ran, so that the plugin had not written its cgroup's files before.
	Fresh bool `json:",omitempty"`
	// Info is the pod as the pod APIs report it, nil until then. Source is the API that reported it.
	Info   *pods.Pod `json:",omitempty"`
	Source memoryqos.Source
	// Shared is set if the containers share the pod's limit, which was found without Info.
	Shared bool `json:",omitempty"`
	// Slots are its containers in the order of their first appearance. Ended ones are kept while they have an allocation.
	Slots []*Slot
}

// Slot is a container of a pod, by its name. It outlives the container's runs and keeps its placement for the next one.
type Slot struct {
	Name string
	Placement
	Run
}

// Placement is where a container should have its memory. Only Ledger.assign writes a container's placement.
type Placement struct {
	// Nodes is the desired cpuset.mems, set by this plugin or by the kubelet; empty if not pinned.
	Nodes nodeset.Set `json:",omitempty"`
	// Confined is the desired cpuset.mems of a container without Nodes; empty if it may use all nodes.
	Confined nodeset.Set `json:",omitempty"`
	// ByKubelet is set if the kubelet has set Nodes.
	ByKubelet bool `json:",omitempty"`
	// PendingResize is the part of a resize that is not allocated yet. Nodes are all nodes until it is.
	PendingResize memorymanager.Request `json:",omitempty"`
	// Pinning says how it got its nodes, or why it has none.
	Pinning string
	// Unplaced is why it has no nodes although it asked for some; otherwise nil.
	Unplaced *Rejection `json:",omitempty"`
	// Refusal is the last resize that was refused; nil if none was.
	Refusal *Refusal `json:",omitempty"`
}

// Run is a container as the runtime knows it, from its creation to its end. A restart makes a new Run, which takes nothing from the last
// one.
type Run struct {
	// ID is the runtime's; every run has a new one.
	ID    string
	Phase Phase
	Born  time.Time
	// Cgroup is relative to the cgroup mount; "" if it cannot be determined.
	Cgroup string
	// Seen is set once its cgroup was observed; Present is set if the last look found it.
	Seen    bool `json:",omitempty"`
	Present bool `json:",omitempty"`
	// Unanswered is set if it was created without an answer of this plugin: it had none of the plugin's values when it was found.
	Unanswered bool `json:",omitempty"`
	// Revision increases when the runtime starts or changes the container: older observations are ignored.
	Revision uint64
	// Seq is the Header.Seq of the newest event that decided about it.
	Seq uint64 `json:",omitempty"`

	// Own is set if this process runs in it.
	Own bool `json:",omitempty"`
	// Resources are the kubelet's. Limit is their memory limit in bytes; 0 if there is none.
	Resources Resources
	Limit     uint64
	// Earlier are the limits before, newest first: the updates since may all have failed. The kernel's file shows one of them rounded to a
	// page.
	Earlier [4]uint64
	// LimitIsPods is set if the limit was the pod's whole limit when both were reported; see findShared.
	LimitIsPods bool `json:",omitempty"`
	// CPUNodes are the NUMA nodes of its exclusive CPUs. They are computed when its CPUs change, because they depend on the CPUs of other
	// containers.
	CPUNodes nodeset.Set              `json:",omitempty"`
	Devices  []topologymanager.Device `json:",omitempty"`
	// Claims are the parts of resource claims that it names; nil unless the configuration enables claims. If it names too many,
	// TooManyClaims is set and none is kept. HasClaims is set once all are granted.
	Claims        []claims.Ref `json:",omitempty"`
	TooManyClaims bool         `json:",omitempty"`
	HasClaims     bool         `json:",omitempty"`

	// Pending is the kubelet's update that has not ended yet; nil if there is none.
	Pending *Pending `json:",omitempty"`
	Record  Record
	// FoundMems is the cpuset.mems that was found when the container was, or that was set since.
	FoundMems string `json:",omitempty"`
	// Released is set if this plugin had set its nodes and must not any more.
	Released bool `json:",omitempty"`
	// Had are the nodes of the allocation that a configuration took from it while it ran; empty once it is allocated again.
	Had nodeset.Set `json:",omitempty"`
	// Raised is the memory.high set by the stall guard; 0 if none.
	Raised uint64 `json:",omitempty"`
	Policy Policy
	// OOMScore is the oom_score_adj that this plugin has set; nil if the kubelet's remains. NoOOMScore says why one that is configured or
	// requested was not set.
	OOMScore   *OOMScore `json:",omitempty"`
	NoOOMScore string    `json:",omitempty"`
}

// Pending is an update of the kubelet's that was answered and has not ended.
type Pending struct {
	Since time.Time
	// Before is what the files held: the parent cgroups carry the larger of both. It is nil if the plugin's values do not change.
	Before *memoryqos.Values `json:",omitempty"`
}

// Record is what the runtime stores about a container, according to this plugin's answers and to what the runtime shows. At its next update
// of the container the runtime writes that again, whatever the files hold meanwhile.
type Record struct {
	Values memoryqos.Values
	Mems   string `json:",omitempty"`
	// Unsure are the files whose recorded value is uncertain: they were in an update that the runtime has not confirmed. The next answer
	// has them again.
	Unsure FileSet
	// Resend is set to ask the runtime again to write the unsure files.
	Resend bool `json:",omitempty"`
	// Written is set once a file of the container has held, or should have held, a value of this plugin; WrittenMems is the same for
	// cpuset.mems. Nodes that somebody else has set are kept.
	Written     bool `json:",omitempty"`
	WrittenMems bool `json:",omitempty"`
}

// Policy is the memory policy that a container's process was started with.
type Policy struct {
	MemoryPolicy MemoryPolicy
	// From is the source of the policy. Without says why there is none although one was configured or requested.
	From    string `json:",omitempty"`
	Without string `json:",omitempty"`
}

// Standing is the state of a Condition, which is true while Message is empty.
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

func (s Standing) condition(name string) Condition {
	return Condition{Name: name, OK: s.Message == "", Message: s.Message, Since: s.Since}
}

// Recent remembers the ids that were added last, each with the Header.Seq of its event. Its JSON is a list with the oldest first.
type Recent []recentID

type recentID struct {
	ID  string
	Seq uint64
}

// recentSize is more sandboxes, and more containers, than a node stops while a handler can be late.
const recentSize = 1024

func (r *Recent) add(id string, seq uint64) {
	if id == "" || r.has(id, 0) {
		return
	}
	if *r = append(*r, recentID{id, seq}); len(*r) > recentSize {
		*r = (*r)[1:]
	}
}

// has reports whether an id was added with this Header.Seq or a later one.
func (r Recent) has(id string, since uint64) bool {
	return slices.ContainsFunc(r, func(ended recentID) bool { return ended.Seq >= since && ended.ID == id })
}

// pod is a living pod with its derived data.
type pod struct {
	*PodState
	number int // in the order in which pods were added
	// path is its cgroup. A pod outside kubepods has none and is not managed.
	path    cgroup.PodPath
	managed bool
	// containers are parallel to Slots.
	containers []*container

	// settings, rules, wishes and problems are derived from the configuration, from the namespace and labels, and from Annotated.
	settings memoryqos.Settings
	rules    config.AnnotationRules
	wishes   map[string]config.Wishes // a cache by container, "" for the pod
	problems []config.Problem

	derived *derived
	stored  memorymanager.PodAllocations // in its last Delta
	changed bool                         // in this Step
	view    *PodView
}

// container is a container of a living pod.
type container struct {
	*Slot
	pod   *pod
	grant claimGrant
	// remembered is set if the runtime does not show the values of its record, which are known to this process alone.
	remembered bool
}

// addContainer adds the container of a slot to the pod.
func (p *pod) addContainer(s *Slot) *container {
	c := &container{Slot: s, pod: p}
	p.containers = append(p.containers, c)
	return c
}

// addSlot adds a new container to the pod.
func (p *pod) addSlot(name string) *container {
	s := &Slot{Name: name}
	p.Slots = append(p.Slots, s)
	return p.addContainer(s)
}

// container returns the pod's container with a name; nil if there is none.
func (p *pod) container(name string) *container {
	for _, c := range p.containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// alive reports whether the container holds memory, or is about to.
func (c *container) alive() bool { return c.Phase.Alive() }

// ran reports whether the container's process has been started.
func (c *container) ran() bool { return c.Phase == Running || c.Phase == Paused }

// setLimit sets a limit of the pod that was reported or observed.
func (p *pod) setLimit(bytes uint64) {
	p.MemoryLimit = bytes
	p.Revision++
}

// setLimit sets a new limit and remembers the old one in Earlier.
func (r *Run) setLimit(limit uint64) {
	if limit != r.Limit {
		copy(r.Earlier[1:], r.Earlier[:])
		r.Earlier[0], r.Limit = r.Limit, limit
	}
}
