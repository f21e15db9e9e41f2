package memorymanager

import (
	"cmp"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Tenant is a container with an allocation, or a pod with one of its own (Container is empty then).
type Tenant struct {
	Pod, Container string
	Blocks         []Block
	// CPUs are the NUMA nodes of its exclusive CPUs; empty when it has none.
	CPUs nodeset.Set
}

// Dissolution is a group of nodes that exists only because of containers that would fit single nodes.
type Dissolution struct {
	Group nodeset.Set
	// Places are where they would fit, the largest first.
	Places []Place
}

// Place is a single node for a container.
type Place struct {
	Pod, Container string
	Node           int
}

// Dissolvable returns the groups that would dissolve if their containers were on single nodes of them. A group stays that has a
// pod with an allocation of its own, a container that does not span all of it, or one whose exclusive CPUs are on several nodes;
// and exclusive CPUs keep a container on their node. What it names is possible: it may miss a distribution that is harder to find.
func Dissolvable(nodes []NodeState, tenants []Tenant) []Dissolution {
	var found []Dissolution
	for _, node := range nodes {
		if node.Cells.Len() < 2 || node.Cells.First() != node.ID {
			continue
		}
		if places := dissolve(nodes, node.Cells, tenants); places != nil {
			found = append(found, Dissolution{node.Cells, places})
		}
	}
	return found
}

// dissolve places the tenants of a group on its nodes one by one, the largest first; nil where that fails.
func dissolve(nodes []NodeState, group nodeset.Set, tenants []Tenant) []Place {
	var members []Tenant
	for _, t := range tenants {
		if (span(t.Blocks) & group).Empty() {
			continue
		}
		if span(t.Blocks) != group || t.Container == "" || t.CPUs.Len() > 1 {
			return nil
		}
		members = append(members, t)
	}
	slices.SortStableFunc(members, func(a, b Tenant) int { return cmp.Compare(ordinary(b.Blocks), ordinary(a.Blocks)) })
	free := map[int]map[MemoryType]uint64{} // nobody else has memory on the nodes of a group
	for _, node := range nodes {
		if group.Has(node.ID) {
			free[node.ID] = map[MemoryType]uint64{}
			for _, table := range node.Memory {
				free[node.ID][table.Type] = table.Allocatable
			}
		}
	}
	var places []Place
	for _, t := range members {
		id, fits := firstFit(free, group, t)
		if !fits {
			return nil
		}
		for _, b := range t.Blocks {
			free[id][b.Type] -= b.Size
		}
		places = append(places, Place{t.Pod, t.Container, id})
	}
	return places
}

// firstFit is the lowest node of a group that has room for a tenant and is one of its CPUs.
func firstFit(free map[int]map[MemoryType]uint64, group nodeset.Set, t Tenant) (id int, fits bool) {
	for id := range group.All() {
		short := func(b Block) bool { return free[id][b.Type] < b.Size }
		if (t.CPUs.Empty() || t.CPUs.Has(id)) && !slices.ContainsFunc(t.Blocks, short) {
			return id, true
		}
	}
	return 0, false
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
