package agent

import (
	"sync/atomic"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// Counters count since the agent was made.
type Counters struct {
	ledger.Counters
	// Late counts decisions that were not in the state file before the event's deadline.
	Late uint64
	// Quarantined counts state files that were set aside.
	Quarantined uint64
	// Updates counts unsolicited updates that the runtime accepted.
	Updates uint64
	// Repairs count containers' files that were repaired, and failures to read or write them.
	Repairs protect.Repairs
	// ProtectErrors counts failed writes to parent cgroups.
	ProtectErrors uint64
	// Overwrites counts changes of files by other writers, including those of pods that have ended.
	Overwrites map[protect.Overwrite]uint64
	// Checkpoint is about the state file.
	Checkpoint checkpoint.Stats
	// Requests is about the sources of requests.
	Requests podinfo.Stats
}

// counters count effects; decisions are counted by the ledger.
type counters struct {
	late, quarantined, updates, protectErrors atomic.Uint64
}

// Counters returns the counters.
func (a *Agent) Counters() Counters {
	a.mu.Lock()
	decisions := a.ledger.Counters()
	a.mu.Unlock()
	c := &a.counters
	counted := Counters{
		Counters: decisions, Late: c.late.Load(), Quarantined: c.quarantined.Load(), Updates: c.updates.Load(),
		ProtectErrors: c.protectErrors.Load(), Repairs: a.protector.Repairs(), Overwrites: a.protector.Overwrites(),
		Requests: a.requests.Stats(),
	}
	if a.writer != nil {
		counted.Checkpoint = a.writer.Stats()
	}
	return counted
}

// OverwritesByFile returns the part of Overwrites that is about existing parent cgroups, by file.
func (a *Agent) OverwritesByFile() map[protect.File]uint64 { return a.protector.OverwritesByFile() }
