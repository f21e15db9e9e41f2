package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Finding is something that is wrong in a state.
type Finding struct {
	// Where names the node, or the pod and container.
	Where string `json:"where"`
	// What is wrong, with the values.
	What string `json:"what"`
	// Do says what to do about it.
	Do string `json:"do"`
}

// What to do about a finding.
const (
	doRebuild      = "start the plugin: it rebuilds the node map from the running containers; a kubelet needs the node drained and the file removed"
	doReservations = "lower reservedMemory or the number of huge pages"
	doDrain        = "drain the pod, or leave it to the plugin, which keeps it on the nodes it has"
)

// Check lists the contradictions in a state: a node's sums, groups, assignments, entries, per-node amounts. The kubelet compares the same
// at its start, when it builds the node map from the entries.
func Check(s memorymanager.State) []Finding {
	c := checker{state: s}
	for _, node := range s.Nodes {
		c.checkTables(node)
		c.checkGroup(node)
	}
	for _, blocks := range countedBlocks(s) {
		c.checkBlocks(blocks)
	}
	c.checkParts()
	if len(c.findings) == 0 { // sums add nothing about a state that is already wrong
		c.checkAssignments()
		c.checkGroupSums()
	}
	if len(c.findings) == 0 {
		c.checkAmounts()
	}
	return c.findings
}

type checker struct {
	state    memorymanager.State
	findings []Finding
}

func (c *checker) add(where, do, format string, args ...any) {
	c.findings = append(c.findings, Finding{Where: where, What: fmt.Sprintf(format, args...), Do: do})
}

func nodeName(id int) string { return fmt.Sprintf("node %d", id) }

func entryName(entry memorymanager.Entry) string {
	return "pod " + entry.Pod + " container " + entry.Container
}

// ownedBlocks are blocks that count in the node map.
type ownedBlocks struct {
	owner  string
	blocks []memorymanager.Block
}

// countedBlocks returns the blocks that count in the node map: a pod's, if it is allocated as a whole, or else its containers'.
func countedBlocks(s memorymanager.State) (all []ownedBlocks) {
	own := map[string]bool{}
	for _, entry := range s.Pods {
		own[entry.Pod] = true
		all = append(all, ownedBlocks{"pod " + entry.Pod, entry.Blocks})
	}
	for _, entry := range s.Entries {
		if !own[entry.Pod] {
			all = append(all, ownedBlocks{entryName(entry), entry.Blocks})
		}
	}
	return all
}

func (c *checker) checkTables(node memorymanager.NodeState) {
	pools := uint64(0)
	for _, table := range node.Memory {
		if table.Type != memorymanager.Memory {
			pools += table.Total
		}
	}
	for _, table := range node.Memory {
		want := table.Total - table.SystemReserved
		if table.Type == memorymanager.Memory {
			want -= pools
		}
		if table.Allocatable != want {
			s := quantity.Apart(table.Allocatable, table.Total, table.SystemReserved, want)
			c.add(nodeName(node.ID), doRebuild, "%s: allocatable is %s, but total %s without systemReserved %s and huge pages is %s",
				table.Type, s[0], s[1], s[2], s[3])
		}
		if table.Allocatable > table.Total {
			s := quantity.Apart(table.Allocatable, table.Total)
			c.add(nodeName(node.ID), doReservations, "%s: allocatable %s is more than total %s: what is reserved and the huge pages exceed the memory",
				table.Type, s[0], s[1])
		}
		if sum := table.Reserved + table.Free; sum != table.Allocatable {
			s := quantity.Apart(table.Reserved, table.Free, sum, table.Allocatable)
			c.add(nodeName(node.ID), doRebuild, "%s: reserved %s + free %s is %s, but allocatable is %s", table.Type, s[0], s[1], s[2], s[3])
		}
	}
}

// checkGroup checks that all nodes of a group name the same group.
func (c *checker) checkGroup(node memorymanager.NodeState) {
	where := nodeName(node.ID)
	switch {
	case !node.Cells.Has(node.ID):
		c.add(where, doRebuild, "its group [%s] does not contain it", node.Cells)
	case node.Assignments == 0 && node.Grouped():
		c.add(where, doRebuild, "is in group [%s] without an assignment", node.Cells)
	}
	for id := range node.Cells.All() {
		if other := nodeOf(c.state.Nodes, id); other == nil {
			c.add(where, doRebuild, "its group [%s] has node %d, which is not in machineState", node.Cells, id)
		} else if other.Cells != node.Cells {
			c.add(where, doRebuild, "is in group [%s], but node %d is in [%s]", node.Cells, id, other.Cells)
		}
	}
}

// checkParts checks that, in a pod that is allocated as a whole, the containers' blocks are parts of the pod's.
func (c *checker) checkParts() {
	for _, pod := range byPod(c.state.Entries, c.state.Pods) {
		if pod.Blocks != nil && len(pod.Entries) == 0 {
			c.add("pod "+pod.Pod, doRebuild, "has an allocation and no containers")
		}
		for _, entry := range pod.Entries {
			for _, part := range entry.Blocks {
				within := slices.ContainsFunc(pod.Blocks, func(b memorymanager.Block) bool {
					return b.Type == part.Type && b.Nodes == part.Nodes && b.Size >= part.Size
				})
				if pod.Blocks != nil && !within {
					c.add(entryName(entry), doRebuild, "%d bytes of %s on nodes [%s] are no part of its pod's allocation", part.Size, part.Type, part.Nodes)
				}
			}
		}
	}
}

// checkBlocks checks that blocks are on nodes of one group that have the memory.
func (c *checker) checkBlocks(owned ownedBlocks) {
	where := owned.owner
	for _, block := range owned.blocks {
		for id := range block.Nodes.All() {
			switch node := nodeOf(c.state.Nodes, id); {
			case node == nil:
				c.add(where, doDrain, "%s is on node %d, which is not in machineState", block.Type, id)
			case typeTable(*node, block.Type) == nil:
				c.add(where, doDrain, "%s is on node %d, which has no such memory", block.Type, id)
			case node.Cells != block.Nodes:
				c.add(where, doDrain, "%s is on nodes [%s], but node %d is in group [%s]", block.Type, block.Nodes, id, node.Cells)
			}
		}
	}
}

// nodeOf returns the node with an id; nil if there is none.
func nodeOf(nodes []memorymanager.NodeState, id int) *memorymanager.NodeState {
	return first(nodes, func(n memorymanager.NodeState) bool { return n.ID == id })
}

func typeTable(node memorymanager.NodeState, name memorymanager.MemoryType) *memorymanager.TypeTable {
	return first(node.Memory, func(t memorymanager.TypeTable) bool { return t.Type == name })
}

func first[E any](all []E, is func(E) bool) *E {
	if at := slices.IndexFunc(all, is); at >= 0 {
		return &all[at]
	}
	return nil
}

func (c *checker) checkAssignments() {
	assigned := map[int]int{}
	for _, owned := range countedBlocks(c.state) {
		for _, block := range owned.blocks {
			for id := range block.Nodes.All() {
				assigned[id]++
			}
		}
	}
	for _, node := range c.state.Nodes {
		if node.Assignments != assigned[node.ID] {
			c.add(nodeName(node.ID), doRebuild, "numberOfAssignments is %d, but %d blocks are on it", node.Assignments, assigned[node.ID])
		}
	}
}

type groupType struct {
	group nodeset.Set
	name  memorymanager.MemoryType
}

// checkGroupSums compares what a group's nodes have reserved with its blocks, as kubelets from 1.32 do.
func (c *checker) checkGroupSums() {
	reserved, allocated := groupSums(c.state)
	for _, key := range slices.SortedFunc(maps.Keys(reserved), compareGroupType) {
		if reserved[key] != allocated[key] {
			s := quantity.Apart(reserved[key], allocated[key])
			c.add("nodes "+key.group.String(), doRebuild, "%s: reserved is %s, but the containers' blocks are %s", key.name, s[0], s[1])
		}
	}
}

// groupSums returns the bytes that the nodes have reserved, and the blocks' sizes, per group and type.
func groupSums(s memorymanager.State) (reserved, allocated map[groupType]uint64) {
	reserved, allocated = map[groupType]uint64{}, map[groupType]uint64{}
	for _, node := range s.Nodes {
		for _, table := range node.Memory {
			reserved[groupType{node.Cells, table.Type}] += table.Reserved
		}
	}
	for _, owned := range countedBlocks(s) {
		for _, block := range owned.blocks {
			allocated[groupType{block.Nodes, block.Type}] += block.Size
		}
	}
	return reserved, allocated
}

// nodesShowAmounts reports whether the nodes' reserved bytes show where the blocks are.
func nodesShowAmounts(s memorymanager.State) bool {
	reserved, allocated := groupSums(s)
	for key, size := range allocated {
		if reserved[key] != size {
			return false
		}
	}
	return true
}

func compareGroupType(a, b groupType) int {
	return cmp.Or(cmp.Compare(a.group.First(), b.group.First()), strings.Compare(string(a.name), string(b.name)))
}

// checkAmounts compares each node's reserved bytes with the per-node amounts, if all blocks have these.
func (c *checker) checkAmounts() {
	amounts := map[groupType]uint64{} // by groups of one node
	for _, owned := range countedBlocks(c.state) {
		for _, block := range owned.blocks {
			if block.PerNode == nil {
				return
			}
			for _, amount := range block.PerNode {
				amounts[groupType{nodeset.Of(amount.Node), block.Type}] += amount.Bytes
				if !block.Nodes.Has(amount.Node) {
					c.add(owned.owner, doDrain, "%s has %s on node %d, outside of its nodes [%s]", block.Type, quantity.Short(amount.Bytes), amount.Node, block.Nodes)
				}
			}
		}
	}
	for _, node := range c.state.Nodes {
		for _, table := range node.Memory {
			if sum := amounts[groupType{nodeset.Of(node.ID), table.Type}]; len(c.state.Entries) > 0 && sum != table.Reserved {
				s := quantity.Apart(table.Reserved, sum)
				c.add(nodeName(node.ID), doRebuild, "%s: reserved is %s, but the blocks' amounts on it are %s", table.Type, s[0], s[1])
			}
		}
	}
}
