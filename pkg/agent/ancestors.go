package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// ancestors orders the writes to the parent cgroups: one at a time and always the newest values. Concurrent decisions share a write, and a
// late write never overwrites a newer value.
type ancestors struct {
	desiring sync.Mutex    // held while the newest values become desired; its holder never waits
	slot     chan struct{} // full during a write
	hanging  atomic.Int32  // writes that did not return within applyLimit
}

// protect passes all newest values to the protector and has it write them, as far as its Apply does: a container's memory.high and cpuset.mems
// are left to its Run. Failures in parent cgroups are logged and retried at the next event and by Run. It returns false if ctx ended before the
// newest values became desired.
func (a *Agent) protect(ctx context.Context) (desired bool) {
	if !a.ancestors.take(ctx) {
		a.poke()
		return false
	}
	defer func() { <-a.ancestors.slot }()
	err := a.desire()
	switch {
	case a.dryRun():
		return true
	case a.ancestors.hanging.Load() >= maxHanging:
		a.protectFailed(errNoAnswer)
		return true
	}
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		a.protectFailed(errors.Join(err, a.protector.Apply(ctx)))
	}()
	select {
	case <-returned:
	case <-time.After(applyLimit):
		a.ancestors.hanging.Add(1)
		a.protectFailed(errNoAnswer) // until it has returned
		go func() { <-returned; a.ancestors.hanging.Add(-1) }()
	}
	return true
}

// maxHanging bounds the hanging writes: each occupies a thread.
const maxHanging = 8

// applyLimit is how long others wait for a write. A kernel normally takes a thousandth of it.
const applyLimit = 2 * protect.WriteLimit

var errNoAnswer = fmt.Errorf("a cgroup has not answered within %v", applyLimit)

// restoreFiles restores all written files in a dry run: without the stall guard a remaining memory.high could stop a container for good.
func (a *Agent) restoreFiles(ctx context.Context) (err error) {
	if a.dryRun() && a.desireNothing(a.protector.Journaled()) {
		err = errors.Join(a.protector.Apply(ctx), a.protector.WriteLate(ctx))
		a.protectFailed(err)
	}
	return err
}

// desireNothing ends the desired state in a dry run. The configuration cannot change meanwhile.
func (a *Agent) desireNothing(written protect.Journaled) bool {
	defer a.configuring()()
	if !a.dryRun() {
		return false
	}
	a.ancestors.desiring.Lock() // values of before, on their way, become desired first
	defer a.ancestors.desiring.Unlock()
	a.protector.RestoreAll(written)
	return true
}

// desire passes the newest values to the protector without writing them.
func (a *Agent) desire() error {
	a.ancestors.desiring.Lock()
	defer a.ancestors.desiring.Unlock()
	targets, ended, all := a.takeTargets()
	if all {
		return a.protector.DesireAll(targets)
	}
	return a.protector.Desire(targets, ended)
}

func (a *Agent) dryRun() bool { return a.config().DryRun() }

// config is the configuration in force.
func (a *Agent) config() config.Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Config().Config
}

// take waits for the slot; it returns false if ctx ends first.
func (o *ancestors) take(ctx context.Context) bool {
	if ctx.Err() != nil { // the select would choose either
		return false
	}
	select {
	case o.slot <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// takeTargets empties the outbox of targets.
func (a *Agent) takeTargets() (targets []cgroup.Target, ended []string, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := &a.outbox
	if a.ledger.Config().Config.DryRun() {
		return nil, nil, false
	}
	targets, ended, all = slices.Collect(maps.Values(o.targets)), o.ended, o.all
	if all {
		targets = a.ledger.Targets()
		for i := range targets {
			if seen, read := o.seen[targets[i].Cgroup]; read {
				targets[i].Seen = &seen
			}
		}
	}
	o.targets, o.ended, o.seen, o.all = nil, nil, nil, false
	return targets, ended, all
}

// protectFailed counts failures, and logs the first of a series and the end of the series (nil). After a failure all targets are passed again.
func (a *Agent) protectFailed(err error) {
	a.mu.Lock()
	changed := a.protectFailing != (err != nil)
	a.protectFailing = err != nil
	a.outbox.all = a.outbox.all || err != nil
	a.mu.Unlock()
	if err != nil {
		a.counters.protectErrors.Add(1)
	}
	switch {
	case !changed:
	case err != nil:
		a.log.WithError(err).Error("the parent cgroups could not be written; trying again")
	default:
		a.log.Info("the parent cgroups can be written again")
	}
}
