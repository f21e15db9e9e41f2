package config

import "github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"

// MemoryManagerPolicy is the kubelet's memoryManagerPolicy.
type MemoryManagerPolicy string

// The policies of the Memory Manager.
const (
	MemoryManagerStatic MemoryManagerPolicy = "Static"
	MemoryManagerNone   MemoryManagerPolicy = "None"
)

// OnUnsatisfiable is what happens to a container that cannot be placed.
type OnUnsatisfiable string

// What happens to a container that cannot be placed.
const (
	// Reject fails the creation of the container.
	Reject OnUnsatisfiable = "Reject"
	// Unpinned lets the container run on all nodes without an allocation.
	Unpinned OnUnsatisfiable = "Unpinned"
)

// NodesWithoutCPUs is the use of NUMA nodes that have memory and no CPUs.
type NodesWithoutCPUs string

// The uses of nodes without CPUs.
const (
	ExcludeNodes NodesWithoutCPUs = "Exclude"
	IncludeNodes NodesWithoutCPUs = "Include"
	// ConfineNodes is ExcludeNodes, and containers without an allocation may not use these nodes either.
	ConfineNodes NodesWithoutCPUs = "Confine"
)

// OnConflict is what decides where a container's exclusive CPUs, its devices, the policy and the groups of NUMA nodes do not agree.
type OnConflict string

// What decides a conflict.
const (
	// FollowKubelet has the kubelet's rules alone: a container whose merged hint breaks the group rule (kubernetes#138495), or whose
	// CPUs are on more nodes than the policy admits, is rejected; where CPUs and devices disagree, no nodes are preferred.
	FollowKubelet = OnConflict(topologymanager.AlignToKubelet)
	// FollowCPUs aligns memory with the exclusive CPUs, also where they are on more nodes than restricted admits. A container whose
	// merged hint breaks the group rule under none or best-effort gets the narrowest set of nodes that has room.
	FollowCPUs = OnConflict(topologymanager.AlignToCPUs)
	// FollowDevices is FollowCPUs, but where CPUs and devices are on different nodes memory is aligned with the devices.
	FollowDevices = OnConflict(topologymanager.AlignToDevices)
)

// FailurePolicy says what happens to a container's creation or update that is not answered in time, in the words of admission webhooks.
type FailurePolicy string

// The failure policies.
const (
	// Ignore lets the runtime go on without an answer. The container is adopted later, like one found running.
	Ignore FailurePolicy = "Ignore"
	// Fail fails the creation or update, which the kubelet tries again.
	Fail FailurePolicy = "Fail"
)

// OnTermination is what becomes of everything that was written when the plugin ends.
type OnTermination string

// The ways to end.
const (
	// KeepValues leaves containers and cgroups as they are: the next start takes them over.
	KeepValues OnTermination = "Keep"
	// RollbackValues does what the command rollback does: for uninstalling.
	RollbackValues OnTermination = "Rollback"
)

// OnBadAnnotation is what a wrong annotation does to its pod.
type OnBadAnnotation string

// What a wrong annotation does.
const (
	IgnoreAnnotation OnBadAnnotation = "Ignore"
	RejectPod        OnBadAnnotation = "Reject"
)

// Annotation is the key of one of our annotations, without its domain.
type Annotation string

// The annotations.
const (
	// AnnotationThrottlingFactor replaces memoryThrottlingFactor.
	AnnotationThrottlingFactor Annotation = "throttling-factor"
	// AnnotationMemoryHigh is "off" or a quantity.
	AnnotationMemoryHigh Annotation = "memory-high"
	// AnnotationCacheRoom replaces cacheRoom.
	AnnotationCacheRoom Annotation = "cache-room"
	// AnnotationReservation is none, low or min.
	AnnotationReservation Annotation = "reservation"
	// AnnotationNUMA is none, preferred or required.
	AnnotationNUMA Annotation = "numa"
	// AnnotationStallGuard is "off".
	AnnotationStallGuard Annotation = "stall-guard"
	// AnnotationMemoryPolicy is none, prefer-available, interleave or weighted-interleave.
	AnnotationMemoryPolicy Annotation = "memory-policy"
	// AnnotationOOMGroup is container or process.
	AnnotationOOMGroup Annotation = "oom-group"
	// AnnotationOOMScoreAdj is first, last or a number (oomScoreAdj).
	AnnotationOOMScoreAdj Annotation = "oom-score-adj"
)

// LogLevel is a logrus level.
type LogLevel string
