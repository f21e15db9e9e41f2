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
	// Annotations are as the runtime sends them; Annotated is what the plugin has read in them, nil until then (Gathered.Ask).
	Annotations map[string]string `json:"-"`
	Annotated   *ReadAnnotations
	// Overhead is the pod's RuntimeClass overhead in bytes of memory, 0 when none.
	Overhead uint64
	// MemoryLimit is the pod's memory limit in bytes without overhead (its own, or the sum of its containers'), 0 when none or
	// not known.
	MemoryLimit uint64
}

// Phase says where in its life a container is.
type Phase int

// The phases of a container.
const (
	// Unknown is the state of a container of which the runtime does not know it. It may run.
	Unknown Phase = iota
	Created
	Running
	Paused
	Stopped
	// Creating is the state of a container whose creation is not reported yet. Its files are the runtime's to write.
	Creating
)

var phaseNames = [...]string{
	Unknown: "unknown", Created: "created", Running: "running", Paused: "paused", Stopped: "stopped", Creating: "creating",
}

// String returns the state's name in lower case.
func (s Phase) String() string {
	if s < 0 || int(s) >= len(phaseNames) {
		s = Unknown
	}
	return phaseNames[s]
}

// Alive reports whether a container in this state holds memory, or is about to.
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
	// Claims are the parts of resource claims that it uses. More than claims.MostRefs are too many, however many they are.
	Claims []claims.Ref
	// DeviceNodes and CDIDevices are what its spec has, and PCIDevices is set where its environment names PCI devices. They are for
	// the driver, which finds out what they are; a Step reads Devices only.
	DeviceNodes []DeviceNode `json:"-"`
	CDIDevices  []string     `json:"-"`
	PCIDevices  bool         `json:"-"`
	// Devices are its devices with their NUMA nodes.
	Devices []topologymanager.Device
}

// DeviceNode is a device node in a container's spec.
type DeviceNode struct {
	// Path is where the container has it.
	Path string
	// Block is set for a block device; others are character devices.
	Block        bool
	Major, Minor int64
}

// Resources is what the kubelet asks for a container, through CRI.
type Resources struct {
	// MemoryLimit is in bytes; nil when the request does not name it, 0 or less means no limit.
	MemoryLimit *int64
	// OOMScoreAdj is nil when the request does not name it.
	OOMScoreAdj *int64
	// CPUs and Mems are cpuset.cpus and cpuset.mems in the kernel's list format.
	CPUs, Mems string
	// CPUShares is the CPU weight in cgroup v1's unit (1024 for a CPU); nil when the request does not name it. It
	// separates exclusive CPUs from shared ones.
	CPUShares *uint64
	// Hugepages are the limits per page size.
	Hugepages []HugepageLimit
	// Unified are the cgroup v2 files that the kubelet sets by name, for example "memory.high".
	Unified map[string]string
	// OOMGroup is memory.oom.group, which the kubelet sets by name, too; "" where the request does not name it, the runtime does not show
	// what it names, or the container was there before.
	OOMGroup string `json:",omitempty"`
}

// HugepageLimit is a container's limit of huge pages of one size.
type HugepageLimit struct {
	// PageSize is as in CRI and OCI, for example "2MB" or "1GB".
	PageSize string
	// Limit is in bytes.
	Limit uint64
}

// Adjustment is what the agent changes of a container. The zero value changes nothing.
type Adjustment struct {
	// CpusetMems is the field linux.resources.cpu.mems; "" leaves it.
	CpusetMems string
	// Unified are cgroup v2 files by name: memory.min, memory.low, memory.high, memory.oom.group.
	Unified map[string]string
	// MemoryPolicy is the memory policy of a new container's process.
	MemoryPolicy MemoryPolicy
}

// Empty reports whether nothing is changed.
func (a Adjustment) Empty() bool {
	return a.CpusetMems == "" && len(a.Unified) == 0 && a.MemoryPolicy == MemoryPolicy{}
}

// Update is an adjustment of a container that exists.
type Update struct {
	ContainerID string
	Adjustment
}

// Runtime is what the agent has to know about the runtime at the other end of the socket.
type Runtime struct {
	// Name and Version as the runtime registered, for example "containerd" and "v2.4.2".
	Name, Version string
	// NRIVersion is the version of NRI inside the runtime, "" when it does not say.
	NRIVersion string
	// ReplyUnified is set when the runtime applies unified keys in the reply to UpdateContainer (CRI-O ≤ 1.35 drops them);
	// where it is not, the agent writes the container's cgroup files itself.
	ReplyUnified bool
	// MemoryPolicies is set when the runtime applies a memory policy to a new container.
	MemoryPolicies bool
}
