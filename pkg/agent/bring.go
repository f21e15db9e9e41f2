package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// updateTimeout and updateTimeoutEach are how long the runtime may take to answer updates of running containers, and for
// each of them. After it their files are written.
const (
	updateTimeout     = 5 * time.Second
	updateTimeoutEach = 100 * time.Millisecond
)

// bringDue gives running containers what they should have after the rules or their requests have changed. The levels above
// are raised first and lowered last.
func (a *Agent) bringDue(ctx context.Context) {
	a.mu.Lock()
	ids := slices.Sorted(maps.Keys(a.outbox.bring))
	a.outbox.bring = nil
	if len(ids) == 0 {
		a.mu.Unlock()
		return
	}
	effects := a.stepLocked(ledger.Bring{IDs: ids})
	ticket, apply := a.outbox.newest, a.apply
	a.mu.Unlock()
	_ = a.durable(ctx, ticket) // they run all the same
	a.note(effects)
	a.protect(ctx)
	if len(effects.Updates) == 0 {
		return
	}
	if err := a.send(ctx, apply, effects.Updates); err != nil {
		a.log.WithError(err).Warn("the runtime did not take updates of running containers: their cgroup files are written instead")
	}
	sent := make([]string, len(effects.Updates))
	for i, update := range effects.Updates {
		sent[i] = update.ContainerID
	}
	a.step(ledger.Settled{IDs: sent}) // has their files checked: the runtime ignores updates that fail
	a.protect(ctx)
}

// send sends updates to the runtime. It returns at the timeout whatever the runtime does.
func (a *Agent) send(ctx context.Context, apply func(context.Context, []ledger.Update) error, updates []ledger.Update) error {
	if apply == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, updateTimeout+time.Duration(len(updates))*updateTimeoutEach)
	sent := make(chan error, 1)
	go func() {
		defer cancel()
		sent <- apply(ctx, updates)
	}()
	select {
	case err := <-sent:
		if err == nil {
			a.counters.updates.Add(uint64(len(updates)))
		}
		return err
	case <-ctx.Done():
		return errors.New("the runtime did not answer in time")
	}
}
