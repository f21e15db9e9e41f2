package config

// MemoryPolicy is the NUMA memory policy (set_mempolicy(2)) with which containers without an allocation start; empty leaves it
// to the configuration.
type MemoryPolicy string

// The memory policies of containers without an allocation.
const (
	// PolicyNone sets none: the kernel takes memory from the node of the CPU, then from the nearest ones.
	PolicyNone MemoryPolicy = "None"
	// PolicyPreferAvailable prefers the nodes that have more memory available than allocations on them still need.
	PolicyPreferAvailable MemoryPolicy = "PreferAvailable"
	// PolicyInterleave and PolicyWeightedInterleave spread the pages over these nodes, evenly or by the kernel's weights.
	PolicyInterleave         MemoryPolicy = "Interleave"
	PolicyWeightedInterleave MemoryPolicy = "WeightedInterleave"
)

// Interleaves reports whether a policy spreads pages.
func (p MemoryPolicy) Interleaves() bool {
	return p == PolicyInterleave || p == PolicyWeightedInterleave
}

// annotatedPolicies are the values of the annotation memory-policy.
var annotatedPolicies = map[string]MemoryPolicy{
	"none": PolicyNone, "prefer-available": PolicyPreferAvailable, "interleave": PolicyInterleave, "weighted-interleave": PolicyWeightedInterleave,
}
