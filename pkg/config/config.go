// Package config is what the administrator decides: the YAML file, what a KubeletConfiguration already says, and what pods
// may wish for by annotation. The kubelet's ideas have the kubelet's names and meaning.
package config

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Config is the configuration file. Default has the value of every key that a file leaves out.
type Config struct {
	// APIVersion and Kind say how the file is to be read, as in every file of Kubernetes; empty is the one version that there is.
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	// Profile sets the keys of a purpose; what the file sets besides wins.
	Profile Profile `yaml:"profile"`

	// KubeletConfig is the path of a KubeletConfiguration that sets the keys with the kubelet's names.
	// What this file sets wins.
	KubeletConfig string `yaml:"kubeletConfig"`

	// MemoryManagerPolicy is Static (place Guaranteed pods) or None.
	MemoryManagerPolicy MemoryManagerPolicy `yaml:"memoryManagerPolicy"`
	// TopologyManagerPolicy judges the placements: none, best-effort, restricted or single-numa-node.
	TopologyManagerPolicy topologymanager.Policy `yaml:"topologyManagerPolicy"`
	// TopologyManagerScope aligns each container or each pod.
	TopologyManagerScope topologymanager.Scope `yaml:"topologyManagerScope"`
	// TopologyManagerPolicyOptions are the kubelet's; max-allowable-numa-nodes is the one that changes no placement, and
	// numa-allocation-strategy has one more value, least-used.
	TopologyManagerPolicyOptions map[string]string `yaml:"topologyManagerPolicyOptions"`
	// PodLevelResourceManagers allocates Guaranteed pods with pod-level resources as the kubelet does under the feature gate
	// of this name. Without it such a pod is not pinned.
	PodLevelResourceManagers bool `yaml:"podLevelResourceManagers"`
	// OnUnsatisfiable is what happens to a container that cannot be placed; empty is Reject for restricted and
	// single-numa-node, Unpinned for none and best-effort.
	OnUnsatisfiable OnUnsatisfiable `yaml:"onUnsatisfiable"`
	// OnConflict says what counts if a container's exclusive CPUs, its devices, the policy and groups disagree: the kubelet's rules
	// alone, the CPUs, or the devices.
	OnConflict OnConflict `yaml:"onConflict"`
	// ResourceSlices reads NUMA nodes of devices that neither the kubelet nor sysfs knows from this node's ResourceSlices.
	ResourceSlices bool `yaml:"resourceSlices"`
	// VerifyHugepages rejects a container whose huge pages the kernel does not have free on its nodes (KEP-5759), like any other that
	// cannot be placed.
	VerifyHugepages bool `yaml:"verifyHugepages"`
	// ExposeAssignedMemset tells a container the NUMA nodes that this plugin has assigned to it (ledger.MemsetVariable).
	ExposeAssignedMemset bool `yaml:"exposeAssignedMemset"`
	// UnpinnedMemoryPolicy is the NUMA memory policy with which containers without an allocation start, if the runtime applies
	// memory policies.
	UnpinnedMemoryPolicy MemoryPolicy `yaml:"unpinnedMemoryPolicy"`
	// MaxMigrationBytes bounds the memory of one running container that a write of its cpuset.mems moves to other nodes; 0 moves nothing.
	MaxMigrationBytes quantity.Bytes `yaml:"maxMigrationBytes"`
	// NodesWithoutCPUs are left out of placements (Exclude), also of containers without an allocation (Confine), or are used like
	// others (Include).
	NodesWithoutCPUs NodesWithoutCPUs `yaml:"nodesWithoutCPUs"`

	// ReservedMemory is kept from containers per NUMA node: the kubelet's list, or the text of its --reserved-memory flag.
	// Empty spreads the sum of KubeReserved, SystemReserved and EvictionHard over the nodes.
	ReservedMemory ReservedMemory `yaml:"reservedMemory"`
	// KubeReserved, SystemReserved and EvictionHard are the kubelet's. Only the resources memory and hugepages-<size> and the
	// signal memory.available (a quantity or a percentage of the node's memory) count here, and CPUs in a simulated kubelet.
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

	// CacheRoom is the share of the limit by which a container's memory.high is below memory.max at least, in [0, 0.5]. With 0 only
	// MemoryThrottlingFactor counts.
	CacheRoom float64 `yaml:"cacheRoom"`

	// ReclaimBeforeEviction frees page cache of containers above their requests before the kubelet would evict pods for it.
	ReclaimBeforeEviction bool `yaml:"reclaimBeforeEviction"`

	// RequestSources are the sources of memory requests, in order of precedence; if it is empty, the plugin tries all.
	RequestSources []memoryqos.Source `yaml:"requestSources"`

	// AnnotationRules say what pods may choose by annotation, and what counts where they do not; the first rule that matches a pod
	// counts, and a pod that none matches may choose everything but oom-score-adj.
	AnnotationRules []AnnotationRule `yaml:"annotationRules"`
	// OnBadAnnotation ignores a wrong annotation, or rejects the pod's containers.
	OnBadAnnotation OnBadAnnotation `yaml:"onBadAnnotation"`

	// StateTolerance is how far a node's memory may have moved since the state file was written.
	StateTolerance Tolerance `yaml:"stateTolerance"`
	// StallGuard raises a memory.high that stops a container.
	StallGuard bool `yaml:"stallGuard"`
	// FailurePolicy says what happens to a container's creation or update that is not answered in time.
	FailurePolicy FailurePolicy `yaml:"failurePolicy"`
	// OnTermination says what happens to the written files when the plugin ends on SIGTERM.
	OnTermination OnTermination `yaml:"onTermination"`

	// Events writes Kubernetes Events on the pods.
	Events bool `yaml:"events"`
	// EvictRejectedAfter is how long a pod of a controller may be refused for want of memory before it is evicted; 0 evicts none.
	EvictRejectedAfter Duration `yaml:"evictRejectedAfter"`
	// NodeResourceTopology exports what each NUMA node has left to the scheduler.
	NodeResourceTopology bool `yaml:"nodeResourceTopology"`
	// DRA is the driver for resource claims on NUMA nodes.
	DRA claims.Config `yaml:"dra"`
	// LogLevel is a logrus level: error, warning, info, debug or trace.
	LogLevel LogLevel `yaml:"logLevel"`

	// Origin is no key: it is what the files say beside the keys.
	Origin Origin `yaml:"-"`
	// RolledBack is no key: everything that was written has been set back by command, and the profile does not count until that is undone.
	RolledBack bool `yaml:"-" json:",omitzero"`

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
	// EvictionSoft is the KubeletConfiguration's, for memory.available.
	EvictionSoft map[string]string
	// Warnings are about the KubeletConfiguration, one line each.
	Warnings []string
}

// AnnotationRule says what some pods may wish for, and has defaults for what they do not.
type AnnotationRule struct {
	// Name is for people.
	Name string `yaml:"name"`
	// Namespaces are names or patterns with * and ?. The rule is for pods of these namespaces that have all Labels; either may be empty.
	Namespaces []string `yaml:"namespaces"`
	// Labels are labels of the pod as it was started, by key. Their values may be patterns.
	Labels map[string]string `yaml:"labels"`
	// AllowedAnnotations are the annotations that they may use; empty allows none.
	AllowedAnnotations []Annotation `yaml:"allowedAnnotations"`
	// MinimumThrottlingFactor is the smallest factor that they may choose, in [0, 1].
	MinimumThrottlingFactor float64 `yaml:"minimumThrottlingFactor"`
	// Defaults are values of annotations that a pod has not, or may not use.
	Defaults map[Annotation]string `yaml:"defaults"`
	// PriorityClasses are values of the annotation oom-score-adj by PriorityClass, for pods without the annotation or that may not use it.
	PriorityClasses map[string]string `yaml:"priorityClasses"`
}

// replaced says what replaces the keys of versions before v0.3.0, and what is not a key of the file's top level.
var replaced = map[string]string{
	"rebalance": "the memory of running containers is not moved any more: use numa-allocation-strategy: least-used, unpinnedMemoryPolicy: PreferAvailable or " +
		"the annotation memory-policy: interleave in place of deficits and consolidate, and maxMigrationBytes in place of maxBytes",
	"dryRun":                  "use profile: Observe",
	"numaAllocationStrategy":  "use topologyManagerPolicyOptions: {numa-allocation-strategy: X}",
	"onGroupConflict":         "use onConflict: Kubelet in place of Fail, CPUs in place of FallBack",
	"onForeignCPUs":           "use onConflict: Kubelet in place of Reject, CPUs in place of Follow",
	"alignTo":                 "use onConflict: Kubelet, CPUs or Devices",
	"reservedMemoryCheck":     "sums that differ are an error, as in the kubelet",
	"allowedAnnotations":      `use it in a rule of annotationRules for the namespaces ["*"]`,
	"minimumThrottlingFactor": `use it in a rule of annotationRules for the namespaces ["*"]`,
	"podResources":            "use the flag --podresources-socket=",
	"log":                     "use logLevel, and the flag --log-format",
	"kubeconfig":              "use the flag --kubeconfig",
	"nodeName":                "use the flag --node-name",
	"requestTimeout":          "it is always 300 ms",
	"reconcilePeriod":         "it is always 10 s",

	"cpuManagerPolicy":   "it is the kubelet's: set it there; what it assigns is followed, see onConflict",
	"reservedSystemCPUs": "it is the kubelet's: set it there, and for simulate in the machine file",
	"featureGates":       "it is the kubelet's, and none is needed here",
	"memoryQoS":          "use memoryReservationPolicy and memoryThrottlingFactor",
	"config":             "it is of the Helm chart's values: give what is below it",
	"nodeGroups":         "it is of the Helm chart's values",
}

// Instead says what replaces a key that was removed, or where it belongs (strictyaml.Replacer).
func (*Config) Instead(key string) string {
	if slices.Contains(policyOptions, key) {
		return "it belongs in topologyManagerPolicyOptions"
	}
	return replaced[key]
}

// DryRun reports whether everything is decided, logged and counted, and nothing is written.
func (c Config) DryRun() bool { return c.Profile == ProfileObserve || c.RolledBack }
