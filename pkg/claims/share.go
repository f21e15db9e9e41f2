package claims

import (
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Claimable is what claims may have of a NUMA node, and pods without claims may not.
type Claimable struct {
	Node int
	// Amounts are sorted by type; a type of which claims may have nothing is left out.
	Amounts memorymanager.Request
}

// Room is where claims are allocated.
type Room struct {
	// Nodes are all NUMA nodes, for claims and pods together.
	Nodes     []memorymanager.NodeCapacity
	Claimable []Claimable
	// Pods is the Memory Manager of the pods without claims; nil under the policy None.
	Pods *memorymanager.Manager
}

// most is what claims may have at most: what is allocatable and no pod has; false where the node has none of that memory.
func (r Room) most(at Kind) (bytes uint64, there bool) {
	if r.Pods == nil {
		return 0, false
	}
	_, allocated, there := r.Pods.Capacity(at.Node, at.Type)
	has := allocatable(r.Nodes, at)
	return has - min(has, allocated), there
}

// allocatable is what a node has for claims and pods together.
func allocatable(nodes []memorymanager.NodeCapacity, at Kind) uint64 {
	for _, node := range nodes {
		if node.ID == at.Node {
			return node.Allocatable(at.Type)
		}
	}
	return 0
}

// Capacity is what claims may have, and have, of one type of memory on a NUMA node.
type Capacity struct {
	Node int
	Type memorymanager.MemoryType
	// Capacity is the share, less what pods have of it from before there was one, and at least what claims have as far as the node
	// still has it; Claimed is what prepared claims have. Both are in bytes.
	Capacity, Claimed uint64
}

// memoryStep is the unit in which claims have memory: one huge page of the usual size.
const memoryStep = 2 << 20

// Step is the unit in which claims have a type of memory, in bytes.
func Step(memoryType memorymanager.MemoryType) uint64 {
	size, err := quantity.Parse(strings.TrimPrefix(string(memoryType), "hugepages-"))
	if memoryType == memorymanager.Memory || err != nil || size == 0 {
		return memoryStep
	}
	return size
}

// NodesForPods are the nodes of the Memory Manager without what is set aside for claims.
func NodesForPods(nodes []memorymanager.NodeCapacity, aside []Claimable) []memorymanager.NodeCapacity {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		for _, claimable := range aside {
			if claimable.Node == nodes[i].ID {
				nodes[i].Reserved = plus(nodes[i].Reserved, claimable.Amounts)
			}
		}
	}
	return nodes
}

// plus adds amounts by type.
func plus(sums, more memorymanager.Request) memorymanager.Request {
	for _, amount := range more {
		if amount.Bytes > 0 {
			amount.Bytes += sums.Of(amount.Type)
			sums = sums.AtLeast(amount)
		}
	}
	return sums
}
