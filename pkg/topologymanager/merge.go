package topologymanager

import "github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"

// Hints are the hints of the memory provider for one request: every memory type has the same ones. They are asked for
// what a merge needs instead of being listed, because a list has up to 2^64 members. Of two hints of the same size they say which is
// better: the one with the smaller average distance, where that is wanted.
type Hints interface {
	// Empty is set when there is no hint at all: nothing fits.
	Empty() bool
	// PreferredAt reports whether exactly these nodes are a preferred hint.
	PreferredAt(nodes nodeset.Set) bool
	// PreferredSingle is the best single node of these that is a preferred hint by itself.
	PreferredSingle(within nodeset.Set) (nodeset.Set, bool)
	// BestPreferred is the best of the preferred hints.
	BestPreferred() (nodeset.Set, bool)
	// BestIntersection is the best intersection of one hint of each type that has the size of the smallest hint.
	BestIntersection() nodeset.Set
	// BestOverlap is the best of the largest intersections of these nodes with hints; empty when there is none.
	BestOverlap(nodes nodeset.Set) nodeset.Set
}

// Providers are what a merge brings together.
type Providers struct {
	// All are the NUMA nodes of the machine.
	All nodeset.Set
	// Memory has the hints of all memory types; nil when the memory provider has no preference.
	Memory Hints
	// CPUs is the one, preferred hint of the exclusive CPUs; empty when the CPU provider has no preference.
	CPUs nodeset.Set
	// AnyCPUs is set where the CPUs are as near to each of these nodes, as with Device.Any.
	AnyCPUs bool
	// Devices have one list of hints for each resource; a resource without nodes has no preference.
	Devices []Device
}

// wants is what the lists beside memory's have in common. Each list is a single hint, or the nodes of a device that is near
// any of them: each of these nodes by itself is a preferred hint then, and all of them together are one that is not.
type wants struct {
	// fixed are the nodes that all single hints have in common, listed reports whether there are such hints, and differ
	// whether they are of different nodes.
	fixed          nodeset.Set
	listed, differ bool
	// near are the nodes that all devices have in common that are near any of several; anyOf reports whether there are such.
	near  nodeset.Set
	anyOf bool
}

func (in Providers) wants() wants {
	w := wants{fixed: in.All, near: in.All}
	switch {
	case in.CPUs.Empty():
	case in.AnyCPUs:
		w.near, w.anyOf = in.CPUs, true
	default:
		w.fix(in.CPUs)
	}
	for _, device := range in.Devices {
		switch {
		case device.Nodes.Empty():
		case device.Any:
			w.near, w.anyOf = w.near&device.Nodes, true
		default:
			w.fix(device.Nodes)
		}
	}
	return w
}

func (w *wants) fix(nodes nodeset.Set) {
	w.differ = w.differ || w.listed && nodes != w.fixed
	w.fixed, w.listed = w.fixed&nodes, true
}

// common are the nodes that all of these hints prefer alike, where there is a single hint among them.
func (w *wants) common() (nodeset.Set, bool) {
	if w.differ || w.anyOf && (w.fixed.Len() != 1 || !w.fixed.SubsetOf(w.near)) {
		return 0, false
	}
	return w.fixed, true
}

// Merge returns the hint that the Topology Manager would choose from the cross product of all lists, and whether the
// policy admits it. Among preferred hints the narrowest wins.
//
// Among others the kubelet looks for the size of the widest of the lists' narrowest hints and creeps up to it from below.
// The memory lists are equal, so without other lists that size always comes out; a single hint of CPUs or devices bounds
// every intersection from above, so with these the largest one wins.
//
// No hints at all count as no preference: the allocation that follows is what fails.
func (p Policy) Merge(in Providers) (hint Hint, admitted bool) {
	rules := p.Rules()
	if !rules.Aligns {
		return Hint{}, true
	}
	if in.Memory != nil && in.Memory.Empty() {
		in.Memory = nil
	}
	w := in.wants()
	hint.Nodes, hint.Preferred = rules.preferredOf(in, w)
	switch {
	case !hint.Preferred && !rules.Insists:
		return Hint{Nodes: otherOf(in, w)}, true
	case !hint.Preferred:
		return Hint{}, false
	case rules.OneNode && hint.Nodes == in.All:
		hint.Nodes = 0 // no affinity
	}
	return hint, true
}

// preferredOf is the best hint that all lists prefer. A policy of one node looks only at hints of one.
func (r Rules) preferredOf(in Providers, w wants) (nodeset.Set, bool) {
	switch {
	case w.listed:
		nodes, ok := w.common()
		if r.OneNode && nodes.Len() > 1 {
			ok = false
		}
		return nodes, ok && (in.Memory == nil || in.Memory.PreferredAt(nodes))
	case w.near.Empty():
		return 0, false
	case w.anyOf && in.Memory == nil:
		return nodeset.Of(w.near.First()), true
	case w.anyOf:
		return in.Memory.PreferredSingle(w.near)
	case in.Memory == nil:
		return in.All, true
	case r.OneNode:
		return in.Memory.PreferredSingle(in.All)
	}
	return in.Memory.BestPreferred()
}

// otherOf is the best of the hints that are not preferred: all nodes where the lists have none in common.
func otherOf(in Providers, w wants) nodeset.Set {
	if !w.listed && !w.anyOf {
		return in.Memory.BestIntersection()
	}
	nodes := w.fixed & w.near
	if in.Memory != nil && !nodes.Empty() {
		nodes = in.Memory.BestOverlap(nodes)
	}
	if nodes.Empty() {
		return in.All
	}
	return nodes
}

// Kept are the hints of memory that is allocated already: its nodes, for every type.
type Kept nodeset.Set

var _ Hints = Kept(0)

// Empty is never set.
func (Kept) Empty() bool { return false }

// PreferredAt reports whether these are the nodes.
func (k Kept) PreferredAt(nodes nodeset.Set) bool { return nodes == nodeset.Set(k) }

// PreferredSingle is the node, when it is one of these.
func (k Kept) PreferredSingle(within nodeset.Set) (nodeset.Set, bool) {
	nodes := nodeset.Set(k)
	return nodes, nodes.Len() == 1 && nodes.SubsetOf(within)
}

// BestPreferred are the nodes.
func (k Kept) BestPreferred() (nodeset.Set, bool) { return nodeset.Set(k), true }

// BestIntersection are the nodes.
func (k Kept) BestIntersection() nodeset.Set { return nodeset.Set(k) }

// BestOverlap are the nodes that are among these.
func (k Kept) BestOverlap(nodes nodeset.Set) nodeset.Set { return nodeset.Set(k) & nodes }

// Regenerated is the merged hint of a container that has its memory on nodes already, and neither CPUs nor devices.
func (p Policy) Regenerated(all, nodes nodeset.Set) Hint {
	hint, _ := p.Merge(Providers{All: all, Memory: Kept(nodes)})
	return hint
}
