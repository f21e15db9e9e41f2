// Package topologymanager holds the decisions of the kubelet's Topology Manager: which NUMA affinity a container gets
// under a policy, from the hints of its memory and its CPUs.
// https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/
package topologymanager

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Policy is the kubelet's topologyManagerPolicy.
type Policy string

// The policies of the Topology Manager.
const (
	// None asks for no hints: any placement is admitted.
	None Policy = "none"
	// BestEffort takes the best hint and always admits.
	BestEffort Policy = "best-effort"
	// Restricted admits only a preferred hint.
	Restricted Policy = "restricted"
	// SingleNUMANode admits only a preferred hint of one NUMA node.
	SingleNUMANode Policy = "single-numa-node"
)

// Rules are what a policy insists on, and what bounds it.
type Rules struct {
	// Aligns is set for a policy that asks for hints; without it every placement is admitted and has no affinity.
	Aligns bool
	// Insists is set for a policy that admits only a preferred hint.
	Insists bool
	// OneNode bounds the affinity to a single NUMA node, which is also all that the policy prefers.
	OneNode bool
}

// policies is the table of all policies, in the order of their strictness.
var policies = [...]struct {
	Policy
	Rules
}{
	{None, Rules{}},
	{BestEffort, Rules{Aligns: true}},
	{Restricted, Rules{Aligns: true, Insists: true}},
	{SingleNUMANode, Rules{Aligns: true, Insists: true, OneNode: true}},
}

// Rules returns the policy's row of the table; an unknown policy has the rules of None.
func (p Policy) Rules() Rules {
	for i := range policies {
		if policies[i].Policy == p {
			return policies[i].Rules
		}
	}
	return Rules{}
}

// Policies are the names of all policies.
func Policies() []Policy {
	names := make([]Policy, len(policies))
	for i := range policies {
		names[i] = policies[i].Policy
	}
	return names
}

// Scope is the kubelet's topologyManagerScope.
type Scope string

// The scopes of the Topology Manager.
const (
	// ContainerScope aligns every container by itself.
	ContainerScope Scope = "container"
	// PodScope aligns all containers of a pod to one affinity.
	PodScope Scope = "pod"
)

// Hint is a NUMA affinity that a resource could have, or that a container was given.
type Hint struct {
	// Nodes is the affinity; empty means no affinity.
	Nodes nodeset.Set
	// Preferred is set when no smaller number of nodes could ever hold the request.
	Preferred bool
}

// Strategy is the kubelet's numa-allocation-strategy (KEP-6007): which of several hints is taken that are preferred alike, and
// are as narrow, or as close. Without one it is the smallest mask, so that the lowest NUMA nodes fill up first.
// https://github.com/kubernetes/enhancements/issues/6007
type Strategy string

// The strategies of the Topology Manager.
const (
	// NoStrategy does not look at what is allocated.
	NoStrategy Strategy = "none"
	// MostAllocated packs containers onto the fullest NUMA nodes.
	MostAllocated Strategy = "most-allocated"
	// LeastAllocated spreads containers over the NUMA nodes.
	LeastAllocated Strategy = "least-allocated"
	// LeastUsed looks at the memory that the kernel has and that is not allocated to others; it is not the kubelet's.
	LeastUsed Strategy = "least-used"
)

// Strategies are the names of all strategies.
func Strategies() []Strategy { return []Strategy{NoStrategy, MostAllocated, LeastAllocated, LeastUsed} }

// Scores reports whether the strategy looks at scores.
func (s Strategy) Scores() bool { return s == MostAllocated || s == LeastAllocated || s == LeastUsed }

// Prefers reports whether a hint of one score is taken before a hint of another one. Scores are percentages of what is
// allocated, or under LeastUsed of what is not used, 1 to 100; 0 is a hint without a score, which the strategy does not compare.
func (s Strategy) Prefers(score, other int) bool {
	switch {
	case score == 0 || other == 0:
		return false
	case s == MostAllocated, s == LeastUsed:
		return score > other
	case s == LeastAllocated:
		return score < other
	}
	return false
}
