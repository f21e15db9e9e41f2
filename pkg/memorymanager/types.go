// Package memorymanager decides on which NUMA nodes a container's memory and huge pages live: the Static policy of the
// kubelet's Memory Manager (KEP-1769). It is pure: it reads no file, writes none and logs nothing.
// https://kubernetes.io/docs/tasks/administer-cluster/memory-manager/
package memorymanager

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// MemoryType names a kind of memory as Kubernetes does: "memory" or "hugepages-<size>".
type MemoryType string

// Memory is a node's ordinary memory.
const Memory MemoryType = "memory"

// Hugepages returns the type of a page size in bytes, for example "hugepages-2Mi".
func Hugepages(pageSize uint64) MemoryType {
	return MemoryType("hugepages-" + quantity.Format(pageSize))
}

// Amount is a number of bytes of one type.
type Amount struct {
	Type  MemoryType
	Bytes uint64
}

// Request is what a container asks for, sorted by type, each type once.
type Request []Amount

// Pool is the huge pages of one size on one NUMA node.
type Pool struct {
	// PageSize is the size of a page in bytes.
	PageSize uint64
	// Count is the number of pages (nr_hugepages); 0 is a pool that is listed but empty.
	Count uint64
}

// NodeCapacity is what one NUMA node has.
type NodeCapacity struct {
	// ID is the kernel's node number, 0 to 63.
	ID int
	// Total is the node's MemTotal in bytes, huge page pools included.
	Total uint64
	// Pools are the node's huge pages.
	Pools []Pool
	// Reserved is kept from containers (--reserved-memory), in bytes per type.
	Reserved Request
	// Distances is the node's row of the SLIT table, one value per node in the order of ids; only prefer-closest reads it.
	Distances []int
}

// NodeAmount is a number of bytes on one NUMA node.
type NodeAmount struct {
	Node  int
	Bytes uint64
}

// NodeAmounts are sorted by node, each node once.
type NodeAmounts []NodeAmount

// Block is a container's allocation of one type on a set of nodes.
type Block struct {
	Nodes nodeset.Set `json:"numaNodes"`
	Type  MemoryType  `json:"type"`
	// Size is in bytes; the block of a finished init container shrinks as later containers take its memory over.
	Size uint64 `json:"size"`
	// PerNode says where the bytes are allocated. Only State has it, where its sums over all blocks are what the
	// nodes have allocated: a container that leaves a group frees its lowest nodes first, so others' bytes may move between nodes.
	// A state that comes from a kubelet has none.
	PerNode NodeAmounts `json:"perNode"`
}

// Table is the memory of one type on one node in bytes, as in the kubelet's state file.
type Table struct {
	Total          uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"allocated"`
	Free           uint64 `json:"free"`
}

// TypeTable is the Table of one type.
type TypeTable struct {
	Type MemoryType `json:"type"`
	Table
}

// NodeState is one node of the kubelet's machineState.
type NodeState struct {
	ID int `json:"id"`
	// Assignments counts the blocks that contain this node (numberOfAssignments).
	Assignments int `json:"assignments,omitempty"`
	// Cells is the group of nodes that this node's containers span; the node alone at first.
	Cells nodeset.Set `json:"group"`
	// Memory is sorted by type.
	Memory []TypeTable `json:"memory"`
}

// Grouped reports whether containers span this node and others.
func (n NodeState) Grouped() bool { return n.Cells.Len() > 1 }

// Of is the node's table of a type; empty where it has none.
func (n NodeState) Of(t MemoryType) Table {
	for _, table := range n.Memory {
		if table.Type == t {
			return table.Table
		}
	}
	return Table{}
}

// Entry is a container's allocation.
type Entry struct {
	// Pod is the pod's UID.
	Pod string
	// Container is the container's name.
	Container string
	Blocks    []Block
}

// PodEntry is the allocation of a pod with pod-level resources (podEntries). The entries of its containers are parts of
// it: they may overlap, and are not counted beside it.
type PodEntry struct {
	// Pod is the pod's UID.
	Pod    string
	Blocks []Block
}

// State is everything a checkpoint stores: nodes by id, entries by pod and container, pod entries by pod.
type State struct {
	Nodes   []NodeState
	Entries []Entry
	Pods    []PodEntry
}

// Container is a Guaranteed container that asks for memory.
type Container struct {
	// Pod is the pod's UID, Name the container's name: together they own the allocation.
	Pod, Name string
	Kind      memoryqos.Kind
	Request   Request
	// CPUs are the NUMA nodes of the container's exclusive CPUs; empty when it has none.
	CPUs nodeset.Set
	// Devices are the container's devices and their NUMA nodes.
	Devices []topologymanager.Device
	// FreePages are what the kernel has free of the huge pages that it asks for; nil verifies nothing.
	FreePages []FreePages
	// Required is set when its pod asks for no more NUMA nodes than it needs (the annotation numa: required).
	Required bool
}

// Options choose how containers are placed.
type Options struct {
	// Policy is None when empty.
	Policy topologymanager.Policy
	// Scope is ContainerScope when empty.
	Scope topologymanager.Scope
	// PreferClosest is the kubelet's prefer-closest-numa-nodes.
	PreferClosest bool
	// Strategy is the kubelet's numa-allocation-strategy; NoStrategy when empty.
	Strategy topologymanager.Strategy
	// Weights are the kubelet's numa-score-weights, of memory types; what is not named has 1, and 0 leaves a type out.
	Weights map[MemoryType]uint64
	// FallBack takes the narrowest set of nodes with room where policy none or best-effort leads to nodes that a group
	// keeps from being used; without it such a container is rejected, as the kubelet does (kubernetes#138495).
	FallBack bool
	// FollowCPUs lets the memory of a container under policy restricted follow exclusive CPUs that are on more nodes than
	// the policy admits; without it such a container is rejected.
	FollowCPUs bool
	// AlignTo says what memory is aligned to where CPUs and devices disagree; AlignToCPUs when empty. A container whose nodes
	// are required is aligned to both.
	AlignTo topologymanager.AlignTo
	// Nearest has the machine's nodes that are not in the node map.
	Nearest map[int]Nearest
}

// Placement is where a container's memory is.
type Placement struct {
	// Affinity is the Topology Manager's answer; its Nodes are empty for policy none.
	Affinity topologymanager.Hint
	// Blocks are the container's allocations, sorted by type.
	Blocks []Block
	// Nodes is what goes into cpuset.mems: the union of the blocks' nodes, or all nodes while the container is short.
	Nodes nodeset.Set
	// PendingResize is what a resized container asks for beyond its blocks; nil when they hold all of it.
	PendingResize Request
	// Existing is set when the container had its allocation before.
	Existing bool
	// Bounded is set when the search ran into its budget: the placement is correct but may span more nodes than needed.
	Bounded bool
	// Overcommitted lists the bytes that were allocated beyond what was free; only Adopt and Resize of running containers do.
	Overcommitted []NodeShortage
}

// NodeShortage is what is allocated on a node beyond its allocatable bytes.
type NodeShortage struct {
	Node int
	Amount
}
