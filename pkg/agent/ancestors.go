package agent

import (
	"context"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// ancestors orders the writes to the cgroups above the containers: one at a time, and always the newest sums, so that
// decisions that came together share a write and a late one never undoes a newer.
type ancestors struct {
	turn    chan struct{} // holds one token
	applied uint64        // the sums that are written; owned by the holder of the token
}

func newAncestors() ancestors {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return ancestors{turn: turn}
}

// protect brings the cgroups above the containers to the newest sums. What cannot be written is logged by the protector
// and tried again at the next event and by Run.
func (a *Agent) protect(ctx context.Context) {
	select {
	case <-a.ancestors.turn:
	case <-ctx.Done():
		return
	}
	defer func() { a.ancestors.turn <- struct{}{} }()
	targets, sums, due := a.targets()
	if !due {
		return
	}
	if err := a.protector.Apply(ctx, targets); err != nil {
		a.counters.protectErrors.Add(1)
		a.protectFailed(err)
		return
	}
	a.protectFailed(nil)
	a.ancestors.applied = sums
}

// targets derives what the levels above the containers should hold, from the living pods.
func (a *Agent) targets() (targets []cgroup.Target, sums uint64, due bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.resolved.Config.DryRun || a.ancestors.applied == a.sums {
		return nil, 0, false
	}
	pods := make([]cgroup.Pod, 0, len(a.living))
	for _, p := range a.living {
		if p.managed {
			pods = append(pods, cgroup.Pod{Path: p.path, Values: p.values})
		}
	}
	return cgroup.Targets(pods), a.sums, true
}

// protectFailed logs a failure once, and its end.
func (a *Agent) protectFailed(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if text == a.lastProtectError {
		return
	}
	a.lastProtectError = text
	if err != nil {
		a.log.WithError(err).Error("the cgroups above the containers could not be written; trying again")
		return
	}
	a.log.Info("the cgroups above the containers are written again")
}
