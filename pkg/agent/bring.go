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

// bringDue has the runtime's records of running containers follow after the rules or the requests have changed. Their files are
// written before, with those of the levels above.
func (a *Agent) bringDue(ctx context.Context) {
	a.mu.Lock()
	session := a.session
	if session != nil && session.sending || len(a.outbox.bring) == 0 {
		a.mu.Unlock()
		return
	}
	ids := slices.Sorted(maps.Keys(a.outbox.bring))
	a.outbox.bring = nil
	effects := a.stepLocked(ledger.Bring{IDs: ids})
	if session != nil {
		session.sending = len(effects.Updates) > 0
	}
	ticket := a.outbox.newest
	a.mu.Unlock()
	_ = a.durable(ctx, ticket) // they run all the same
	a.note(effects)
	a.protect(ctx)
	if len(effects.Updates) == 0 {
		return
	}
	a.saveJournal(ctx)
	updates := a.withholdAll(effects.Updates)
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

// send sends updates to the runtime, and has the files of the containers compared afterwards: what is desired may have changed
// while the runtime wrote. session is nil when no runtime is connected.
func (a *Agent) send(ctx context.Context, session *Session, updates []ledger.Update) {
	asks := session != nil && session.apply != nil
	if asks && len(updates) > 0 {
		timeout := updateTimeout + time.Duration(len(updates))*updateTimeoutEach
		applying, cancel := context.WithTimeout(ctx, timeout)
		err := session.apply(applying, updates)
		cancel()
		if err == nil {
			a.counters.updates.Add(uint64(len(updates)))
		} else {
			a.log.WithError(err).Warn("the runtime did not take updates of running containers: only their cgroup files are written")
		}
	}
	a.mu.Lock()
	if session != nil {
		session.sending = false
	}
	dirs := make([]string, 0, len(updates))
	for _, update := range updates {
		if at, lives := a.ledger.Place(update.ContainerID); lives {
			dirs = append(dirs, at.Cgroup)
		}
	}
	a.mu.Unlock()
	if asks {
		_ = a.protector.Check(ctx, dirs...) // what fails is logged, counted and tried again
	}
	a.poke() // for what came meanwhile
}
