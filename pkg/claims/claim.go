// Package claims has the rules for resource claims (Dynamic Resource Allocation) of the NUMA nodes' memory: the share that claims may have,
// whether a claim fits, what a container gets from it, and its names for the scheduler, the runtime and containers. The driver is package
// dra below it.
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

// Claim is a resource claim. The scheduler has chosen its NUMA nodes. Its memory is allocated there from Prepare to Unprepare, even if no
// container uses it. It is never modified, only replaced.
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

// Nodes returns the NUMA nodes of parts.
func Nodes(parts []Part) (nodes nodeset.Set) {
	for _, part := range parts {
		nodes = nodes.Union(nodeset.Of(part.Node))
	}
	return nodes
}

// Sum returns the amounts of parts on all nodes.
func Sum(parts []Part) (sums memorymanager.Request) {
	for _, part := range parts {
		sums = plus(sums, part.Amounts)
	}
	return sums
}

// Blocks converts parts to blocks with PerNode, one for each type and node.
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

// LimitAbove says by how much a container's memory limit is above what its claims allocate; "" if it is not. A limit of 0 is no limit.
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
