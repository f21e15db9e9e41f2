package checkpoint

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint/internal/state"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// document is the JSON of a state file. Kubelets that read V1 skip the keys that are not in state.MemoryManagerCheckpoint.
type document struct {
	PolicyName   string                        `json:"policyName"`
	MachineState map[int]*node                 `json:"machineState"`
	Entries      map[string]map[string][]block `json:"entries,omitempty"`
	// PodEntries are the pods' own blocks, written by kubelets with the feature gate PodLevelResourceManagers.
	PodEntries map[string]podEntry `json:"podEntries,omitempty"`
	Checksum   uint64              `json:"checksum,omitempty"`
	// PerNodeChecksum is this plugin's, and so are the amounts of blocks.
	PerNodeChecksum uint32 `json:"perNodeChecksum,omitempty"`
	// Data is the state as a string, and DataChecksum its checksum: kubelets from 1.37.
	Data         string `json:"data,omitempty"`
	DataChecksum uint64 `json:"dataChecksum,omitempty"`
}

// node has its group under the old key in Nodes.
type node struct {
	state.NUMANodeState
	Nodes []int `json:"nodes,omitempty"`
}

// block has the bytes on each node in PerNode.
type block struct {
	state.Block
	PerNode map[int]uint64 `json:"perNode,omitzero"`
}

type podEntry struct {
	MemoryBlocks []block `json:"memoryBlocks"`
}

// newDocument returns the document of a state. PerNodeChecksum is the only checksum that it sets.
func newDocument(s memorymanager.State, policy string) document {
	d := document{PolicyName: policy, MachineState: map[int]*node{}, Entries: map[string]map[string][]block{}, PodEntries: map[string]podEntry{},
		PerNodeChecksum: amountsSum(s)}
	for _, from := range s.Nodes {
		to := &node{NUMANodeState: state.NUMANodeState{NumberOfAssignments: from.Assignments, MemoryMap: map[corev1.ResourceName]*state.MemoryTable{}, Cells: from.Cells.IDs()}}
		for _, t := range from.Memory {
			to.MemoryMap[corev1.ResourceName(validUTF8(string(t.Type)))] = &state.MemoryTable{
				TotalMemSize: t.Total, SystemReserved: t.SystemReserved, Allocatable: t.Allocatable, Reserved: t.Reserved, Free: t.Free}
		}
		d.MachineState[from.ID] = to
	}
	for _, pod := range byPod(s.Entries, nil) {
		containers := map[string][]block{}
		for _, entry := range pod.Entries {
			containers[validUTF8(entry.Container)] = newBlocks(entry.Blocks)
		}
		d.Entries[validUTF8(pod.Pod)] = containers
	}
	for _, entry := range s.Pods {
		d.PodEntries[validUTF8(entry.Pod)] = podEntry{newBlocks(entry.Blocks)}
	}
	return d
}

func newBlocks(from []memorymanager.Block) []block {
	blocks := make([]block, len(from))
	for i, b := range from {
		blocks[i] = block{state.Block{NUMAAffinity: b.Nodes.IDs(), Type: corev1.ResourceName(validUTF8(string(b.Type))), Size: b.Size}, amountsOf(b)}
	}
	return blocks
}

// amountsOf are a block's amounts by node; nil if it has none.
func amountsOf(b memorymanager.Block) map[int]uint64 {
	if b.PerNode == nil {
		return nil
	}
	amounts := map[int]uint64{}
	for _, amount := range b.PerNode {
		amounts[amount.Node] = amount.Bytes
	}
	return amounts
}

func (d document) json() []byte {
	text, _ := json.Marshal(d) // which cannot fail
	return text
}
