package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

const (
	// rollbackWait is how long Rollback waits for the kernel and systemd, and planWait how long for its plan. Its caller waits ten seconds.
	rollbackWait = 8 * time.Second
	planWait     = 2 * time.Second
	// restoreWait is the part of rollbackWait for restoring files: the rest is for finding what is left.
	restoreWait = 5 * time.Second
	// rollbackPeriod is the time between two checks: writes that were under way may still have to be restored.
	rollbackPeriod = 50 * time.Millisecond
)

// Rollback restores all written files and systemd properties, as protect.Rollback does. Until Resume or the end of the process nothing more is
// written, and decisions are those of a dry run. Actions with an error failed or hang within rollbackWait; Run retries them. Rollback itself
// fails if there is no journal.
func (a *Agent) Rollback(ctx context.Context) ([]protect.Action, error) {
	if a.journal == nil {
		return nil, fmt.Errorf("what was written on this node is not known: %s", a.unusable[protect.JournalFile])
	}
	ctx, cancel := context.WithTimeout(ctx, rollbackWait)
	defer cancel()
	planning, stop := context.WithTimeout(ctx, planWait)
	defer stop()
	plan := a.toRestore(planning)
	a.setRolledBack(ctx, true)
	a.log.Warn("rolled back: nothing is written until the rollback is ended, or the plugin is restarted")
	restoring, stop := context.WithTimeout(ctx, restoreWait)
	defer stop()
	restored := make(chan error, 1)
	go func() { restored <- a.restoreAll(restoring) }()
	var err error
	select {
	case err = <-restored:
	case <-restoring.Done(): // a file hangs
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errNotRestored
	}
	left := a.toRestore(ctx)
	for i := range left {
		left[i].Err = cmp.Or(left[i].Err, err, errNotRestored)
	}
	return merged(plan, left), nil
}

// merged returns the planned actions. An action that is left replaces the planned one of its file; all others are done, also if their plan failed.
func merged(actions, left []protect.Action) []protect.Action {
	for i := range actions {
		actions[i].Err = nil
	}
	for _, x := range left {
		if !x.Gone {
			same := func(y protect.Action) bool { return y.Cgroup == x.Cgroup && y.Knob == x.Knob }
			actions = append(slices.DeleteFunc(actions, same), x)
		}
	}
	return actions
}

var (
	errNotRestored = errors.New("is not restored yet: trying again")
	errResumed     = errors.New("is not restored: the rollback was ended meanwhile")
)

// toRestore returns what a rollback would do now.
func (a *Agent) toRestore(ctx context.Context) []protect.Action {
	actions, _ := protect.Rollback(ctx, a.journal, a.tree, nil, true) // the errors are in the actions
	return actions
}

// restoreAll restores files until nothing is left, one fails, or ctx or the rollback has ended.
func (a *Agent) restoreAll(ctx context.Context) error {
	isLeft := func(x protect.Action) bool { return !x.Gone }
	for {
		if !a.config().RolledBack {
			return errResumed
		}
		if err := a.restoreFiles(ctx); err != nil || !slices.ContainsFunc(a.toRestore(ctx), isLeft) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rollbackPeriod):
		}
	}
}

// Resume ends a rollback: running containers and their parent cgroups get their values again.
func (a *Agent) Resume(ctx context.Context) error {
	if !a.config().RolledBack {
		return errors.New("nothing to resume: the daemon is not rolled back")
	}
	a.setRolledBack(ctx, false)
	a.log.Info("the rollback is ended")
	return nil
}

// setRolledBack applies the current configuration again, without reading the machine or the file.
func (a *Agent) setRolledBack(ctx context.Context, rolledBack bool) {
	defer a.configuring()()
	a.mu.Lock()
	resolved := a.ledger.Config()
	a.mu.Unlock()
	resolved.Config.RolledBack = rolledBack
	_ = a.enforce(ctx, resolved) // it fits: it was in force
}

// rolledBack is the condition of an agent that is rolled back.
var rolledBack = ledger.Condition{
	Name:    ledger.ConditionRollback,
	Message: `what was written is set back, and nothing more is written: "nri-memory-manager rollback --resume" or a restart of the plugin ends that`,
}
