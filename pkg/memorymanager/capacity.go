package memorymanager

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// column is one memory type over all nodes, indexed by node id, in bytes.
type column struct {
	name MemoryType
	// listed are the nodes that have this type at all.
	listed nodeset.Set

	total, systemReserved, allocatable [nodeset.Max]uint64
	// allocated is what containers have; it exceeds allocatable only after the machine shrank or a container was adopted.
	allocated [nodeset.Max]uint64

	// descending are all nodes by allocatable, the largest first, the lower id first among equals.
	descending []int
}

// free is what may be allocated on a node.
func (c *column) free(node int) uint64 { return minus(c.allocatable[node], c.allocated[node]) }

func (c *column) allocatableOf(nodes nodeset.Set) uint64 { return sum(&c.allocatable, nodes) }

func (c *column) freeOf(nodes nodeset.Set) (sum uint64) {
	for id := range nodes.All() {
		sum += c.free(id)
	}
	return sum
}

// largest is the sum of the r largest allocatable among nodes.
func (c *column) largest(nodes nodeset.Set, r int) uint64 {
	return largest(&c.allocatable, c.descending, nodes, r)
}

// largest is the sum of the amounts of the first r of the nodes in an order.
func largest[T uint64 | float64](amounts *[nodeset.Max]T, order []int, nodes nodeset.Set, r int) (sum T) {
	for _, id := range order {
		if r == 0 {
			break
		}
		if nodes.Has(id) {
			sum += amounts[id]
			r--
		}
	}
	return sum
}

// minus is a - b, 0 instead of an underflow.
func minus(a, b uint64) uint64 { return a - min(a, b) }

// columns checks the nodes and returns their memory by type, sorted.
func columns(nodes []NodeCapacity) (nodeset.Set, []*column, error) {
	if len(nodes) == 0 {
		return 0, nil, fmt.Errorf("no NUMA nodes")
	}
	var all nodeset.Set
	byType := map[MemoryType]*column{}
	for _, node := range nodes {
		if node.ID < 0 || node.ID >= nodeset.Max {
			return 0, nil, fmt.Errorf("NUMA node id %d is not in 0 to %d", node.ID, nodeset.Max-1)
		}
		if all.Has(node.ID) {
			return 0, nil, fmt.Errorf("NUMA node %d is there twice", node.ID)
		}
		all |= nodeset.Of(node.ID)
		if err := fillNode(byType, node); err != nil {
			return 0, nil, fmt.Errorf("NUMA node %d: %w", node.ID, err)
		}
	}
	sorted := make([]*column, 0, len(byType))
	for _, c := range byType {
		if err := c.index(all); err != nil {
			return 0, nil, err
		}
		sorted = append(sorted, c)
	}
	slices.SortFunc(sorted, func(a, b *column) int { return cmp.Compare(a.name, b.name) })
	return all, sorted, nil
}

func fillNode(byType map[MemoryType]*column, node NodeCapacity) error {
	for i, amount := range node.Reserved {
		if slices.ContainsFunc(node.Reserved[:i], func(other Amount) bool { return other.Type == amount.Type }) {
			return fmt.Errorf("%s is reserved twice", amount.Type)
		}
	}
	totals, left := map[MemoryType]uint64{}, node.Total
	for _, pool := range node.Pools {
		if pool.PageSize == 0 || pool.Count > math.MaxUint64/pool.PageSize {
			return fmt.Errorf("%d pages of %s are not a pool", pool.Count, quantity.Short(pool.PageSize))
		}
		name, total := Hugepages(pool.PageSize), pool.PageSize*pool.Count
		if total > left {
			return fmt.Errorf("the huge page pools exceed its memory of %s", quantity.Short(node.Total))
		}
		if _, twice := totals[name]; twice {
			return fmt.Errorf("%s is listed twice", name)
		}
		if reserved := node.Reserved.Of(name); reserved > total {
			sizes := quantity.Apart(reserved, total)
			return fmt.Errorf("%s: reserved %s exceed the pool of %s", name, sizes[0], sizes[1])
		}
		totals[name], left = total, left-total
	}
	if reserved := node.Reserved.Of(Memory); reserved > left {
		sizes := quantity.Apart(reserved, node.Total-left, node.Total)
		return fmt.Errorf("memory: reserved %s and huge page pools of %s exceed its memory of %s", sizes[0], sizes[1], sizes[2])
	}
	totals[Memory] = node.Total
	for _, amount := range node.Reserved {
		if _, there := totals[amount.Type]; !there {
			return fmt.Errorf("%s is reserved but not there", amount.Type)
		}
	}
	for name, total := range totals {
		if byType[name] == nil {
			byType[name] = &column{name: name}
		}
		c := byType[name]
		c.listed |= nodeset.Of(node.ID)
		c.total[node.ID], c.systemReserved[node.ID], c.allocatable[node.ID] = total, node.Reserved.Of(name), node.Allocatable(name)
	}
	return nil
}

// index prepares the sums that the search for nodes asks for.
func (c *column) index(all nodeset.Set) error {
	c.descending = all.IDs()
	slices.SortStableFunc(c.descending, func(a, b int) int { return cmp.Compare(c.allocatable[b], c.allocatable[a]) })
	var total uint64
	for _, id := range c.descending {
		if total += c.total[id]; total < c.total[id] {
			return fmt.Errorf("%s of all NUMA nodes exceeds 2^64 bytes", c.name)
		}
	}
	return nil
}

// Types are the types of memory that the node has.
func (n NodeCapacity) Types() []MemoryType {
	types := []MemoryType{Memory}
	for _, pool := range n.Pools {
		types = append(types, Hugepages(pool.PageSize))
	}
	return types
}

// Allocatable is what containers can have of a type of the node's memory: what huge page pools and reservations leave.
func (n NodeCapacity) Allocatable(name MemoryType) uint64 {
	left := n.Total
	for _, pool := range n.Pools {
		size := pool.PageSize * pool.Count
		if Hugepages(pool.PageSize) == name {
			return minus(size, n.Reserved.Of(name))
		}
		left = minus(left, size)
	}
	if name != Memory {
		return 0
	}
	return minus(left, n.Reserved.Of(Memory))
}

// Capacity is what containers can have of a type of memory on a node, and what they have; false where the node has none of it.
func (m *Manager) Capacity(node int, name MemoryType) (allocatable, allocated uint64, there bool) {
	c := m.column(name)
	if c == nil || !c.listed.Has(node) {
		return 0, 0, false
	}
	return c.allocatable[node], c.allocated[node], true
}

// Of is the request's amount of a type in bytes; 0 where it has none.
func (r Request) Of(name MemoryType) uint64 {
	for _, amount := range r {
		if amount.Type == name {
			return amount.Bytes
		}
	}
	return 0
}

// AtLeast is a request, sorted by type, with at least this amount of its type.
func (r Request) AtLeast(amount Amount) Request {
	at, there := slices.BinarySearchFunc(r, amount.Type, func(a Amount, name MemoryType) int { return cmp.Compare(a.Type, name) })
	r = slices.Clone(r)
	if !there {
		return slices.Insert(r, at, amount)
	}
	r[at].Bytes = max(r[at].Bytes, amount.Bytes)
	return r
}
