package ledger

import (
	"errors"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// PLACEHOLDER: this file stands for the exported State, its Snapshot and Open until they are there. It knows a ledger that has had no
// events yet, and no other.

// SnapshotState is everything that the ledger remembers.
type SnapshotState struct {
	Config config.Resolved
	Raises map[string]uint64
	Since  time.Time
	Pods   int
}

// Snapshot is everything that the ledger remembers. It shares what never changes, and may be encoded outside of the driver's lock.
func (l *Ledger) Snapshot() SnapshotState {
	return SnapshotState{l.resolved, l.raises, l.configured.since, len(l.pods)}
}

// Open makes a ledger that goes on from a snapshot.
func Open(s SnapshotState) (*Ledger, error) {
	if s.Pods > 0 {
		return nil, errors.New("the placeholder of the state has no pods")
	}
	return New(s.Since, Options{Config: s.Config, Machine: s.Config.Machine, Raises: s.Raises})
}
