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
	// rollbackWait is how long Rollback waits for the kernel and systemd, and planWait for what it reads before. Its caller has ten seconds.
	rollbackWait = 8 * time.Second
	planWait     = 2 * time.Second
	// rollbackPeriod is the time between two looks at what is left: a write that was under way before is taken back after it.
	rollbackPeriod = 50 * time.Millisecond
)

// Rollback has all files and systemd properties that were written hold what protect.Rollback restores. From then on everything is
// decided as in a dry run, and nothing is written, until Resume or the end of the process. The actions that have an error were not possible
// within rollbackWait, and are tried again by Run. The error is of a rollback that was not begun, or of a cgroup that does not answer.
func (a *Agent) Rollback(ctx context.Context) ([]protect.Action, error) {
	if a.journal == nil {
		return nil, fmt.Errorf("what was written on this node is not known: %s", a.unusable[protect.JournalFile])
	}
	ctx, cancel := context.WithTimeout(ctx, rollbackWait)
	defer cancel()
	plan, restored := make(chan []protect.Action, 1), make(chan []protect.Action, 1)
	go func() { plan <- a.toRestore(ctx) }()
	var actions []protect.Action
	select {
	case actions = <-plan:
	case <-time.After(planWait): // a file that hangs
	}
	a.setRolledBack(ctx, true)
	a.log.Warn("rolled back: nothing is written until the rollback is ended, or the plugin is restarted")
	go func() {
		err := a.restoreAll(ctx)
		left := a.toRestore(ctx)
		for i := range left {
			left[i].Err = cmp.Or(left[i].Err, err, errNotRestored)
		}
		restored <- left
	}()
	select {
	case left := <-restored:
		return merged(actions, left), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("nothing is written any more, but a cgroup has not answered within %v: what was written is still being taken back", rollbackWait)
	}
}

// merged returns the planned actions. An action that is left over replaces the planned one of its file.
func merged(actions, left []protect.Action) []protect.Action {
	for _, x := range left {
		if !x.Gone {
			same := func(y protect.Action) bool { return y.Cgroup == x.Cgroup && y.Knob == x.Knob }
			actions = append(slices.DeleteFunc(actions, same), x)
		}
	}
	return actions
}

var (
	errNotRestored = errors.New("is not restored yet, and tried again")
	errResumed     = errors.New("is not restored: the rollback was ended meanwhile")
)

// toRestore is what a rollback has to do.
func (a *Agent) toRestore(ctx context.Context) []protect.Action {
	actions, _ := protect.Rollback(ctx, a.journal, a.tree, nil, true) // the actions have the errors
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

// Resume ends a rollback: running containers and the cgroups above them get their values again.
func (a *Agent) Resume(ctx context.Context) error {
	if !a.config().RolledBack {
		return errors.New("nothing to resume: the daemon is not rolled back")
	}
	a.setRolledBack(ctx, false)
	a.log.Info("the rollback is ended")
	return nil
}

// setRolledBack puts the configuration in force once more, as it is, whatever the machine or the file would have now.
func (a *Agent) setRolledBack(ctx context.Context, rolledBack bool) {
	defer a.configuring()()
	a.mu.Lock()
	resolved := a.ledger.Config()
	a.mu.Unlock()
	resolved.Config.RolledBack = rolledBack
	_ = a.enforce(ctx, resolved) // it has been in force
}

// rolledBack is the condition of an agent that is rolled back.
var rolledBack = ledger.Condition{
	Name:    ledger.ConditionRollback,
	Message: `everything was set back, and nothing is written: "nri-memory-manager rollback --resume" or a restart of the plugin ends that`,
}
