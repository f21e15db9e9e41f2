package claims

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Claimable is the memory of a NUMA node that only claims may use.
type Claimable struct {
	Node int
	// Amounts are sorted by type. A type without claimable memory is left out.
	Amounts memorymanager.Request
}

// Supply is what claims are allocated from.
type Supply struct {
	// Nodes are all NUMA nodes, for claims and pods together, and those that only claims may use.
	Nodes     []memorymanager.NodeCapacity
	Claimable []Claimable
	// Pods is the Memory Manager of the pods without claims; nil under the policy None.
	Pods *memorymanager.Manager
}

// available returns the allocatable bytes that no pod has; false if the node has none of that memory.
func (s Supply) available(at NodeType) (bytes uint64, there bool) {
	if s.Pods == nil {
		return 0, false
	}
	_, allocated, _ := s.Pods.Capacity(at.Node, at.Type)
	has := allocatable(s.Nodes, at)
	return has - min(has, allocated), has > 0
}

// allocatable returns what a node has for claims and pods together.
func allocatable(nodes []memorymanager.NodeCapacity, at NodeType) uint64 {
	for _, node := range nodes {
		if node.ID == at.Node {
			return node.Allocatable(at.Type)
		}
	}
	return 0
}

// Capacity is what claims may have, and have, of one type of memory on a NUMA node.
type Capacity struct {
	Node int                      `json:"numaNode"`
	Type memorymanager.MemoryType `json:"type"`
	// Capacity is the share, less what pods have of it from before the share was configured. It is at least what claims have, if the node
	// still has that. Claimed is what prepared claims have. Both are in bytes.
	Capacity uint64 `json:"capacity"`
	Claimed  uint64 `json:"claimed"`
}

// Device returns the name of the device for a NUMA node.
func Device(node int) string { return fmt.Sprint("numa-", node) }

// DeviceNode returns the NUMA node of a device; false if it is not a device of this driver.
func DeviceNode(name string) (node int, ok bool) {
	node, err := strconv.Atoi(strings.TrimPrefix(name, "numa-"))
	return node, err == nil && node >= 0 && node < nodeset.Max && Device(node) == name
}

// CapacityName returns the name of a type of memory among a device's capacities, which is a C identifier: hugepages2Mi.
func CapacityName(memoryType memorymanager.MemoryType) string {
	return strings.ReplaceAll(string(memoryType), "-", "")
}

// CapacityType returns the type of memory of a capacity's name; false if it is another capacity.
func CapacityType(name string) (memorymanager.MemoryType, bool) {
	size, pages := strings.CutPrefix(name, "hugepages")
	if pages && size != "" {
		return memorymanager.MemoryType("hugepages-" + size), true
	}
	return memorymanager.Memory, name == string(memorymanager.Memory)
}

// memoryStep is the step of ordinary memory: one huge page of the usual size.
const memoryStep = 2 << 20

// Step returns the unit in which claims have a type of memory, in bytes.
func Step(memoryType memorymanager.MemoryType) uint64 {
	size, err := quantity.Parse(strings.TrimPrefix(string(memoryType), "hugepages-"))
	if memoryType == memorymanager.Memory || err != nil || size == 0 {
		return memoryStep
	}
	return size
}

// WithReserved returns nodes with more reserved on them: for claims, so that pods do not get it, or for pods, so that claims do not.
func WithReserved(nodes []memorymanager.NodeCapacity, more []Claimable) []memorymanager.NodeCapacity {
	nodes = slices.Clone(nodes)
	for i := range nodes {
		for _, claimable := range more {
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

// hysteresis is the part of a device's memory, 1/hysteresis, by which another device must have more left to be put first.
const hysteresis = 10

// Order returns the NUMA nodes in the order of their devices, which the scheduler takes as a preference. The node with the most memory left
// comes first: memory that is free for claims and, if a sample is known, also available in the kernel beyond the allocations. The previous
// order is kept while its first node is not far behind another, because each change is a write. Nodes for which without reports true
// are left out.
func Order(claimable []Capacity, sample *deficit.Sample, previous []int, without func(node int) bool) []int {
	previous = slices.DeleteFunc(slices.Clone(previous), without)
	left, most := map[int]uint64{}, uint64(0)
	var nodes []int
	for _, c := range claimable {
		if without(c.Node) {
			continue
		}
		if !slices.Contains(nodes, c.Node) {
			nodes = append(nodes, c.Node)
		}
		if c.Type == memorymanager.Memory {
			left[c.Node] = c.Capacity - min(c.Capacity, c.Claimed)
			if sampled := sample.Node(c.Node); sampled != nil {
				left[c.Node] = min(left[c.Node], sampled.Slack())
			}
			most = max(most, c.Capacity)
		}
	}
	slices.Sort(nodes)
	same := slices.Equal(nodes, slices.Sorted(slices.Values(previous)))
	slices.SortStableFunc(nodes, func(a, b int) int { return cmp.Compare(left[b], left[a]) })
	if len(nodes) > 0 && same && left[nodes[0]]-left[previous[0]] <= most/hysteresis {
		return previous
	}
	return nodes
}
