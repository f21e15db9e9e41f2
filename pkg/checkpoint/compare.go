package checkpoint

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// What to do where a state and a machine differ.
const (
	doRebase  = "nothing for the plugin, which takes the machine's value at its start; a kubelet needs the node drained and the file removed"
	doReserve = "compare reservedMemory with the configuration under which the file was written"
	doMachine = "look whether the file is of this machine, and whether its firmware hides the node"
)

// Compare lists where a state does not fit a machine: nodes is the node map of that machine without allocations.
// Memory that differs by up to tolerance bytes a node and type is left out; 0 is as strict as the kubelet.
func Compare(s memorymanager.State, nodes []memorymanager.NodeState, tolerance uint64) []Finding {
	var c checker
	for _, now := range nodes {
		at := slices.IndexFunc(s.Nodes, func(n memorymanager.NodeState) bool { return n.ID == now.ID })
		if at < 0 {
			c.add(nodeName(now.ID), doRebase, "is on the machine, but not in the file")
			continue
		}
		c.compareNode(s.Nodes[at], now, tolerance)
	}
	for _, stored := range s.Nodes {
		gone := !slices.ContainsFunc(nodes, func(n memorymanager.NodeState) bool { return n.ID == stored.ID })
		if gone && (stored.Assignments > 0 || slices.ContainsFunc(stored.Memory, hasMemory)) {
			c.add(nodeName(stored.ID), doMachine, "is in the file, but not among the machine's nodes (%d assignments)", stored.Assignments)
		}
	}
	return c.findings
}

func (c *checker) compareNode(stored, now memorymanager.NodeState, tolerance uint64) {
	where := nodeName(now.ID)
	for _, table := range now.Memory {
		old := typeTable(stored, table.Type)
		switch {
		case old == nil && table.Total == 0: // a pool that is listed but empty
		case old == nil:
			c.add(where, doRebase, "%s: %d bytes on the machine, none in the file", table.Type, table.Total)
		case distance(old.SystemReserved, table.SystemReserved) > 0:
			c.add(where, doReserve, "%s: systemReserved is %d in the file and %d here", table.Type, old.SystemReserved, table.SystemReserved)
		case distance(old.Total, table.Total) > tolerance:
			c.add(where, doRebase, "%s: total is %d in the file and %d on the machine, %d bytes apart (tolerated %d)",
				table.Type, old.Total, table.Total, distance(old.Total, table.Total), tolerance)
		case distance(old.Allocatable, table.Allocatable) > tolerance:
			c.add(where, doRebase, "%s: allocatable is %d in the file and %d on the machine, %d bytes apart (tolerated %d)",
				table.Type, old.Allocatable, table.Allocatable, distance(old.Allocatable, table.Allocatable), tolerance)
		}
		if old != nil && old.Reserved > table.Allocatable+tolerance {
			c.add(where, doDrain, "%s: containers have %d bytes, the machine gives %d", table.Type, old.Reserved, table.Allocatable)
		}
	}
	for _, old := range stored.Memory {
		if typeTable(now, old.Type) == nil && old.Total > 0 {
			c.add(where, doMachine, "%s: %d bytes in the file, none on the machine", old.Type, old.Total)
		}
	}
}

func hasMemory(t memorymanager.TypeTable) bool { return t.Total > 0 }

func distance(a, b uint64) uint64 { return max(a, b) - min(a, b) }

// ReserveAs returns the nodes of a machine with what the state has reserved for the system on them, to compare the rest
// where the configuration is not known.
func ReserveAs(s memorymanager.State, nodes []memorymanager.NodeCapacity) []memorymanager.NodeCapacity {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].Reserved = nil
		at := slices.IndexFunc(s.Nodes, func(n memorymanager.NodeState) bool { return n.ID == nodes[i].ID })
		if at < 0 {
			continue
		}
		for _, table := range s.Nodes[at].Memory {
			if table.SystemReserved > 0 && table.SystemReserved <= table.Total {
				nodes[i].Reserved = append(nodes[i].Reserved, memorymanager.Amount{Type: table.Type, Bytes: table.SystemReserved})
			}
		}
	}
	return nodes
}
