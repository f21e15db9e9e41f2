package checkpoint

import "github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"

// Finding is something that is wrong in a state.
type Finding struct {
	// Where names the node, or the pod and container.
	Where string `json:"where"`
	// What is wrong, with the values.
	What string `json:"what"`
	// Do says what to do about it.
	Do string `json:"do"`
}

// Check lists what contradicts itself in a state: sums, groups, assignments, entries. None means that a kubelet on the
// same machine starts with it.
func Check(s memorymanager.State) []Finding { return nil }

// Compare lists where a state does not fit a machine: nodes is the node map of that machine without bookings.
// Differences in memory up to tolerance bytes a node are left out.
func Compare(s memorymanager.State, nodes []memorymanager.NodeState, tolerance uint64) []Finding {
	return nil
}
