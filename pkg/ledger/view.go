package ledger

import (
	"iter"
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

// View is a consistent picture of the agent's state. It never changes after it was taken; its parts are shared between
// views and must not be written to.
type View struct {
	Taken time.Time
	// Generation is another one than that of the View before where they differ in more than Taken and NodeMemory.
	Generation uint64
	// Runtime is the one connected last; its Name is empty before the first.
	Runtime Runtime
	// Config is the configuration in force.
	Config config.Resolved
	// Nodes is the node map; empty under the Memory Manager policy None.
	Nodes []memorymanager.NodeState
	// Ancestors are what the cgroups above the pods should hold, kubepods first; none without pods.
	Ancestors []cgroup.Target
	// Pods are sorted by namespace, name and UID.
	Pods []*PodView
	// Claimable is what resource claims may have and have, by node and type; nil unless the configuration enables them. Claims are
	// those that have an allocation.
	Claimable []claims.Capacity
	Claims    []claims.Claim
	// Rejections are the last containers of living pods that could not be placed, newest first.
	Rejections []Rejection
	// NodeMemory says whether the allocations hold, as sampled last; nil before the first time. It is not a part of the generation.
	NodeMemory *deficit.Sample
	// Conditions say whether the agent does its work: connected, synchronized, checkpoint, config; and rollback while it is rolled back.
	Conditions []Condition
}

// Synchronized reports whether the runtime has said which containers live.
func (v *View) Synchronized() bool {
	return slices.ContainsFunc(v.Conditions, func(c Condition) bool { return c.Name == ConditionSynchronized && c.OK })
}

// Kubepods is the cgroup of the top level, "" without pods.
func (v *View) Kubepods() string {
	if len(v.Ancestors) == 0 {
		return ""
	}
	return v.Ancestors[0].Cgroup
}

// Containers are those of all pods, with their pods.
func (v *View) Containers() iter.Seq2[*PodView, *ContainerView] {
	return func(yield func(*PodView, *ContainerView) bool) {
		for _, pod := range v.Pods {
			for i := range pod.Containers {
				if !yield(pod, &pod.Containers[i]) {
					return
				}
			}
		}
	}
}

// PodView is a living pod. Its JSON, and that of a container, is a part of status: values that are not set are absent.
type PodView struct {
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	UID       string             `json:"uid"`
	Class     memoryqos.QOSClass `json:"qosClass"`
	// Cgroup is relative to the cgroup mount; "" for a pod outside kubepods, which is left alone.
	Cgroup string `json:"cgroup,omitempty"`
	// Fresh is set for a pod that began while a runtime was connected: nothing of it was missed.
	Fresh bool `json:"-"`
	// Values are what the pod's own cgroup should hold.
	memoryqos.Values
	// Request is the pod's own (spec.resources), in bytes; nil when it has none that is known.
	Request *uint64 `json:"-"`
	// Blocks are the pod's own allocation, with PerNode; nil without pod-level resources. Its containers' are parts of it,
	// without PerNode, and may overlap.
	Blocks []memorymanager.Block `json:"blocks,omitempty"`
	// Containers are in the order of their first appearance, ended ones that keep an allocation included.
	Containers []ContainerView `json:"containers"`
	// Problems say what is wrong with annotations, which they name.
	Problems []string `json:"problems,omitempty"`
}

// Is reports whether a text names the pod: its namespace and name, its name alone, or its UID.
func (v *PodView) Is(pod string) bool {
	return pod == v.UID || pod == v.Name || pod == v.Namespace+"/"+v.Name
}

// Share is what the pod may count on, in bytes: its own request or else its containers', or memory.min or memory.low where that is more.
func (v *PodView) Share() (bytes uint64) {
	if v.Request != nil {
		bytes = *v.Request
	} else {
		for i := range v.Containers {
			bytes += v.Containers[i].Request
		}
	}
	return v.Values.Promised(bytes)
}

// ContainerView is a container of a living pod.
type ContainerView struct {
	Name string `json:"name"`
	ID   string `json:"id,omitempty"`
	// Cgroup is relative to the cgroup mount.
	Cgroup string         `json:"cgroup,omitempty"`
	Kind   memoryqos.Kind `json:"kind"`
	State  Phase          `json:"-"`
	// Nodes is the cpuset.mems that the container has from us or from the kubelet; empty when it is not pinned.
	Nodes nodeset.Set `json:"numaNodes,omitempty"`
	// Pinning says in a few words how the container got its nodes, or why it has none.
	Pinning string `json:"pinning,omitempty"`
	// MemoryPolicy is the NUMA memory policy that its process was started with, as far as that is known, and PolicySource what it
	// follows from; NoPolicy is why it has none although one is configured or asked for.
	MemoryPolicy string `json:"memoryPolicy,omitempty"`
	PolicySource string `json:"memoryPolicySource,omitempty"`
	NoPolicy     string `json:"noMemoryPolicy,omitempty"`
	// Unplaced is why a living container has no nodes although it asked for some; nil when it has, or may not have any.
	Unplaced *Rejection `json:"-"`
	// Blocks are its allocations, with PerNode: its claims', or the Memory Manager's.
	Blocks []memorymanager.Block `json:"blocks,omitempty"`
	// Estimate is the memory request with its source and error bound.
	pods.Estimate
	// Limit is 0 when there is none.
	Limit uint64 `json:"limit,omitempty"`
	// Values are what Memory QoS gives; Raised is the memory.high that the stall guard has set instead, 0 when none.
	memoryqos.Values
	Raised uint64 `json:"memoryHighRaised,omitempty"`
	// PendingResize is what a resize asks for beyond the blocks and could not be allocated yet; nil when nothing is missing. Its nodes are all
	// until then.
	PendingResize memorymanager.Request `json:"pendingResize,omitempty"`
	// Claims are its resource claims, as NAMESPACE/NAME, and Claimed what they allocate for it alone: nil where it shares one with
	// another container.
	Claims  []string              `json:"claims,omitempty"`
	Claimed memorymanager.Request `json:"claimed,omitempty"`
	// CPUs are how many of its exclusive CPUs each NUMA node has.
	CPUs map[int]int `json:"exclusiveCPUs,omitempty"`
	// Devices are its devices with their NUMA nodes.
	Devices []topologymanager.Device `json:"devices,omitempty"`
	// Farther says how its memory is farther than need be from its CPUs and devices on NUMA nodes that are not in the node map; empty where it
	// is not.
	Farther string `json:"farther,omitempty"`
	// Unanswered is set when it has values or nodes from us, and was created without our answer: while nobody answered, or before the
	// plugin came.
	Unanswered bool `json:"unanswered,omitempty"`
	// Shared is set when its blocks are what it shares with others of its pod's allocation.
	Shared bool `json:"-"`
}

// AllocatedOn are the NUMA nodes of its blocks.
func (c *ContainerView) AllocatedOn() nodeset.Set { return nodesOf(c.Blocks) }

// AboveClaim says how the container's memory limit is more than its own claims allocate; "" where it is not, where it shares a
// claim, or has none.
func (c *ContainerView) AboveClaim() string {
	if claimed := c.Claimed.Of(memorymanager.Memory); claimed > 0 {
		return claims.LimitAbove(c.Limit, claimed)
	}
	return ""
}

// Rejection is a container that was refused, or that runs unpinned because it could not be placed.
type Rejection struct {
	// At is the first time, Last the last one, Count how often the same was tried. Only a refused resize is tried again as
	// the same rejection; each try to create a container is one of its own.
	At        time.Time `json:"time"`
	Last      time.Time `json:"last"`
	Count     int       `json:"count"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       string    `json:"uid,omitempty"`
	Container string    `json:"container"`
	// Reason is one of memorymanager's, or one of this package's.
	Reason string `json:"reason"`
	// Text says why, without the container's name; it may have more lines.
	Text string `json:"text"`
	// BarredBy names containers that keep this one from NUMA nodes with room, for who runs the node: they may be in other namespaces.
	BarredBy string `json:"barredBy,omitempty"`
	// Refused is unset when the container runs all the same, unpinned.
	Refused bool `json:"refused"`
}

// Why is the text, and which containers are in the way, in lines.
func (r Rejection) Why() string {
	why := r.Text
	if r.BarredBy != "" {
		why += "\nin the way: " + r.BarredBy + "\nwhat helps: end it, so that it is placed anew beside this one, a request that one NUMA node has free, or, without NUMA nodes, the annotation numa: preferred"
	}
	return why
}

// Same reports whether both are the same rejection, however often it was tried.
func (r Rejection) Same(other Rejection) bool {
	return r.At.Equal(other.At) && r.UID == other.UID && r.Container == other.Container && r.Reason == other.Reason
}

// The names of the conditions.
const (
	ConditionConnected    = "connected"
	ConditionSynchronized = "synchronized"
	ConditionCheckpoint   = "checkpoint"
	ConditionConfig       = "config"
	ConditionRollback     = "rollback"
)

// Condition is one thing that must be so for the agent to be ready.
type Condition struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Message says why not.
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// Ready reports whether every condition holds.
func (v *View) Ready() bool {
	for _, c := range v.Conditions {
		if !c.OK {
			return false
		}
	}
	return true
}
