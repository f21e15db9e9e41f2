package memorymanager

import (
	"cmp"
	"iter"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Tenant is a container with an allocation, or a pod with one of its own (Container is empty then).
type Tenant struct {
	Pod, Container string
	Blocks         []Block
	// CPUs are the NUMA nodes of its exclusive CPUs; empty when it has none.
	CPUs nodeset.Set
	// Stays is set when its memory must not be moved.
	Stays bool
}

// Dissolution is a group of nodes that exists, or is as large as it is, only because of containers that would fit fewer nodes.
type Dissolution struct {
	Group nodeset.Set
	// Rest are the nodes that would stay a group, for containers that need several; empty where the group would dissolve.
	Rest nodeset.Set
	// Moves take its containers where they would fit, on single nodes or on Rest, the largest first.
	Moves []Relocation
}

// Relocation is a container that moves to other nodes, with its ordinary memory in bytes.
type Relocation struct {
	Pod, Container string
	From, To       nodeset.Set
	Bytes          uint64
}

func (t *Tenant) to(nodes nodeset.Set) Relocation {
	return Relocation{t.Pod, t.Container, span(t.Blocks), nodes, ordinary(t.Blocks)}
}

// Tenants are all containers with an allocation, and the pods with one of their own, sorted by pod.
func (m *Manager) Tenants() (tenants []Tenant) {
	for _, p := range m.byUID() {
		if p.blocks != nil {
			tenants = append(tenants, Tenant{Pod: p.uid, Blocks: copied(p.blocks)})
			continue
		}
		for i := range p.containers {
			tenants = append(tenants, Tenant{Pod: p.uid, Container: p.containers[i].name, Blocks: copied(p.containers[i].blocks)})
		}
	}
	return tenants
}

// Dissolvable returns the groups that would dissolve, or be smaller, if their containers were on fewer nodes of them. A group
// stays that has a pod with an allocation of its own, a container that is spread evenly, or one on all of it that must not be moved;
// and exclusive CPUs keep a container on their nodes. Containers that are on some of its nodes already stay there. What it names is
// possible: it may miss a distribution that is harder to find.
func Dissolvable(nodes []NodeState, tenants []Tenant) []Dissolution {
	var found []Dissolution
	for _, node := range nodes {
		if !node.Grouped() || node.Cells.First() != node.ID {
			continue
		}
		if d := dissolve(nodes, node.Cells, tenants); d.Moves != nil {
			found = append(found, d)
		}
	}
	return found
}

// dissolve places the tenants of a group on fewer of its nodes; without Moves where that fails.
func dissolve(nodes []NodeState, group nodeset.Set, tenants []Tenant) Dissolution {
	var members, placed []Tenant
	var kept nodeset.Set // where others of several nodes are already
	for _, t := range tenants {
		on := span(t.Blocks)
		switch {
		case (on & group).Empty():
		case !on.SubsetOf(group), t.Container == "", isEven(t.Blocks), on == group && t.Stays, on != group && on.Len() > 1 && !kept.Empty() && on != kept:
			return Dissolution{}
		case on == group:
			members = append(members, t)
		default:
			if on.Len() > 1 {
				kept = on
			}
			placed = append(placed, t)
		}
	}
	slices.SortStableFunc(members, func(a, b Tenant) int { return cmp.Compare(ordinary(b.Blocks), ordinary(a.Blocks)) })
	for rest := range rests(group, kept) {
		if moves := distribute(binsOf(nodes, group, rest), placed, members); moves != nil {
			return Dissolution{group, rest, moves}
		}
	}
	return Dissolution{}
}

// mostRests is the largest group of which every part is tried as the rest; one that is larger dissolves, or stays as it is.
const mostRests = 8

// rests yields what could stay of a group: nothing first, then the smaller parts. Where some of it is kept, that alone.
func rests(group, kept nodeset.Set) iter.Seq[nodeset.Set] {
	return func(yield func(nodeset.Set) bool) {
		if !yield(kept) || !kept.Empty() {
			return
		}
		for size := 2; size < group.Len() && group.Len() <= mostRests; size++ {
			for part := -group & group; part != group; part = (part - group) & group { // ascending
				if part.Len() == size && !yield(part) {
					return
				}
			}
		}
	}
}

// bin is a set of nodes on which containers are placed together, and what it has free.
type bin struct {
	nodes nodeset.Set
	free  map[MemoryType]uint64
}

// binsOf are the single nodes of a group, and the rest of it as one. Nobody else has memory there.
func binsOf(nodes []NodeState, group, rest nodeset.Set) (bins []bin) {
	add := func(nodes nodeset.Set) { bins = append(bins, bin{nodes, map[MemoryType]uint64{}}) }
	for id := range (group &^ rest).All() {
		add(nodeset.Of(id))
	}
	if !rest.Empty() {
		add(rest)
	}
	for _, node := range nodes {
		for _, b := range bins {
			for _, table := range node.Memory {
				if b.nodes.Has(node.ID) {
					b.free[table.Type] += table.Allocatable
				}
			}
		}
	}
	return bins
}

// take takes what blocks need out of a bin, and reports whether there is so much.
func (b bin) take(blocks []Block) bool {
	if slices.ContainsFunc(blocks, func(block Block) bool { return b.free[block.Type] < block.Size }) {
		return false
	}
	for _, block := range blocks {
		b.free[block.Type] -= block.Size
	}
	return true
}

// distribute places members into the first bin that has room and their CPUs, one by one, beside those that are placed already; nil
// where that fails.
func distribute(bins []bin, placed, members []Tenant) (moves []Relocation) {
	for _, t := range placed {
		if !slices.ContainsFunc(bins, func(b bin) bool { return b.nodes == span(t.Blocks) && b.take(t.Blocks) }) {
			return nil
		}
	}
	for _, t := range members {
		i := slices.IndexFunc(bins, func(b bin) bool { return t.CPUs.SubsetOf(b.nodes) && b.take(t.Blocks) })
		if i < 0 {
			return nil
		}
		moves = append(moves, t.to(bins[i].nodes))
	}
	return moves
}

// ordinary is how much of blocks is ordinary memory.
func ordinary(blocks []Block) (bytes uint64) {
	for _, b := range blocks {
		if b.Type == Memory {
			bytes += b.Size
		}
	}
	return bytes
}
