package agent

import (
	"context"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// checksPerTick is how many pods have their containers' files compared at one reconcile, so that its cost does not grow
// with the node.
const checksPerTick = 50

// Run does the work beside the events until ctx ends: it keeps the sources of requests connected, reconciles every
// reconcilePeriod, repairs what others overwrite, and brings running containers to better requests.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		if err := a.requests.Run(ctx); err != nil && ctx.Err() == nil {
			a.log.WithError(err).Error("the sources of memory requests have ended")
		}
	})
	var guard protection
	defer guard.stop()
	for {
		period, dryRun := a.period()
		guard.keep(ctx, a, period, dryRun)
		timer := time.NewTimer(period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
			a.reconcile(ctx)
		case <-a.wake:
			timer.Stop()
		}
		a.listen(ctx)
		a.correct(ctx)
		a.fitShort(ctx)
		a.checkMarked(ctx)
	}
}

func (a *Agent) period() (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(time.Duration(a.resolved.Config.ReconcilePeriod), time.Second), a.resolved.Config.DryRun
}

// protection runs the protector's own loop, which a dry run must not have.
type protection struct {
	period time.Duration
	cancel context.CancelFunc
	done   chan struct{}
}

func (p *protection) keep(ctx context.Context, a *Agent, period time.Duration, dryRun bool) {
	if p.cancel != nil && (dryRun || period != p.period) {
		p.stop()
	}
	if p.cancel != nil || dryRun {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	p.period, p.cancel, p.done = period, cancel, done
	go func() {
		defer close(done)
		a.protector.Run(ctx, period)
	}()
}

func (p *protection) stop() {
	if p.cancel != nil {
		p.cancel()
		<-p.done
		p.cancel = nil
	}
}

// podChanged takes note of what a pod API tells, for Run.
func (a *Agent) podChanged(answer podinfo.Answer) {
	if answer.Pod == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revise(answer.Pod.UID)
}

// listen asks the sources for the pods that were found by Synchronize: it has no time to wait for them. From the question
// on they tell of each pod's changes.
func (a *Agent) listen(ctx context.Context) {
	if !a.sourced {
		return
	}
	a.mu.Lock()
	var refs []podinfo.Ref
	for _, p := range a.living {
		if p.managed && !p.asked {
			p.asked = true
			refs = append(refs, p.ref)
		}
	}
	a.mu.Unlock()
	now, cancel := context.WithCancel(ctx)
	cancel() // what is not known yet comes by podChanged
	for _, ref := range refs {
		if answer, ok := a.requests.Resolve(now, ref); ok {
			a.podChanged(answer)
		}
	}
}

// correct brings running containers to what has become known of their requests since their creation.
func (a *Agent) correct(ctx context.Context) {
	a.mu.Lock()
	var changed []*container
	for uid := range a.revised {
		delete(a.revised, uid)
		p := a.pods[uid]
		if p == nil || !p.managed {
			continue
		}
		a.learn(p)
		for _, c := range p.containers {
			if !c.alive() {
				continue
			}
			before := c.request
			a.compute(c)
			changed = append(changed, c)
			if c.request != before {
				a.counters.corrections.Add(1)
				a.log.WithFields(c.fields()).WithField("before", before.Request).Info("memory request corrected")
			}
		}
		a.sumUp(p)
	}
	a.mu.Unlock()
	if len(changed) > 0 {
		a.bring(ctx, changed)
	}
}

// checkMarked compares the files of the containers that were marked for it.
func (a *Agent) checkMarked(ctx context.Context) {
	a.mu.Lock()
	var marked []string
	for id, c := range a.containers {
		if c.check && c.state != Unknown {
			marked = append(marked, id)
		}
	}
	a.mu.Unlock()
	a.checkAll(ctx, marked)
}

func (a *Agent) checkAll(ctx context.Context, ids []string) {
	for _, id := range ids {
		if ctx.Err() != nil {
			return
		}
		a.watch(id)
		if err := a.checkFiles(ctx, id); err != nil {
			a.log.WithField("containerID", id).WithError(err).Debug("a container's cgroup files could not be checked")
			a.recheck(id)
		}
	}
}
