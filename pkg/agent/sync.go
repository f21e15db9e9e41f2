package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// The runtime may take updateTimeout to answer updates of running containers, and updateTimeoutEach more for each of them. Run waits no longer
// than updateWait; meanwhile the periodic check repairs the files.
const (
	updateTimeout     = time.Minute
	updateTimeoutEach = time.Second
	updateWait        = 5 * time.Second
)

// syncDue updates the runtime's records of running containers after rules or requests have changed. The files are written before, together with
// those of the parent cgroups.
func (a *Agent) syncDue(ctx context.Context) {
	a.mu.Lock()
	session := a.session
	if session != nil && session.sending || len(a.outbox.sync) == 0 {
		a.mu.Unlock()
		return
	}
	ids := slices.Sorted(maps.Keys(a.outbox.sync))
	a.outbox.sync = nil
	if session == nil || session.apply == nil { // the next Synchronize finds what a record lacks
		a.mu.Unlock()
		a.gatherAndStep(context.WithoutCancel(ctx), ledger.SyncContainers{IDs: ids, Unsent: true}, nil)
		return
	}
	session.sending = true
	a.mu.Unlock()
	updates := a.syncContainers(ctx, ids)
	if len(updates) == 0 {
		a.endSending(session)
		return
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		a.send(ctx, session, updates)
	}()
	wait := time.NewTimer(updateWait)
	defer wait.Stop()
	select {
	case <-sent:
	case <-wait.C:
	}
}

// syncContainers returns the updates that the runtime's records of containers need.
func (a *Agent) syncContainers(ctx context.Context, ids []string) []ledger.Update {
	if len(ids) == 0 {
		return nil
	}
	effects := a.gatherAndStep(context.WithoutCancel(ctx), ledger.SyncContainers{IDs: ids}, nil)
	_ = a.waitStored(ctx, effects.ticket) // the containers run in any case
	a.protect(ctx)                        // the parent cgroups must have room for the runtime's writes
	a.saveJournal(ctx)
	for _, update := range effects.Updates {
		a.noteMigration(update.ContainerID, update.Adjustment, effects.facts.Usage)
	}
	return effects.Updates
}

// endSending lets a session send further updates.
func (a *Agent) endSending(session *Session) {
	a.mu.Lock()
	session.sending = false
	a.mu.Unlock()
}

// noteMigration records how much memory the runtime moves when it writes the cpuset.mems of an update.
func (a *Agent) noteMigration(id string, adjustment ledger.Adjustment, usage map[string]ledger.Usage) {
	ref, lives := a.cgroupOf(id)
	if used, measured := usage[ref.Cgroup]; lives && measured && used.Unread == "" && adjustment.CpusetMems != "" {
		a.protector.NoteMigration(ref.Cgroup, used.Mapped, adjustment.CpusetMems)
	}
}

// send sends updates to the runtime and compares the containers' files afterwards, because the desired values may have changed meanwhile.
func (a *Agent) send(ctx context.Context, session *Session, updates []ledger.Update) {
	timeout := updateTimeout + time.Duration(len(updates))*updateTimeoutEach
	applying, cancel := context.WithTimeout(ctx, timeout)
	err := session.apply(applying, updates)
	cancel()
	switch {
	case err == nil:
		a.counters.updates.Add(uint64(len(updates)))
	case ctx.Err() == nil: // a daemon that ends ignores the answer: the next one synchronizes
		a.log.WithError(err).Warn("the runtime did not apply updates of running containers: only their cgroup files are written")
	}
	a.endSending(session)
	var finished ledger.FinishUnsolicited
	dirs := make([]string, 0, len(updates))
	a.mu.Lock()
	for _, update := range updates {
		finished.IDs = append(finished.IDs, update.ContainerID)
		if ref, lives := a.ledger.CgroupOf(update.ContainerID); lives {
			dirs = append(dirs, ref.Cgroup)
		}
	}
	a.stepLocked(finished)
	a.mu.Unlock()
	signal(a.restoreDue)
	_ = a.protector.Check(ctx, dirs...) // failures are logged, counted and retried
	a.poke()                            // for updates that became due meanwhile
}
