package topologymanager

import "github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"

// Hints are the hints of the memory provider for one request: every memory type has the same ones. They are asked for
// what a merge needs instead of being listed, because a list has up to 2^64 members.
type Hints interface {
	// Empty is set when there is no hint at all: nothing fits.
	Empty() bool
	// PreferredAt reports whether exactly these nodes are a preferred hint.
	PreferredAt(nodes nodeset.Set) bool
	// PreferredSingle is the lowest NUMA node that is a preferred hint by itself.
	PreferredSingle() (nodeset.Set, bool)
	// BestPreferred is the best of the preferred hints.
	BestPreferred(closest bool) (nodeset.Set, bool)
	// BestIntersection is the best intersection of up to count hints that has the size of the smallest hint.
	BestIntersection(count int, closest bool) nodeset.Set
	// BestOverlap is the best of the largest intersections of these nodes with hints; empty when there is none.
	BestOverlap(nodes nodeset.Set, closest bool) nodeset.Set
}

// Providers are what a merge brings together.
type Providers struct {
	// All are the NUMA nodes of the machine.
	All nodeset.Set
	// Memory has the hints of Types memory types.
	Memory Hints
	Types  int
	// CPUs is the one, preferred hint of the exclusive CPUs; empty when the CPU provider has no preference.
	CPUs nodeset.Set
}

// Merge returns the hint that the Topology Manager would choose from the cross product of all lists, and whether the
// policy admits it. Among preferred hints the narrowest wins; with closest, of two of the same size the one with the
// smaller average distance.
//
// Among others the kubelet looks for the size of the widest of the lists' narrowest hints and creeps up to it from below.
// The memory lists are equal, so without CPUs that size always comes out; the CPUs' single hint bounds every
// intersection from above, so with CPUs the largest one wins.
//
// No hints at all count as no preference: the allocation that follows is what fails.
func (p Policy) Merge(in Providers, closest bool) (hint Hint, admitted bool) {
	rules := p.Rules()
	switch {
	case !rules.Aligns:
		return Hint{}, true
	case rules.OneNode:
		hint = mergeSingle(in)
	default:
		hint = mergePreferred(in, closest)
	}
	if !hint.Preferred && !rules.Insists {
		return mergeOther(in, closest), true
	}
	return hint, hint.Preferred
}

func mergePreferred(in Providers, closest bool) Hint {
	if in.Memory.Empty() {
		if in.CPUs.Empty() {
			return Hint{Nodes: in.All, Preferred: true}
		}
		return Hint{Nodes: in.CPUs, Preferred: true}
	}
	if !in.CPUs.Empty() {
		return Hint{Nodes: in.CPUs, Preferred: in.Memory.PreferredAt(in.CPUs)}
	}
	nodes, ok := in.Memory.BestPreferred(closest)
	return Hint{Nodes: nodes, Preferred: ok}
}

func mergeOther(in Providers, closest bool) Hint {
	if in.CPUs.Empty() {
		return Hint{Nodes: in.Memory.BestIntersection(in.Types, closest)}
	}
	if nodes := in.Memory.BestOverlap(in.CPUs, closest); !nodes.Empty() {
		return Hint{Nodes: nodes}
	}
	return Hint{Nodes: in.All}
}

// mergeSingle looks only at preferred hints of one node. An answer that spans the machine means no affinity.
func mergeSingle(in Providers) Hint {
	var hint Hint
	switch {
	case in.CPUs.Len() > 1:
	case in.Memory.Empty():
		hint = Hint{Nodes: in.CPUs, Preferred: true}
	case in.CPUs.Empty():
		hint.Nodes, hint.Preferred = in.Memory.PreferredSingle()
	case in.Memory.PreferredAt(in.CPUs):
		hint = Hint{Nodes: in.CPUs, Preferred: true}
	}
	if hint.Nodes == in.All {
		hint.Nodes = 0
	}
	return hint
}

// NoPreference is the merged hint when no provider prefers anything.
func (p Policy) NoPreference(all nodeset.Set) Hint {
	rules := p.Rules()
	if rules.OneNode {
		all = 0 // no affinity
	}
	return rules.preferred(all)
}

// Regenerated is the merged hint of a container that has its memory on nodes already.
func (p Policy) Regenerated(all, nodes nodeset.Set) Hint {
	rules := p.Rules()
	switch {
	case rules.OneNode && nodes.Len() != 1:
		return Hint{}
	case rules.OneNode && nodes == all:
		nodes = 0 // no affinity
	}
	return rules.preferred(nodes)
}

// preferred is a preferred hint, where hints are asked for.
func (r Rules) preferred(nodes nodeset.Set) Hint {
	if !r.Aligns {
		return Hint{}
	}
	return Hint{Nodes: nodes, Preferred: true}
}
