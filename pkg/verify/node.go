package verify

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

// Node is all that the checks look at.
type Node struct {
	Document status.Document
	// Pod has the UIDs of the only pods that are audited, with what holds for the whole node; nil audits all pods.
	Pod []string
	// Cgroups are the cgroups from the top of the hierarchy down to the containers, and their siblings, by path.
	Cgroups map[string]Cgroup
	// PageSize is the kernel's, in bytes: its files show whole pages. 0 counts as 4096.
	PageSize uint64
	// Pools are the kernel's huge page pools; nil where they are not known.
	Pools []sysfs.Pool
	// Kubelet is nil where its configuration file was not found.
	Kubelet *Kubelet
	// Kernel is nil for a tree that is none of a kernel.
	Kernel *Kernel
	// SetAside are files in the state folder that could not be used.
	SetAside []string
	// Skipped names what could not be read, and why.
	Skipped []string
}

// Of returns the node with a pod to audit, given as namespace/name, name or UID; with all of that name.
func (n Node) Of(pod string) (Node, error) {
	for i := range n.Document.Pods {
		if p := &n.Document.Pods[i]; p.Is(pod) {
			n.Pod = append(n.Pod, p.UID)
		}
	}
	if n.Pod == nil {
		return Node{}, fmt.Errorf("no pod %q on this node", pod)
	}
	return n, nil
}

// Cgroup holds the values of a cgroup's files in bytes.
type Cgroup struct {
	Min, Low, High uint64
	// OOMGroup is memory.oom.group; read where the daemon has set it.
	OOMGroup uint64
	// Mems is cpuset.mems, "" where the cgroup takes its parent's nodes.
	Mems string
	// Pages are the bytes by kind ("anon", "file", "shmem") and NUMA node of memory.numa_stat; read for containers only.
	Pages map[string]map[int]uint64
}

// Kubelet is what matters of a KubeletConfiguration
// (https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/).
type Kubelet struct {
	File                    string
	MemoryManagerPolicy     string          `json:"memoryManagerPolicy"`
	FeatureGates            map[string]bool `json:"featureGates"`
	MemoryThrottlingFactor  *float64        `json:"memoryThrottlingFactor"`
	MemoryReservationPolicy string          `json:"memoryReservationPolicy"`
}

// Kernel holds facts about the running kernel.
type Kernel struct {
	// Release is as uname prints it.
	Release string
	// Pressure is set where cgroups have memory.pressure (PSI).
	Pressure bool
	// Reclaim is set where cgroups have memory.reclaim.
	Reclaim bool
	// RecursiveProtection is set where cgroup2 is mounted with memory_recursiveprot, as systemd does.
	RecursiveProtection bool
	// LocalEvents is set where it is mounted with memory_localevents: memory.events then counts nothing of the cgroups below.
	LocalEvents bool
	// NUMABalancing is set unless the sysctl kernel.numa_balancing is 0, or not there (Documentation/admin-guide/sysctl/kernel.rst).
	NUMABalancing bool
}
