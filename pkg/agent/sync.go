package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// How long the runtime may take to answer updates of running containers: so long, and that much for each of them. Nobody
// waits for longer than updateWait; the files are looked at by the periodic check meanwhile.
const (
	updateTimeout     = time.Minute
	updateTimeoutEach = time.Second
	updateWait        = 5 * time.Second
)

// syncDue has the runtime's records of running containers follow after the rules or the requests have changed. Their files are
// written before, with those of the parent cgroups.
func (a *Agent) syncDue(ctx context.Context) {
	a.mu.Lock()
	session := a.session
	if session != nil && session.sending || len(a.outbox.sync) == 0 {
		a.mu.Unlock()
		return
	}
	ids := slices.Sorted(maps.Keys(a.outbox.sync))
	a.outbox.sync = nil
	if session != nil {
		session.sending = true
	}
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

// syncContainers are the updates that the runtime's records of containers lack.
func (a *Agent) syncContainers(ctx context.Context, ids []string) []ledger.Update {
	if len(ids) == 0 {
		return nil
	}
	effects := a.decide(context.WithoutCancel(ctx), ledger.SyncContainers{IDs: ids}, nil)
	_ = a.waitStored(ctx, effects.ticket) // they run all the same
	a.protect(ctx)                        // the cgroups above have room for what the runtime writes
	a.saveJournal(ctx)
	for _, update := range effects.Updates {
		a.noteMigration(update.ContainerID, update.Adjustment, effects.facts.Usage)
	}
	return effects.Updates
}

// endSending lets other updates be sent by a session; nil is none.
func (a *Agent) endSending(session *Session) {
	if session == nil {
		return
	}
	a.mu.Lock()
	session.sending = false
	a.mu.Unlock()
}

// noteMigration has it known what the runtime moves when it writes the cpuset.mems of an update.
func (a *Agent) noteMigration(id string, adjustment ledger.Adjustment, usage map[string]ledger.Usage) {
	at, lives := a.place(id)
	if used, measured := usage[at.Cgroup]; lives && measured && used.Unread == "" && adjustment.CpusetMems != "" {
		a.protector.NoteMigration(at.Cgroup, used.Mapped, adjustment.CpusetMems)
	}
}

// send sends updates to the runtime, and has the files of the containers compared afterwards: what is desired may have changed
// while the runtime wrote. session is nil when no runtime is connected.
func (a *Agent) send(ctx context.Context, session *Session, updates []ledger.Update) {
	asks := session != nil && session.apply != nil
	if asks {
		timeout := updateTimeout + time.Duration(len(updates))*updateTimeoutEach
		applying, cancel := context.WithTimeout(ctx, timeout)
		err := session.apply(applying, updates)
		cancel()
		switch {
		case err == nil:
			a.counters.updates.Add(uint64(len(updates)))
		case ctx.Err() == nil: // a daemon that ends has asked for nothing: the next one synchronizes
			a.log.WithError(err).Warn("the runtime did not take updates of running containers: only their cgroup files are written")
		}
	}
	a.endSending(session)
	var finished ledger.FinishUnsolicited
	dirs := make([]string, 0, len(updates))
	a.mu.Lock()
	for _, update := range updates {
		finished.IDs = append(finished.IDs, update.ContainerID)
		if at, lives := a.ledger.Place(update.ContainerID); lives {
			dirs = append(dirs, at.Cgroup)
		}
	}
	a.stepLocked(finished)
	a.mu.Unlock()
	signal(a.restoreDue)
	if asks {
		_ = a.protector.Check(ctx, dirs...) // what fails is logged, counted and tried again
	}
	a.poke() // for what came meanwhile
}
