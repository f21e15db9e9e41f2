package agent

import (
	"context"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

// endingPeriod is how often the cgroups of pods without a sandbox are looked at: not of all does the kernel tell. A kubelet removes them within
// two seconds, or runs another sandbox.
const endingPeriod = time.Second

// Run does the work beside the events until ctx ends: it keeps the sources of requests connected, reconciles every
// checkPeriod, repairs what others overwrite, and brings running containers to better requests.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() { a.requests.Run(ctx) })
	group.Go(func() { a.deficits.Run(ctx) })
	group.Go(func() { a.tryLock(ctx) })
	group.Go(func() { a.restoreLoop(ctx) })
	looking := make(chan struct{}, 1) // holds one while a periodic look is under way
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
			default: // the last look still waits, for the disk or for memory that is moved
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

// lockPeriod is the time between two tries to get the lock.
const lockPeriod = time.Second

// tryLock shows whether the lock is given back.
func (a *Agent) tryLock(ctx context.Context) {
	ticker := time.NewTicker(lockPeriod)
	defer ticker.Stop()
	for ctx.Err() == nil {
		end := progress.Begin("the agent's lock")
		_ = a.dryRun() // has to wait for the lock
		end()
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// work does what events have left to do.
func (a *Agent) work(ctx context.Context) {
	a.askProviders(ctx)
	a.syncDue(ctx)
	a.readDueLimits(ctx)
	a.readChanged(ctx)
	a.protect(ctx)
}

// restoreLoop restores files in a dry run once the runtime may have written what was ours before, which its record still has.
func (a *Agent) restoreLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.restoreDue:
			_ = a.restoreFiles(ctx) // what fails is logged, counted and tried again
		}
	}
}

// protectorLoop runs the protector's own loop, which a dry run must not have.
type protectorLoop struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (p *protectorLoop) keep(ctx context.Context, a *Agent) {
	switch {
	case a.dryRun():
		p.stop()
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

func (p *protectorLoop) stop() {
	if p.cancel != nil {
		p.cancel()
		<-p.done
		p.cancel = nil
	}
}

// podChanged is called by the sources when they know a pod better.
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

// askProviders asks the sources for the pods that were found by Synchronize, which has no time to wait for them. From the question
// on they report each pod's changes.
func (a *Agent) askProviders(ctx context.Context) {
	a.mu.Lock()
	refs := a.outbox.unasked
	a.outbox.unasked = nil
	a.mu.Unlock()
	if !a.hasProviders {
		return
	}
	now, cancel := context.WithCancel(ctx)
	cancel() // what is not known yet comes by podChanged
	for _, ref := range refs {
		if answer, ok := a.requests.Resolve(now, ref); ok {
			a.podChanged(answer)
		}
	}
}
