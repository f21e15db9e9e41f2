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

// ancestors orders the writes to the cgroups above the containers: one at a time, and always the newest values, so that
// decisions that came together share a write and a late one never undoes a newer.
type ancestors struct {
	desiring sync.Mutex    // its holder has the newest values desired; nothing under it waits
	slot     chan struct{} // holds one token; its holder writes
	hanging  atomic.Int32  // those that have not returned within applyLimit
}

func newAncestors() ancestors {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return ancestors{slot: turn}
}

// protect brings the cgroups above the containers to the newest values. What cannot be written is logged and tried again at
// the next event and by Run. It is false where not even the newest values are desired yet, for want of time.
func (a *Agent) protect(ctx context.Context) (desired bool) {
	if !a.ancestors.take(ctx) {
		a.poke() // Run has the time
		return false
	}
	defer func() { a.ancestors.slot <- struct{}{} }()
	err := a.desire()
	switch {
	case a.dryRun():
		return true
	case a.ancestors.hanging.Load() >= maxHanging:
		a.protectFailed(errNoAnswer)
		return true
	}
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		a.protectFailed(errors.Join(err, a.protector.Apply(ctx)))
	}()
	select {
	case <-settled:
	case <-time.After(applyLimit):
		a.ancestors.hanging.Add(1)
		a.protectFailed(errNoAnswer) // until it has returned
		go func() { <-settled; a.ancestors.hanging.Add(-1) }()
	}
	return true
}

// maxHanging bounds them: each keeps a thread.
const maxHanging = 8

// applyLimit is how long the others wait for one that writes. A kernel takes a thousandth of it, unless something is wrong.
const applyLimit = 2 * protect.WriteLimit

var errNoAnswer = fmt.Errorf("a cgroup has not answered within %v", applyLimit)

// restoreFiles has nothing of ours stand in the files of a node on which nothing is written any more: a memory.high that the stall guard does
// not look after stops a container for good.
func (a *Agent) restoreFiles(ctx context.Context) (err error) {
	if a.dryRun() && a.desireNothing(a.protector.Journaled()) {
		err = errors.Join(a.protector.Apply(ctx), a.protector.WriteLate(ctx))
		a.protectFailed(err)
	}
	return err
}

// desireNothing has nothing desired any more in a dry run, which does not end meanwhile.
func (a *Agent) desireNothing(written protect.Journaled) bool {
	defer a.configuring()()
	if !a.dryRun() {
		return false
	}
	a.protector.RestoreAll(written)
	return true
}

// desire makes the newest values desired, and writes nothing.
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

// take waits until nobody else writes; false past the deadline.
func (o *ancestors) take(ctx context.Context) bool {
	if ctx.Err() != nil { // the select would choose either
		return false
	}
	select {
	case <-o.slot:
		return true
	case <-ctx.Done():
		return false
	}
}

// takeTargets takes what is to be written.
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

// protectFailed counts and logs a failure, once, and its end; nil is none. After a failure it is not known what is written.
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
		a.log.WithError(err).Error("the cgroups above the containers could not be written; trying again")
	default:
		a.log.Info("the cgroups above the containers are written again")
	}
}
