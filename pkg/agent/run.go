package agent

import (
	"context"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

// endingPeriod is the time between two checks of the cgroups of pods without a sandbox, because inotify does not watch all of them. A kubelet
// removes them within two seconds or runs another sandbox.
const endingPeriod = time.Second

// Run works beside the events until ctx ends: it keeps the sources of requests connected, reconciles every checkPeriod, repairs overwritten
// files, and updates running containers when their requests become known.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { a.requests.Run(ctx) })
	group.Go(func() { a.sampler.Run(ctx) })
	group.Go(func() { a.tryLock(ctx) })
	group.Go(func() { a.restoreLoop(ctx) })
	looking := make(chan struct{}, 1) // full during a periodic check
	var guard protectorLoop
	defer guard.stop()
	var ending <-chan time.Time // nil while no pod is ending
	ticker := time.NewTicker(a.checkPeriod)
	defer ticker.Stop()
	for {
		guard.keep(ctx, a)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			select {
			case looking <- struct{}{}:
				group.Go(func() {
					a.reconcile(ctx)
					<-looking
					a.poke()
				})
			default: // the last check still waits, for the disk or for memory that is moved
			}
		case <-a.wake:
		case <-ending:
		}
		a.work(ctx)
		if ending = nil; a.endPods(ctx) {
			ending = time.After(endingPeriod)
		}
	}
}

// lockPeriod is the time between two tries of tryLock.
const lockPeriod = 2 * time.Second

// tryLock takes the lock periodically, so that /healthz shows whether it is stuck.
func (a *Agent) tryLock(ctx context.Context) {
	ticker := time.NewTicker(lockPeriod)
	defer ticker.Stop()
	for ctx.Err() == nil {
		end := progress.Begin("the agent's lock")
		_ = a.dryRun() // takes the lock
		end()
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// work carries out effects that events left to Run.
func (a *Agent) work(ctx context.Context) {
	a.askProviders(ctx)
	a.syncDue(ctx)
	a.readDueLimits(ctx)
	a.readChanged(ctx)
	a.protect(ctx)
}

// restoreLoop restores files in a dry run whenever the runtime may have written old values from its record.
func (a *Agent) restoreLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.restoreDue:
			_ = a.restoreFiles(ctx) // failures are logged, counted and retried
		}
	}
}

// protectorLoop runs the protector's loop, except in a dry run.
type protectorLoop struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (p *protectorLoop) keep(ctx context.Context, a *Agent) {
	switch {
	case a.dryRun():
		if p.stop() {
			signal(a.restoreDue) // a write that it had begun may have ended with it
		}
	case p.cancel == nil:
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		p.cancel, p.done = cancel, done
		go func() {
			defer close(done)
			a.protector.Run(ctx, a.checkPeriod)
		}()
	}
}

// stop waits for the loop's end, and reports whether it ran.
func (p *protectorLoop) stop() (ran bool) {
	if p.cancel == nil {
		return false
	}
	p.cancel()
	<-p.done
	p.cancel = nil
	return true
}

// podChanged is called by the sources when they know more about a pod.
func (a *Agent) podChanged(answer pods.Answer) {
	if answer.Pod == nil {
		return
	}
	a.mu.Lock()
	known, _ := a.requests.Known(answer.Pod.Ref)
	effects := a.stepLocked(ledger.PodFacts{UID: answer.Pod.UID, PodInfo: known})
	a.mu.Unlock()
	a.logNotes(effects.Notes)
	a.poke()
}

// askProviders asks the sources about the pods of Synchronize, which has no time to wait. From then on the sources report changes of these
// pods.
func (a *Agent) askProviders(ctx context.Context) {
	a.mu.Lock()
	refs := a.outbox.unasked
	a.outbox.unasked = nil
	a.mu.Unlock()
	if !a.hasProviders {
		return
	}
	now, cancel := context.WithCancel(ctx)
	cancel() // unknown pods are reported to podChanged later
	for _, ref := range refs {
		if answer, ok := a.requests.Resolve(now, ref); ok {
			a.podChanged(answer)
		}
	}
}
