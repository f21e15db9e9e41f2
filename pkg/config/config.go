// Package config is what the administrator decides: the YAML file, what a KubeletConfiguration already says, and what pods
// may wish for by annotation. The kubelet's ideas have the kubelet's names and meaning.
package config

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Config is the configuration file. Default has the value of every key that a file leaves out.
type Config struct {
	// KubeletConfig is the path of a KubeletConfiguration from which the keys with the kubelet's names are taken over.
	// What this file sets wins.
	KubeletConfig string `yaml:"kubeletConfig"`

	// MemoryManagerPolicy is Static (place Guaranteed pods) or None.
	MemoryManagerPolicy MemoryManagerPolicy `yaml:"memoryManagerPolicy"`
	// TopologyManagerPolicy judges the placements: none, best-effort, restricted or single-numa-node.
	TopologyManagerPolicy topologymanager.Policy `yaml:"topologyManagerPolicy"`
	// TopologyManagerScope aligns each container or each pod.
	TopologyManagerScope topologymanager.Scope `yaml:"topologyManagerScope"`
	// TopologyManagerPolicyOptions are the kubelet's; max-allowable-numa-nodes is the one that changes no placement.
	TopologyManagerPolicyOptions map[string]string `yaml:"topologyManagerPolicyOptions"`
	// NUMAAllocationStrategy chooses among NUMA nodes that would do alike; empty is what the option numa-allocation-strategy
	// says, and none without it.
	NUMAAllocationStrategy topologymanager.Strategy `yaml:"numaAllocationStrategy"`
	// PodLevelResourceManagers allocates Guaranteed pods with pod-level resources as the kubelet does under the feature gate
	// of this name. Without it such a pod is not pinned.
	PodLevelResourceManagers bool `yaml:"podLevelResourceManagers"`
	// OnUnsatisfiable is what happens to a container that cannot be placed; empty is Reject for restricted and
	// single-numa-node, Unpinned for none and best-effort.
	OnUnsatisfiable OnUnsatisfiable `yaml:"onUnsatisfiable"`
	// OnGroupConflict is what happens under none and best-effort when the hints lead to nodes that another group of
	// containers holds: the kubelet's answer (Fail), or the narrowest set of nodes with room (FallBack).
	OnGroupConflict OnGroupConflict `yaml:"onGroupConflict"`
	// OnForeignCPUs is what happens under restricted to a container whose exclusive CPUs the kubelet has assigned on more
	// nodes than the policy admits: its memory follows them (Follow), or it cannot be placed (Reject).
	OnForeignCPUs OnForeignCPUs `yaml:"onForeignCPUs"`
	// AlignTo is what memory is aligned to where exclusive CPUs and devices are on different NUMA nodes: the merge of all hints
	// as the kubelet has it (kubelet), the CPUs (cpus), or the devices (devices).
	AlignTo topologymanager.AlignTo `yaml:"alignTo"`
	// ResourceSlices are where the NUMA nodes of devices come from that neither the kubelet nor sysfs knows.
	ResourceSlices ResourceSlices `yaml:"resourceSlices"`
	// VerifyHugepages rejects a container whose huge pages the kernel does not have free on its nodes (KEP-5759), like any other that
	// cannot be placed.
	VerifyHugepages bool `yaml:"verifyHugepages"`
	// UnpinnedMemoryPolicy is the NUMA memory policy with which containers without an allocation start, where the runtime
	// applies one.
	UnpinnedMemoryPolicy MemoryPolicy `yaml:"unpinnedMemoryPolicy"`
	// CoverDeficits is what happens when a NUMA node owes its allocations more memory than it has.
	CoverDeficits CoverDeficits `yaml:"coverDeficits"`
	// DissolveGroups moves containers off groups of NUMA nodes that are not needed any more, and to make room for a new container.
	DissolveGroups bool `yaml:"dissolveGroups"`
	// NodesWithoutCPUs are left out of placements (Exclude) or are used like others (Include).
	NodesWithoutCPUs NodesWithoutCPUs `yaml:"nodesWithoutCPUs"`
	// Migration bounds the memory of a running container that a write of its cpuset.mems moves to other nodes.
	Migration Migration `yaml:"migration"`

	// ReservedMemory is kept from containers per NUMA node: the kubelet's list, or the text of its --reserved-memory flag.
	// Empty spreads the sum of KubeReserved, SystemReserved and EvictionHard over the nodes.
	ReservedMemory ReservedMemory `yaml:"reservedMemory"`
	// ReservedMemoryCheck says whether a sum of ReservedMemory that differs from the one of the next three is an error
	// (Strict) or a warning (Warn).
	ReservedMemoryCheck ReservedMemoryCheck `yaml:"reservedMemoryCheck"`
	// KubeReserved, SystemReserved and EvictionHard are the kubelet's; of the resources memory and hugepages-<size> count,
	// of the signals memory.available (a quantity or a percentage of the node's memory).
	KubeReserved   map[string]string `yaml:"kubeReserved"`
	SystemReserved map[string]string `yaml:"systemReserved"`
	EvictionHard   map[string]string `yaml:"evictionHard"`

	// MemoryThrottlingFactor places memory.high between request and limit, in (0, 1]; nil sets no memory.high.
	MemoryThrottlingFactor *float64 `yaml:"memoryThrottlingFactor"`
	// MemoryReservationPolicy chooses the file that protects a request.
	MemoryReservationPolicy memoryqos.ReservationPolicy `yaml:"memoryReservationPolicy"`
	// GuaranteedHeadroom is the share of its limit that a container's memory.min leaves reclaimable, in [0, 1). It bounds a
	// Burstable container's memory.min as well, which it has under HardReservation or by annotation.
	GuaranteedHeadroom float64 `yaml:"guaranteedHeadroom"`

	// RequestSources are where memory requests are asked for, in this order; empty finds out by itself.
	RequestSources []memoryqos.Source `yaml:"requestSources"`
	// Kubeconfig is the path of the API server's credentials; empty uses those of the pod that this runs in.
	Kubeconfig string `yaml:"kubeconfig"`
	// NodeName is this node's name in the API; empty is $NODE_NAME, else the host name.
	NodeName string `yaml:"nodeName"`
	// RequestTimeout is the longest that the creation of a container waits for a source.
	RequestTimeout Duration `yaml:"requestTimeout"`

	// AllowedAnnotations are the annotations by which pods may change their own values.
	AllowedAnnotations []Annotation `yaml:"allowedAnnotations"`
	// MinimumThrottlingFactor is the smallest factor that a pod may choose, in [0, 1].
	MinimumThrottlingFactor float64 `yaml:"minimumThrottlingFactor"`
	// AnnotationRules replace the two above for pods of some namespaces; the first rule that matches counts.
	AnnotationRules []NamespaceRule `yaml:"annotationRules"`
	// OnBadAnnotation ignores a wrong annotation, or rejects the pod's containers.
	OnBadAnnotation OnBadAnnotation `yaml:"onBadAnnotation"`

	// ReconcilePeriod is the time between two checks of the cgroups that others write to.
	ReconcilePeriod Duration `yaml:"reconcilePeriod"`
	// StateTolerance is how far a node's memory may have moved since the state file was written.
	StateTolerance Tolerance `yaml:"stateTolerance"`
	// RecordingSize is how much room the recordings of run --record have, in bytes.
	RecordingSize quantity.Bytes `yaml:"recordingSize"`
	// StallGuard raises memory.high where it stops a container.
	StallGuard StallGuard `yaml:"stallGuard"`
	// DryRun decides, logs and counts, and touches nothing.
	DryRun bool `yaml:"dryRun"`
	// OnTermination says what becomes of the written files when the plugin ends on SIGTERM.
	OnTermination OnTermination `yaml:"onTermination"`

	// PodResources is the kubelet's PodResources API on a socket of ours.
	PodResources PodResources `yaml:"podResources"`
	// Events are Kubernetes Events on the pods.
	Events Events `yaml:"events"`
	// NodeResourceTopology exports what each NUMA node has left to the scheduler.
	NodeResourceTopology NodeResourceTopology `yaml:"nodeResourceTopology"`
	// DRA is the driver for resource claims on NUMA nodes.
	DRA claims.Config `yaml:"dra"`
	// Log is how the log is written.
	Log Log `yaml:"log"`

	// Origin is no key: it is what the files say beside the keys.
	Origin Origin `yaml:"-"`

	places *places // nil where the configuration was not read from a file
}

// Origin is what matters of the files that a configuration was read from, beside the values of its keys.
type Origin struct {
	// KubeletConfig is the path of the KubeletConfiguration; empty where none was read.
	KubeletConfig string
	// AssignsCPUs is the topology policy by which the kubelet assigns exclusive CPUs; empty where it assigns none, or is not known.
	AssignsCPUs topologymanager.Policy
	// WorkloadSwap is set where memory.swap.max is a limit of the container's, not a share of its request.
	WorkloadSwap bool
	// EvictionHard is set where one of the files has this key.
	EvictionHard bool
	// Warnings are about the KubeletConfiguration, one line each.
	Warnings []string
}

// StallGuard is when a memory.high that stops a container is raised, and when it comes back.
type StallGuard struct {
	Enabled bool `yaml:"enabled"`
	// Stall is the full memory stall within Window that counts as stopped.
	Stall Duration `yaml:"stall"`
	// Window is the window of the kernel's pressure trigger, 500ms to 10s.
	Window Duration `yaml:"window"`
	// Step is the first raise as a share of the gap between memory.high and the limit, in (0, 1].
	Step float64 `yaml:"step"`
	// RestoreAfter is the calm before a raised memory.high is lowered again.
	RestoreAfter Duration `yaml:"restoreAfter"`
	// ProactiveReclaim asks the kernel for page cache before the first raise.
	ProactiveReclaim bool `yaml:"proactiveReclaim"`
}

// ResourceSlices are this node's, which the drivers of resource claims publish.
type ResourceSlices struct {
	Enabled bool `yaml:"enabled"`
}

// PodResources is the PodResources v1 gRPC API.
type PodResources struct {
	Enabled bool `yaml:"enabled"`
}

// Events are Kubernetes Events.
type Events struct {
	Enabled bool `yaml:"enabled"`
}

// NodeResourceTopology is the export of NUMA nodes as objects of topology.node.k8s.io.
type NodeResourceTopology struct {
	Enabled bool `yaml:"enabled"`
	// Interval is the mean time between two writes while something changes all the time.
	Interval Duration `yaml:"interval"`
}

// Log is how the log is written.
type Log struct {
	Format LogFormat `yaml:"format"`
	// Level is a logrus level: error, warning, info, debug or trace.
	Level LogLevel `yaml:"level"`
}

// NamespaceRule says what pods of some namespaces may wish for.
type NamespaceRule struct {
	// Namespaces are names or patterns with * and ?.
	Namespaces []string `yaml:"namespaces"`
	// AllowedAnnotations replaces the general list; empty allows none.
	AllowedAnnotations []Annotation `yaml:"allowedAnnotations"`
	// MinimumThrottlingFactor replaces the general one; nil leaves it.
	MinimumThrottlingFactor *float64 `yaml:"minimumThrottlingFactor"`
}
