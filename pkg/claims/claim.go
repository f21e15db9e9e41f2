// Package claims is what resource claims (Dynamic Resource Allocation) have of the NUMA nodes' memory: the share that they may have,
// whether one fits, what a container may have of it, and the names that the scheduler, the runtime and containers know it by. Package
// dra below it is the driver.
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
package claims

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Claim is a resource claim. The scheduler has chosen the NUMA nodes, and its memory is allocated there from Prepare to Unprepare, also
// where no container uses it. It never changes; a new one takes its place.
type Claim struct {
	UID, Namespace, Name string
	// Pods are the UIDs of the pods that it is reserved for.
	Pods []string
	// Parts are its devices, in the order of its status.
	Parts []Part
}

// Part is what a claim has of one device, which is a NUMA node.
type Part struct {
	// Request is the name of the request in the claim.
	Request string
	Node    int
	Amounts memorymanager.Request
}

// String is namespace/name.
func (c *Claim) String() string { return c.Namespace + "/" + c.Name }

// Nodes are the NUMA nodes of parts.
func Nodes(parts []Part) (nodes nodeset.Set) {
	for _, part := range parts {
		nodes = nodes.Union(nodeset.Of(part.Node))
	}
	return nodes
}

// Sum is what parts have on all nodes.
func Sum(parts []Part) (sums memorymanager.Request) {
	for _, part := range parts {
		sums = plus(sums, part.Amounts)
	}
	return sums
}

// Blocks are parts as blocks with PerNode, one for each type and node.
func Blocks(parts []Part) (blocks []memorymanager.Block) {
	sums := Sums{}
	sums.add(parts)
	for at, bytes := range sums {
		block := memorymanager.Block{Nodes: nodeset.Of(at.Node), Type: at.Type, Size: bytes}
		if bytes > 0 {
			block.PerNode = []memorymanager.NodeAmount{{Node: at.Node, Bytes: bytes}}
		}
		blocks = append(blocks, block)
	}
	slices.SortFunc(blocks, func(a, b memorymanager.Block) int {
		return cmp.Or(strings.Compare(string(a.Type), string(b.Type)), cmp.Compare(a.Nodes, b.Nodes))
	})
	return blocks
}

// LimitAbove says how a container's memory limit is more than what its claims allocate for it; 0 is no limit, "" is no more.
func LimitAbove(limit, claimed uint64) string {
	switch {
	case limit == 0:
		return fmt.Sprintf("it has no memory limit, and its resource claims have %s", quantity.Short(claimed))
	case limit <= claimed:
		return ""
	}
	sizes := quantity.Apart(limit, claimed)
	return fmt.Sprintf("its memory limit of %s is above the %s that its resource claims have", sizes[0], sizes[1])
}
