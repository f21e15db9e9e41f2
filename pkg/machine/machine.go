// Package machine describes a node's hardware: NUMA nodes with their memory, CPUs, huge pages and distances. A machine file is
// one that a person writes; pkg/sysfs reads what the kernel shows.
package machine

import (
	"encoding/json"
	"math"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Machine is what the hardware has.
type Machine struct {
	// Nodes are the online NUMA nodes by id. Ids may have gaps; a node may be without memory or without CPUs.
	Nodes []Node
	// PageSize is the size of an ordinary page in bytes.
	PageSize int
	// MemTotal is /proc/meminfo's MemTotal in bytes: what the kubelet calls the node's memory capacity.
	MemTotal uint64
	// Swap is /proc/meminfo's SwapTotal in bytes.
	Swap uint64
	// KernelImage is what the running kernel's code and data take, in bytes (/proc/iomem); 0 where that is not known.
	KernelImage uint64
}

// NodeIDs are the machine's NUMA nodes that a set holds.
func (m Machine) NodeIDs() (ids nodeset.Set) {
	for _, node := range m.Nodes {
		ids = ids.Union(nodeset.Of(node.ID))
	}
	return ids
}

// Node is one NUMA node.
type Node struct {
	// ID is the kernel's number of the node, 0 to nodeset.MaxID.
	ID int
	// Memory is the node's MemTotal in bytes, huge page pools included.
	Memory uint64
	// CPUs are the node's CPUs; empty for a memory expander.
	CPUs cpuset.CPUSet
	// Hugepages are the node's huge page pools by page size, empty ones too.
	Hugepages []Pool
	// Distances is the node's row of the SLIT table: one value per node of Machine.Nodes, in their order.
	Distances []int
}

// nodeJSON is a Node with its CPUs in the kernel's list format.
type nodeJSON struct {
	ID        int
	Memory    uint64
	CPUs      string
	Hugepages []Pool
	Distances []int
}

// MarshalJSON writes the CPUs in the kernel's list format.
func (n Node) MarshalJSON() ([]byte, error) {
	return json.Marshal(nodeJSON{n.ID, n.Memory, n.CPUs.String(), n.Hugepages, n.Distances})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (n *Node) UnmarshalJSON(data []byte) error {
	var from nodeJSON
	if err := json.Unmarshal(data, &from); err != nil {
		return err
	}
	cpus, err := ParseCPUs(from.CPUs)
	if err == nil {
		*n = Node{from.ID, from.Memory, cpus, from.Hugepages, from.Distances}
	}
	return err
}

// Pool is the huge pages of one size on one node.
type Pool struct {
	// PageSize is the size of one page in bytes.
	PageSize uint64
	// Count is the number of pages (nr_hugepages).
	Count uint64
}

// driftGrace is what the memory of a NUMA node may move by beyond the kernel's image: what the kernel allocates at boot
// depends on where its image lies (KEP-6232).
const driftGrace = 64 << 20

// Drift is how far the memory of a NUMA node may move between two boots without being another machine's, in bytes: the
// kernel's image lies on another node each time, and 64 MiB beside it. It is 0 where the size of the image is not known.
// https://github.com/kubernetes/enhancements/issues/6232
func (m Machine) Drift() uint64 {
	if m.KernelImage == 0 || m.KernelImage > math.MaxInt64-driftGrace {
		return 0
	}
	return m.KernelImage + driftGrace
}

// SameMemory reports whether the NUMA nodes of both have the same huge page pools, and the same memory but for so many bytes on each.
func (m Machine) SameMemory(other Machine, tolerance uint64) bool {
	return slices.EqualFunc(m.Nodes, other.Nodes, func(a, b Node) bool {
		return a.ID == b.ID && max(a.Memory, b.Memory)-min(a.Memory, b.Memory) <= tolerance && slices.Equal(a.Hugepages, b.Hugepages)
	})
}
