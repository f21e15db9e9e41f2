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
	// Updates counts unasked updates that the runtime took.
	Updates uint64
	// Repairs count the containers whose files held something else than they should, and the failures to read or write them.
	Repairs protect.Repairs
	// ProtectErrors counts failed writes to the cgroups above the containers.
	ProtectErrors uint64
	// Overwrites counts other writers' writes to files with values of ours, those of pods that have ended too.
	Overwrites map[protect.Overwrite]uint64
	// Checkpoint are the state file's.
	Checkpoint checkpoint.Stats
	// Requests are the sources'.
	Requests podinfo.Stats
}

// counters count effects; decisions are counted by the ledger.
type counters struct {
	late, quarantined, updates, protectErrors atomic.Uint64
}

// Counters returns what has been counted so far.
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

// OverwritesByFile counts other writers' writes among Overwrites to the cgroups above the containers that are there now, by file.
func (a *Agent) OverwritesByFile() map[protect.File]uint64 { return a.protector.OverwritesByFile() }
