package ledger

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Pod is a pod sandbox as the runtime knows it.
type Pod struct {
	// ID is the runtime's id of the sandbox; a pod that is restarted by the kubelet gets a new one under the same UID.
	ID string
	// UID, Namespace and Name are the Kubernetes names of the pod.
	UID, Namespace, Name string
	// CgroupParent is the pod's cgroup as the kubelet gave it to the runtime; the QoS class is read from it.
	CgroupParent string
	// Labels are the pod's when it was started; the API server's labels can change later.
	Labels map[string]string `json:",omitempty"`
	// Annotations are as the runtime sends them. Annotated is their parsed content, nil until they are read (Gathered.Ask).
	Annotations map[string]string `json:"-"`
	Annotated   *ReadAnnotations
	// Overhead is the pod's RuntimeClass overhead in bytes of memory; 0 if none.
	Overhead uint64
	// MemoryLimit is the pod's memory limit in bytes without overhead: its own, or the sum of its containers'. 0 is none or unknown.
	MemoryLimit uint64
}

// Phase is the phase of a container's life.
type Phase int

// The phases of a container.
const (
	// Unknown is the phase of a container whose phase the runtime does not know. It may run.
	Unknown Phase = iota
	Created
	Running
	Paused
	Stopped
	// Creating is the phase until the creation is reported as done. The runtime writes the container's files.
	Creating
)

var phaseNames = [...]string{
	Unknown: "unknown", Created: "created", Running: "running", Paused: "paused", Stopped: "stopped", Creating: "creating",
}

// String returns the phase in lower case.
func (s Phase) String() string {
	if s < 0 || int(s) >= len(phaseNames) {
		s = Unknown
	}
	return phaseNames[s]
}

// Alive reports whether a container in this phase holds memory, or is about to.
func (s Phase) Alive() bool { return s != Stopped }

// Container is a container as the runtime knows it.
type Container struct {
	// ID is the runtime's id; every restart of a container has a new one.
	ID string
	// PodID is the id of its sandbox (Pod.ID).
	PodID string
	// Name is the container's name in the pod's spec.
	Name  string
	State Phase
	// CgroupsPath is the OCI spec's linux.cgroupsPath.
	CgroupsPath string
	Resources   Resources
	// Claims are the parts of resource claims that it names. More than claims.MaxRefs are too many, whatever their number.
	Claims []claims.Ref
	// DeviceNodes and CDIDevices are from the container's spec. PCIDevices is set if its environment names PCI devices. The driver uses
	// them to find Devices; a Step reads only Devices.
	DeviceNodes []DeviceNode `json:"-"`
	CDIDevices  []string     `json:"-"`
	PCIDevices  bool         `json:"-"`
	// HasMemset is set if its environment already has MemsetVariable.
	HasMemset bool `json:",omitempty"`
	// OOMScore is set for a container that was created with one. Resources then have the kubelet's value.
	OOMScore *OOMScore `json:",omitempty"`
	// Devices are its devices with their NUMA nodes.
	Devices []topologymanager.Device
}

// DeviceNode is a device node in a container's spec.
type DeviceNode struct {
	// Path is the path in the container.
	Path string
	// Block is set for a block device; others are character devices.
	Block        bool
	Major, Minor int64
}

// Resources is what the kubelet asks for a container, through CRI.
type Resources struct {
	// MemoryLimit is in bytes. nil if the request does not name it; 0 or less is no limit.
	MemoryLimit *int64
	// OOMScoreAdj is nil if the request does not name it.
	OOMScoreAdj *int64
	// CPUs and Mems are cpuset.cpus and cpuset.mems in the kernel's list format.
	CPUs, Mems string
	// CPUShares is the CPU weight in cgroup v1's unit (1024 for a CPU); nil if the request does not name it. It distinguishes exclusive
	// CPUs from shared ones.
	CPUShares *uint64
	// Hugepages are the limits per page size.
	Hugepages []HugepageLimit
	// Unified are the cgroup v2 files that the kubelet sets by name, for example "memory.high".
	Unified map[string]string
	// OOMGroup is memory.oom.group, which the kubelet also sets by name. It is "" if the request does not name it, if the runtime does not
	// show it, or if the container was found.
	OOMGroup string `json:",omitempty"`
}

// HugepageLimit is a container's limit of huge pages of one size.
type HugepageLimit struct {
	// PageSize is as in CRI and OCI, for example "2MB" or "1GB".
	PageSize string
	// Limit is in bytes.
	Limit uint64
}

// MemsetVariable is the environment variable with a container's NUMA nodes as a list ("0-1"). It is named after assigned.memset, which
// KEP-6369 adds to the downward API with the same value: a program that reads it needs no change if the pod's spec sets it from there later.
const MemsetVariable = "ASSIGNED_MEMSET"

// Adjustment is what the agent changes in a container. The zero value changes nothing.
type Adjustment struct {
	// CpusetMems is the field linux.resources.cpu.mems; "" does not change it.
	CpusetMems string
	// Unified are cgroup v2 files by name: memory.min, memory.low, memory.high, memory.oom.group.
	Unified map[string]string
	// MemoryPolicy is the memory policy of a new container's process.
	MemoryPolicy MemoryPolicy
	// Memset is the value of MemsetVariable for a new container; "" sets none.
	Memset string `json:",omitempty"`
	// OOMScore is the oom_score_adj of a new container's processes; nil keeps the kubelet's.
	OOMScore *OOMScore `json:",omitempty"`
}

// Empty reports whether the adjustment changes nothing.
func (a Adjustment) Empty() bool {
	return a.CpusetMems == "" && len(a.Unified) == 0 && a.MemoryPolicy == MemoryPolicy{} && a.Memset == "" && a.OOMScore == nil
}

// Update is an adjustment of an existing container.
type Update struct {
	ContainerID string
	Adjustment
}

// Runtime describes the runtime at the other end of the socket.
type Runtime struct {
	// Name and Version are as the runtime registered, for example "containerd" and "v2.4.2".
	Name, Version string
	// NRIVersion is the version of NRI in the runtime; "" if unknown.
	NRIVersion string
	// ReplyUnified is set if the runtime applies unified keys in the reply to UpdateContainer. CRI-O ≤ 1.35 drops them; the agent then
	// writes the container's cgroup files itself.
	ReplyUnified bool
	// MemoryPolicies is set if the runtime applies a memory policy to a new container.
	MemoryPolicies bool
	// OOMScores is set if it applies an oom_score_adj to a new container.
	OOMScores bool `json:",omitempty"`
}
