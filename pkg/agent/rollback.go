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
	// rollbackWait is how long Rollback waits for the kernel and systemd. Its caller has ten seconds.
	rollbackWait = 8 * time.Second
	// rollbackPeriod is the time between two looks at what is left: a write that was under way before is taken back after it.
	rollbackPeriod = 50 * time.Millisecond
)

// Rollback has all files and systemd properties that were written hold what protect.Rollback restores. From then on everything is
// decided as in a dry run, and nothing is written, until Resume or the end of the process. The actions that have an error were not possible
// within rollbackWait, and are tried again by Run. The error is of a rollback that was not begun.
func (a *Agent) Rollback(ctx context.Context) ([]protect.Action, error) {
	if a.journal == nil {
		return nil, fmt.Errorf("what was written on this node is not known: %s", a.unusable[protect.JournalFile])
	}
	ctx, cancel := context.WithTimeout(ctx, rollbackWait)
	defer cancel()
	actions := a.toRestore(ctx)
	if err := a.setRolledBack(ctx, true); err != nil {
		return nil, err
	}
	restored := make(chan error, 1)
	go func() { restored <- a.restoreAll(ctx) }()
	var err error
	select {
	case err = <-restored:
	case <-ctx.Done(): // a file that hangs
	}
	for _, left := range a.toRestore(ctx) {
		if left.Gone {
			continue
		}
		left.Err = cmp.Or(left.Err, err, errNotRestored)
		same := func(x protect.Action) bool { return x.Cgroup == left.Cgroup && x.Knob == left.Knob }
		actions = append(slices.DeleteFunc(actions, same), left)
	}
	a.log.WithField("files", len(actions)).Warn("rolled back: nothing is written until the rollback is ended, or the plugin is restarted")
	return actions, nil
}

var errNotRestored = errors.New("is not restored yet, and tried again")

// toRestore is what a rollback has to do.
func (a *Agent) toRestore(ctx context.Context) []protect.Action {
	actions, _ := protect.Rollback(ctx, a.journal, a.tree, nil, true) // the actions have the errors
	return actions
}

// restoreAll restores files until nothing is left, one fails, or ctx has ended.
func (a *Agent) restoreAll(ctx context.Context) error {
	isLeft := func(x protect.Action) bool { return !x.Gone }
	for {
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
	return a.setRolledBack(ctx, false)
}

func (a *Agent) setRolledBack(ctx context.Context, rolledBack bool) error {
	a.configures.Lock()
	defer a.configures.Unlock()
	c := a.config()
	c.RolledBack = rolledBack
	return a.reconfigure(ctx, c)
}

// rolledBack is the condition of an agent that is rolled back.
var rolledBack = ledger.Condition{
	Name:    ledger.ConditionRollback,
	Message: `everything was set back, and nothing is written: "nri-memory-manager rollback --resume" or a restart of the plugin ends that`,
}
