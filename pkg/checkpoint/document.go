package checkpoint

import (
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
