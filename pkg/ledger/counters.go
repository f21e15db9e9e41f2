package ledger

import (
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Counters count since the ledger was made.
type Counters struct {
	// PinningRequests and PinningErrors are the kubelet's memory_manager_pinning_requests_total and …_errors_total.
	PinningRequests, PinningErrors uint64
	// Rejections are refused containers and resizes, Unpinned those that run without nodes of their own instead; both have
	// every one of memorymanager.Reasons.
	Rejections, Unpinned map[string]uint64
	// Bounded counts placements whose search was cut short.
	Bounded uint64
	// Forgotten counts pods that ended without an event.
	Forgotten uint64
	// Corrections counts memory requests that a better source corrected on a running container.
	Corrections uint64
	// Reloads and BadReloads count configurations put in force and refused.
	Reloads, BadReloads uint64
}

func newCounters() Counters {
	c := Counters{Rejections: map[string]uint64{}, Unpinned: map[string]uint64{}}
	for _, reason := range memorymanager.Reasons() {
		c.Rejections[reason], c.Unpinned[reason] = 0, 0
	}
	return c
}

// Counters returns what has been counted so far.
func (l *Ledger) Counters() Counters {
	counters := l.state.Counters
	counters.Rejections, counters.Unpinned = maps.Clone(counters.Rejections), maps.Clone(counters.Unpinned)
	if l.manager != nil {
		counters.Bounded = l.manager.Bounded()
	}
	return counters
}
