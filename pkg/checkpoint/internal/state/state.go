// Package state is the schema of the kubelet's state file memory_manager_state.
//
// The names of packages, types and fields and the fields' order are part of the checksum: the kubelet sums the text that
// k8s.io/utils/dump.ForHash makes of these values. They may not change.
package state

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint/internal/checksum"
)

// MemoryManagerCheckpoint is the whole file.
type MemoryManagerCheckpoint struct {
	PolicyName   string                     `json:"policyName"`
	MachineState NUMANodeMap                `json:"machineState"`
	Entries      ContainerMemoryAssignments `json:"entries,omitempty"`
	Checksum     checksum.Checksum          `json:"checksum"`
}

// PodMemoryAssignments has the pods' own blocks by UID. In layout V2 it stands in the file between Entries and Checksum.
type PodMemoryAssignments map[string]PodEntry

// PodEntry has a pod's own blocks.
type PodEntry struct {
	MemoryBlocks []Block `json:"memoryBlocks,omitempty"`
}

// NUMANodeMap has the NUMA nodes by id.
type NUMANodeMap map[int]*NUMANodeState

// NUMANodeState is one NUMA node.
type NUMANodeState struct {
	NumberOfAssignments int                              `json:"numberOfAssignments"`
	MemoryMap           map[v1.ResourceName]*MemoryTable `json:"memoryMap"`
	Cells               []int                            `json:"cells"`
}

// MemoryTable is the memory of one type on one node in bytes.
type MemoryTable struct {
	TotalMemSize   uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// ContainerMemoryAssignments has the blocks by pod UID and container name.
type ContainerMemoryAssignments map[string]map[string][]Block

// Block is a container's memory of one type.
type Block struct {
	NUMAAffinity []int           `json:"numaAffinity"`
	Type         v1.ResourceName `json:"type"`
	Size         uint64          `json:"size"`
}
