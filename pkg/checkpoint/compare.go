package checkpoint

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// What to do if a state and a machine differ.
const (
	doRebase  = "nothing for the plugin, which takes the machine's value at its start; a kubelet needs the node drained and the file removed"
	doReserve = "compare reservedMemory with the configuration under which the file was written"
	doMachine = "look whether the file is of this machine, and whether its firmware hides the node"
)

// Compare lists where a state does not fit a machine. nodes is the machine's node map without allocations. A difference in ordinary memory
// of up to tolerance bytes a node is ignored, if the allocations still fit. A tolerance of 0 is as strict as a kubelet without
// memory-drift-tolerance.
func Compare(s memorymanager.State, nodes []memorymanager.NodeState, tolerance uint64) []Finding {
	var c checker
	for _, now := range nodes {
		if stored := nodeOf(s.Nodes, now.ID); stored != nil {
			c.compareNode(*stored, now, tolerance)
		} else {
			c.add(nodeName(now.ID), doRebase, "is on the machine, but not in the file")
		}
	}
	hasMemory := func(t memorymanager.TypeTable) bool { return t.Total > 0 }
	for _, stored := range s.Nodes {
		if nodeOf(nodes, stored.ID) == nil && (stored.Assignments > 0 || slices.ContainsFunc(stored.Memory, hasMemory)) {
			c.add(nodeName(stored.ID), doMachine, "is in the file, but not among the machine's nodes (%d assignments)", stored.Assignments)
		}
	}
	c.compareGroups(s, nodes)
	return c.findings
}

// compareGroups checks, whatever the tolerance, that the allocations on each group of nodes still fit: memory may be on any node of its
// group.
func (c *checker) compareGroups(s memorymanager.State, nodes []memorymanager.NodeState) {
	reserved, _ := groupSums(s)
	for _, key := range slices.SortedFunc(maps.Keys(reserved), compareGroupType) {
		allocatable, there := uint64(0), nodeset.Set(0)
		for _, now := range nodes {
			if table := typeTable(now, key.name); table != nil && key.group.Has(now.ID) {
				allocatable += table.Allocatable
				there = there.Union(nodeset.Of(now.ID))
			}
		}
		if there == key.group && reserved[key] > allocatable { // missing nodes have been reported
			s := quantity.Apart(reserved[key], allocatable)
			c.add("nodes "+key.group.String(), doDrain, "%s: the memory assignment does not fit the machine state: containers have %s, the machine gives %s",
				key.name, s[0], s[1])
		}
	}
}

func (c *checker) compareNode(stored, now memorymanager.NodeState, tolerance uint64) {
	where := nodeName(now.ID)
	for _, table := range now.Memory {
		tolerance := tolerance
		if table.Type != memorymanager.Memory {
			tolerance = 0 // the number of huge pages does not drift
		}
		old := typeTable(stored, table.Type)
		switch {
		case old == nil && table.Total == 0: // an empty pool
		case old == nil:
			c.add(where, doRebase, "%s: %s on the machine, none in the file", table.Type, quantity.Short(table.Total))
		case distance(old.SystemReserved, table.SystemReserved) > 0:
			s := quantity.Apart(old.SystemReserved, table.SystemReserved)
			c.add(where, doReserve, "%s: systemReserved is %s in the file and %s here", table.Type, s[0], s[1])
		case distance(old.Total, table.Total) > tolerance:
			c.add(where, doRebase, "%s: total is %s", table.Type, difference(old.Total, table.Total, tolerance))
		case distance(old.Allocatable, table.Allocatable) > tolerance:
			c.add(where, doRebase, "%s: allocatable is %s", table.Type, difference(old.Allocatable, table.Allocatable, tolerance))
		}
		if old != nil && old.Reserved > table.Allocatable+tolerance {
			s := quantity.Apart(old.Reserved, table.Allocatable)
			c.add(where, doDrain, "%s: containers have %s, the machine gives %s", table.Type, s[0], s[1])
		}
	}
	for _, old := range stored.Memory {
		if typeTable(now, old.Type) == nil && old.Total > 0 {
			c.add(where, doMachine, "%s: %s in the file, none on the machine", old.Type, quantity.Short(old.Total))
		}
	}
}

func difference(file, machine, tolerance uint64) string {
	s := quantity.Apart(file, machine, distance(file, machine), tolerance)
	return fmt.Sprintf("%s in the file and %s on the machine, %s apart (tolerated %s)", s[0], s[1], s[2], s[3])
}

func distance(a, b uint64) uint64 { return max(a, b) - min(a, b) }

// ReserveAs returns a machine's nodes with the state's systemReserved, so that the rest can be compared without the configuration.
func ReserveAs(s memorymanager.State, nodes []memorymanager.NodeCapacity) []memorymanager.NodeCapacity {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].Reserved = nil
		stored := nodeOf(s.Nodes, nodes[i].ID)
		if stored == nil {
			continue
		}
		for _, table := range stored.Memory {
			if table.SystemReserved > 0 && table.SystemReserved <= table.Total {
				nodes[i].Reserved = append(nodes[i].Reserved, memorymanager.Amount{Type: table.Type, Bytes: table.SystemReserved})
			}
		}
	}
	return nodes
}
