package ledger

import (
	"cmp"
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

// View is a consistent snapshot of the agent's state. It is never modified; views share parts, which must not be written to.
type View struct {
	Taken time.Time
	// Generation differs from the last View's if anything but Taken and NodeMemory has changed.
	Generation uint64
	// Runtime is the runtime that was connected last; its Name is empty before the first connection.
	Runtime Runtime
	// Config is the configuration in force.
	Config config.Resolved
	// Nodes is the node map; empty under the Memory Manager policy None.
	Nodes []memorymanager.NodeState
	// Ancestors are what the cgroups above the pods should hold, kubepods first; empty without pods.
	Ancestors []cgroup.Target
	// Pods are sorted by namespace, name and UID.
	Pods []*PodView
	// Claimable is what resource claims may have and have, by node and type; nil unless the configuration enables claims. Claims are the
	// allocated claims.
	Claimable []claims.Capacity
	Claims    []claims.Claim
	// Rejections are the last of living pods' containers that were not placed since, newest first.
	Rejections []Rejection
	// NodeMemory says whether the nodes still have the memory that is allocated, as last sampled; nil before the first sample.
	NodeMemory *deficit.Sample
	// Conditions say whether the agent works: connected, synchronized, checkpoint, config; and rollback while it is rolled back.
	Conditions []Condition
}

// Synchronized reports whether the runtime has reported its containers.
func (v *View) Synchronized() bool {
	return slices.ContainsFunc(v.Conditions, func(c Condition) bool { return c.Name == ConditionSynchronized && c.OK })
}

// Kubepods returns the top cgroup of the pods; "" without pods.
func (v *View) Kubepods() string {
	if len(v.Ancestors) == 0 {
		return ""
	}
	return v.Ancestors[0].Cgroup
}

// Containers iterates over the containers of all pods.
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

// PodView is a living pod. Its JSON and its containers' are part of status; unset values are absent.
type PodView struct {
	Namespace string             `json:"namespace"`
	Name      string             `json:"name"`
	UID       string             `json:"uid"`
	Class     memoryqos.QOSClass `json:"qosClass"`
	// Cgroup is relative to the cgroup mount; "" for a pod outside kubepods, which is not managed.
	Cgroup string `json:"cgroup,omitempty"`
	// Fresh is set if the pod started while a runtime was connected, so that no event of it was missed.
	Fresh bool `json:"-"`
	// Values are what the pod's own cgroup should hold.
	memoryqos.Values
	// Request is what the pod requests in bytes: its own request (spec.resources) or else its containers', also while they are restarted.
	Request uint64 `json:"-"`
	// Blocks are the pod's own allocation, with PerNode; nil without pod-level resources. Its containers' are parts of it,
	// without PerNode, and may overlap.
	Blocks []memorymanager.Block `json:"blocks,omitempty"`
	// Containers are in the order of their first appearance, ended ones that keep an allocation included.
	Containers []ContainerView `json:"containers"`
	// Problems say what is wrong with the pod's annotations.
	Problems []string `json:"problems,omitempty"`
}

// Is reports whether a text names the pod (pods.Ref.Is).
func (v *PodView) Is(pod string) bool {
	return pods.Ref{UID: v.UID, Namespace: v.Namespace, Name: v.Name}.Is(pod)
}

// Share returns the bytes that the pod may count on: its request, or memory.min or memory.low if that is more.
func (v *PodView) Share() uint64 { return v.Values.Promised(v.Request) }

// ContainerView is a container of a living pod.
type ContainerView struct {
	Name string `json:"name"`
	ID   string `json:"id,omitempty"`
	// Cgroup is relative to the cgroup mount.
	Cgroup string         `json:"cgroup,omitempty"`
	Kind   memoryqos.Kind `json:"kind"`
	State  Phase          `json:"-"`
	// Nodes is the container's cpuset.mems, set by this plugin or by the kubelet; empty if it is not pinned.
	Nodes nodeset.Set `json:"numaNodes,omitempty"`
	// Confined are the nodes that a container without Nodes may use; empty if it may use all.
	Confined nodeset.Set `json:"confinedTo,omitempty"`
	// Pinning says in a few words how the container got its nodes, or why it has none.
	Pinning string `json:"pinning,omitempty"`
	// MemoryPolicy is the NUMA memory policy that its process was started with, if known. PolicySource is the policy's source. NoPolicy
	// says why it has none although one is configured or requested.
	MemoryPolicy string `json:"memoryPolicy,omitempty"`
	PolicySource string `json:"memoryPolicySource,omitempty"`
	NoPolicy     string `json:"noMemoryPolicy,omitempty"`
	// OOMScore is the oom_score_adj of its processes if this plugin has set it; KubeletScore is the kubelet's. NoOOMScore says why one
	// that was configured or requested was not set.
	OOMScore     *OOMScore `json:"oomScore,omitempty"`
	KubeletScore *int64    `json:"-"`
	NoOOMScore   string    `json:"noOOMScore,omitempty"`
	// Unplaced is why a living container has no nodes although it asked for some; otherwise nil.
	Unplaced *Rejection `json:"-"`
	// Blocks are its allocations, with PerNode: its claims', or the Memory Manager's.
	Blocks []memorymanager.Block `json:"blocks,omitempty"`
	// Estimate is the memory request with its source and error bound.
	pods.Estimate
	// Limit is 0 if there is none.
	Limit uint64 `json:"limit,omitempty"`
	// Values are the result of Memory QoS. Raised is the memory.high that the stall guard has set instead; 0 if none.
	memoryqos.Values
	Raised uint64 `json:"memoryHighRaised,omitempty"`
	// PendingResize is the part of a resize that could not be allocated yet; nil if nothing is missing. Nodes are all nodes until it is
	// allocated.
	PendingResize memorymanager.Request `json:"pendingResize,omitempty"`
	// Claims are its resource claims, as NAMESPACE/NAME. Claimed is what they allocate for it alone; nil if it shares one with another
	// container.
	Claims  []string              `json:"claims,omitempty"`
	Claimed memorymanager.Request `json:"claimed,omitempty"`
	// CPUs is the number of its exclusive CPUs on each NUMA node.
	CPUs map[int]int `json:"exclusiveCPUs,omitempty"`
	// Devices are its devices with their NUMA nodes.
	Devices []topologymanager.Device `json:"devices,omitempty"`
	// Farther says how its memory is farther than necessary from its CPUs and devices on NUMA nodes that are not in the node map;
	// otherwise empty.
	Farther string `json:"farther,omitempty"`
	// Unanswered is set if it should have values or nodes of this plugin, and was created without an answer: before the plugin started, or
	// while it did not answer.
	Unanswered bool `json:"unanswered,omitempty"`
	// Shared is set if its blocks are the part of its pod's allocation that it shares with other containers.
	Shared bool `json:"-"`
}

// AllocatedOn returns the NUMA nodes of its blocks.
func (c *ContainerView) AllocatedOn() nodeset.Set { return nodesOf(c.Blocks) }

// Mems returns the nodes of its cpuset.mems: its own, or those to which it is confined.
func (c *ContainerView) Mems() nodeset.Set { return cmp.Or(c.Nodes, c.Confined) }

// AboveClaim says by how much the container's memory limit is above what its own claims allocate. It is "" if the limit is not above, or if
// the container has no claims or shares one. A limit that includes mapped claims (more is requested than they have) is not above.
func (c *ContainerView) AboveClaim() string {
	if claimed := c.Claimed.Of(memorymanager.Memory); claimed > 0 && (c.Limit == 0 || c.Request <= claimed) {
		return claims.LimitAbove(c.Limit, claimed)
	}
	return ""
}

// Rejection is a container that was refused, or that runs unpinned because it could not be placed.
type Rejection struct {
	// At is the first time, Last the last one, Count the number of tries. Only a retried resize counts as the same rejection; each try to
	// create a container is a new one.
	At        time.Time `json:"time"`
	Last      time.Time `json:"last"`
	Count     int       `json:"count"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       string    `json:"uid,omitempty"`
	Container string    `json:"container"`
	// Reason is one of memorymanager's, or one of this package's.
	Reason string `json:"reason"`
	// Text says why, without the container's name. It may have several lines.
	Text string `json:"text"`
	// BarredBy names the containers that keep this one from NUMA nodes with room. They may be in other namespaces, so it is for
	// administrators.
	BarredBy string `json:"barredBy,omitempty"`
	// Helps is what would have the container placed, if its NUMA nodes have room.
	Helps string `json:"helps,omitempty"`
	// Refused is false if the container runs unpinned instead.
	Refused bool `json:"refused"`
}

// Why is the text, which containers are in the way, and what helps, in lines.
func (r Rejection) Why() string {
	why := r.Text
	if r.BarredBy != "" {
		why += "\nin the way: " + r.BarredBy
	}
	if r.Helps != "" {
		why += "\nwhat helps: " + r.Helps
		if r.Refused {
			why += ", or, without NUMA nodes, the annotation numa: preferred"
		}
	}
	return why
}

// Same reports whether both are the same rejection, whatever their Count.
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

// Condition is one thing that must be true for the agent to be ready.
type Condition struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Message says why it is not true.
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
