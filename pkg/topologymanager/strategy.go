package topologymanager

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
