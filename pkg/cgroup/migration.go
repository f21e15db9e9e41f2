package cgroup

import (
	"fmt"
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Mapped is the memory of a cgroup that a write of its cpuset.mems can move. The kernel walks the address spaces of the tasks
// (cpuset_migrate_mm in kernel/cgroup/cpuset.c), so memory that no task has mapped, such as page cache of reads, does not move.
type Mapped struct {
	// Nodes are the nodes that the cgroup may use now.
	Nodes nodeset.Set
	// Bytes are the mapped bytes by NUMA node: the lines anon, and file_mapped with files and shared memory, of memory.numa_stat.
	// Explicit huge pages are not included.
	Bytes map[int]uint64
}

// AtLeast returns the larger number of bytes of each node; other is an earlier reading of the same cgroup.
func (m Mapped) AtLeast(other Mapped) Mapped {
	bytes := maps.Clone(m.Bytes)
	for node, before := range other.Bytes {
		bytes[node] = max(bytes[node], before)
	}
	return Mapped{Nodes: m.Nodes.Union(other.Nodes), Bytes: bytes}
}

// Migration is the memory that a write of cpuset.mems moves.
type Migration struct {
	Bytes uint64      `json:"bytes"`
	From  nodeset.Set `json:"fromNUMANodes"`
	To    nodeset.Set `json:"toNUMANodes"`
}

// Migration returns what a write of other nodes to cpuset.mems moves, by the kernel's rule (nodeset.Set.Remap). Pages on nodes that the cgroup
// may not use now do not move.
func (m Mapped) Migration(to nodeset.Set) (moves Migration) {
	for node := range m.Nodes.All() {
		target, bytes := m.Nodes.Remap(node, to), m.Bytes[node]
		if bytes == 0 || node == target {
			continue
		}
		moves.Bytes += bytes
		moves.From, moves.To = moves.From.Union(nodeset.Of(node)), moves.To.Union(nodeset.Of(target))
	}
	return moves
}

// String returns text like "3.2Gi from node 0 to node 1".
func (m Migration) String() string {
	return fmt.Sprintf("%s from %s to %s", quantity.Short(m.Bytes), m.From.Named(), m.To.Named())
}
