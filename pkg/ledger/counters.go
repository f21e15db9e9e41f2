package ledger

import (
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Counters count since the ledger was made.
type Counters struct {
	// PinningRequests and PinningErrors are the kubelet's memory_manager_pinning_requests_total and …_errors_total.
	PinningRequests, PinningErrors uint64
	// Rejections are refused containers and resizes. Unpinned are containers that run without nodes of their own instead. Both have a key
	// for each of memorymanager.Reasons.
	Rejections, Unpinned map[string]uint64
	// Bounded counts placements whose search was stopped at its limit.
	Bounded uint64
	// Forgotten counts pods whose end no event reported.
	Forgotten uint64
	// Corrections counts running containers whose memory request a better source has corrected.
	Corrections uint64
	// Reloads and BadReloads count accepted and refused configurations.
	Reloads, BadReloads uint64
}

func newCounters() Counters {
	c := Counters{Rejections: map[string]uint64{}, Unpinned: map[string]uint64{}}
	for _, reason := range memorymanager.Reasons() {
		c.Rejections[reason], c.Unpinned[reason] = 0, 0
	}
	return c
}

// Counters returns a copy of the counters.
func (l *Ledger) Counters() Counters {
	counters := l.state.Counters
	counters.Rejections, counters.Unpinned = maps.Clone(counters.Rejections), maps.Clone(counters.Unpinned)
	if l.manager != nil {
		counters.Bounded = l.manager.Bounded()
	}
	return counters
}
