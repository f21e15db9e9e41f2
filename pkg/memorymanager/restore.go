package memorymanager

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// DefaultTolerance is how far a node's memory may move between two starts before it is reported, in bytes.
const DefaultTolerance = 64 << 20

// RestoreReport says what became of a stored state.
type RestoreReport struct {
	// Restored counts the entries that are allocated again.
	Restored int
	// Drifted lists the nodes whose memory differs from the stored state.
	Drifted []Drift
	// Lost lists what running containers have allocated beyond what their nodes now have, and blocks without any node left.
	Lost []NodeShortage
	// Vanished are nodes of entries that this machine no longer has.
	Vanished nodeset.Set
	// Problems are one line each, about entries or nodes that were not as they should be.
	Problems []string
}

// Drift is a change of a node's memory of one type since the state was stored.
type Drift struct {
	Node int
	Type MemoryType
	// Stored and Now are allocatable bytes; 0 where the type, or the node, is not there.
	Stored, Now uint64
	// Tolerated is set when the difference is within the tolerance; huge pages do not move by themselves.
	Tolerated bool
}

func (r *RestoreReport) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (r *RestoreReport) lose(node int, b Block) {
	r.Lost = append(r.Lost, NodeShortage{Node: node, Amount: Amount{Type: b.Type, Bytes: b.Size}})
}

// Restore takes over the entries of a stored state, replacing all allocations. tolerance is in bytes per node.
// The node map is this machine's; of the stored one only the bytes that each node had allocated count, where blocks do not
// say it themselves. Running containers keep their nodes whatever the machine has become; the report says what no
// longer fits. The error is for entries that contradict each other; the manager is then as it was.
func (m *Manager) Restore(s State, tolerance uint64) (RestoreReport, error) {
	var report RestoreReport
	seen := map[[2]string]bool{}
	for _, e := range s.Entries {
		key := [2]string{e.Pod, e.Container}
		if e.Pod == "" || e.Container == "" || seen[key] {
			return report, fmt.Errorf("restore allocations: entry of container %q of pod %q is without a name or there twice",
				e.Container, e.Pod)
		}
		seen[key] = true
	}
	for _, e := range s.Pods {
		key := [2]string{e.Pod}
		if seen[key] {
			return report, fmt.Errorf("restore allocations: the pod entry of %q is there twice", e.Pod)
		}
		seen[key] = true
	}
	m.clear()
	m.drift(s.Nodes, tolerance, &report)
	for _, e := range s.Entries {
		blocks := m.usable("container "+e.Container+" of pod "+e.Pod, e.Blocks, &report)
		if len(blocks) == 0 {
			continue
		}
		p := m.pod(e.Pod)
		p.containers = append(p.containers, container{name: e.Container, blocks: blocks})
		report.Restored++
	}
	for _, e := range s.Pods {
		p := m.known(e.Pod)
		if p == nil {
			report.problem("pod %s: its own allocation is of no container, and dropped", e.Pod)
			continue
		}
		if p.blocks = m.usable("pod "+e.Pod, e.Blocks, &report); p.blocks == nil {
			report.problem("pod %s: its containers' parts are of no allocation, and dropped", e.Pod)
			p.containers = nil
			m.forget(p)
		}
	}
	m.regroup()
	for _, c := range m.columns {
		m.rebuild(c, s.Nodes)
	}
	for b := range m.blocks() {
		if b.Nodes&m.mixed == 0 {
			b.PerNode = nil
		}
	}
	m.compare(s.Nodes, &report)
	report.Lost = append(report.Lost, m.shortages(m.all, tolerance)...)
	return report, nil
}

// drift compares the stored nodes with the machine.
func (m *Manager) drift(stored []NodeState, tolerance uint64, report *RestoreReport) {
	type place struct {
		node   int
		memory MemoryType
	}
	was := map[place]uint64{}
	for _, node := range stored {
		for _, table := range node.Memory {
			was[place{node.ID, table.Type}] = table.Allocatable
		}
	}
	for id := range m.all.All() {
		for _, c := range m.columns {
			at := place{id, c.name}
			before, there := was[at]
			delete(was, at)
			now := c.allocatable[id]
			if len(stored) == 0 || before == now && there == c.listed.Has(id) {
				continue
			}
			distance := max(minus(before, now), minus(now, before))
			report.Drifted = append(report.Drifted, Drift{
				Node: id, Type: c.name, Stored: before, Now: now, Tolerated: there && c.name == Memory && distance <= tolerance,
			})
		}
	}
	for at, before := range was { // what this machine does not have
		report.Drifted = append(report.Drifted, Drift{Node: at.node, Type: at.memory, Stored: before})
	}
	slices.SortFunc(report.Drifted, func(a, b Drift) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Type, b.Type))
	})
}

// usable are the stored blocks that this machine can allocate; who names their owner. Nothing is dropped silently. A block
// that loses some of its nodes keeps its size on the others.
func (m *Manager) usable(who string, stored []Block, report *RestoreReport) (blocks []Block) {
	for _, b := range stored {
		b.PerNode = slices.Clone(b.PerNode)
		if gone := b.Nodes &^ m.all; !gone.Empty() {
			report.Vanished |= gone
			report.problem("%s: nodes %s of its %s are gone", who, gone, b.Type)
			b.Nodes &= m.all
			b.PerNode = nil
			if b.Nodes.Empty() {
				report.lose(gone.First(), b)
			}
		}
		switch {
		case b.Nodes.Empty():
			report.problem("%s: its %s is on no node of this machine", who, b.Type)
		case m.column(b.Type) == nil:
			report.problem("%s: this machine has no %s", who, b.Type)
			report.lose(b.Nodes.First(), b)
		case slices.ContainsFunc(blocks, func(other Block) bool { return other.Type == b.Type }):
			report.problem("%s: its %s is there twice", who, b.Type)
		default:
			blocks = append(blocks, b)
		}
	}
	slices.SortFunc(blocks, func(a, b Block) int { return cmp.Compare(a.Type, b.Type) })
	return blocks
}

// rebuild allocates one type group by group: as the stored nodes have it where that is what the entries of the group add up
// to, else as the blocks say where their bytes are, else in ascending order of nodes.
func (m *Manager) rebuild(c *column, stored []NodeState) {
	var reserved, said, wanted [nodeset.Max]uint64
	for _, node := range stored {
		for _, table := range node.Memory {
			if table.Type == c.name && m.all.Has(node.ID) {
				reserved[node.ID] = table.Reserved
			}
		}
	}
	for b := range m.blocks() {
		if b.Type != c.name {
			continue
		}
		first := m.groups[b.Nodes.First()].First()
		wanted[first] = plus(wanted[first], b.Size)
		for _, amount := range b.PerNode {
			if b.Nodes.Has(amount.Node) {
				said[amount.Node] = plus(said[amount.Node], amount.Bytes)
			}
		}
	}
	for id := range (m.all &^ m.unused).All() {
		group := m.groups[id]
		switch {
		case group.First() != id, group&m.mixed != 0: // regroup has allocated mixed groups
		case sum(&reserved, group) == wanted[id]:
			take(&c.allocated, &reserved, group)
		case sum(&said, group) == wanted[id]:
			take(&c.allocated, &said, group)
		default:
			take(&c.allocated, &[nodeset.Max]uint64{}, group)
			c.allocated[id] += m.fill(c, group, wanted[id])
		}
	}
}

func sum(amounts *[nodeset.Max]uint64, nodes nodeset.Set) (total uint64) {
	for id := range nodes.All() {
		total = plus(total, amounts[id])
	}
	return total
}

func take(to, from *[nodeset.Max]uint64, nodes nodeset.Set) {
	for id := range nodes.All() {
		to[id] = from[id]
	}
}

// compare reports where the stored node map does not agree with its own entries.
func (m *Manager) compare(stored []NodeState, report *RestoreReport) {
	for _, node := range stored {
		if !m.all.Has(node.ID) {
			continue
		}
		if node.Assignments != m.assignments[node.ID] {
			report.problem("node %d: %d assignments stored, its entries make %d", node.ID, node.Assignments, m.assignments[node.ID])
		}
		if node.Cells != m.groups[node.ID] && report.Vanished.Empty() {
			report.problem("node %d: group %s stored, its entries make %s", node.ID, node.Cells, m.groups[node.ID])
		}
		for _, table := range node.Memory {
			if c := m.column(table.Type); c != nil && table.Reserved != min(c.allocated[node.ID], table.Allocatable) {
				sizes := quantity.Apart(table.Reserved, c.allocated[node.ID])
				report.problem("node %d: %s reserved %s stored, its entries make %s", node.ID, table.Type, sizes[0], sizes[1])
			}
		}
	}
}
