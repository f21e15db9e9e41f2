package protect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// Action is one file that Rollback restored, or would restore.
type Action struct {
	Cgroup       string
	Knob         cgroup.Knob
	Unit         string // whose property is reset too, if any
	Level        string // of the cgroup: see cgroup.Levels
	From, To     string // the file's text before and after
	KubeletValue bool   // To is the kubelet's value, not the kernel's default
	Gone         bool   // the cgroup does not exist any more
	Err          error  // the knob stays in the journal
}

// Rollback restores every knob in the journal: memory.high, memory.min, memory.low and memory.oom.group to the kubelet's value if that is
// known, else to the kernel's default, and cpuset.mems to the nodes of the parent. Children come before parents, so that no parent has less
// protection than its children. u may be nil. Rollback can be repeated and is safe while pods run. With dryRun it only returns the actions.
// The error joins those of the actions. Flush the journal afterwards.
//
// A file that hangs keeps none below or above it from being restored. It delays the next ones by WriteLimit at most, and all that hang together
// by twice as much, and a millisecond for each. It has until the end of ctx.
func Rollback(ctx context.Context, j *Journal, t *cgroupfs.Tree, u Units, dryRun bool) ([]Action, error) {
	entries := j.Entries()
	slices.SortStableFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(depth(b.Cgroup), depth(a.Cgroup)), cmp.Compare(a.Cgroup, b.Cgroup), groupFirst(a.Knob)-groupFirst(b.Knob))
	})
	var actions []Action
	late, waits := map[int]chan Action{}, make([]atomic.Value, len(entries))
	for i, e := range entries {
		a := Action{Cgroup: e.Cgroup, Knob: e.Knob, Unit: e.Unit, Level: cgroup.LevelOf(e.Cgroup), KubeletValue: e.Restore != ""}
		a.To = cmp.Or(e.Restore, a.Knob.Format(a.Knob.Default()))
		if dryRun && len(late) == mostLate {
			a.Err = fmt.Errorf("%s of cgroup %s is not read: %d files before it hang", e.Knob, e.Cgroup, mostLate)
			actions = append(actions, a)
			continue
		}
		restored := make(chan Action, 1)
		waits[i].Store("its read has not returned")
		go func(a Action) {
			a = a.restore(ctx, j, t, u, dryRun, &waits[i])
			if a.Err == nil && !dryRun {
				j.forget(e.Cgroup, e.Knob, false)
			}
			restored <- a
		}(a)
		select {
		case a = <-restored:
		case <-time.After(limitAfter(len(late), WriteLimit)):
			late[i] = restored
		}
		actions = append(actions, a)
	}
	for i, restored := range late {
		select {
		case actions[i] = <-restored:
		case <-ctx.Done():
			select {
			case actions[i] = <-restored: // both were ready
			default:
				actions[i].Err = fmt.Errorf("%s of cgroup %s hangs: %v", entries[i].Knob, entries[i].Cgroup, waits[i].Load())
			}
		}
	}
	var errs []error
	for _, a := range actions {
		errs = append(errs, a.Err)
	}
	return actions, errors.Join(errs...)
}

// mostLate bounds what hangs in a daemon, which repeats dry runs and passes: each read and write occupies a thread.
const mostLate = 64

// restore returns the action with its result. waits gets what it waits for.
func (a Action) restore(ctx context.Context, j *Journal, t *cgroupfs.Tree, u Units, dryRun bool, waits *atomic.Value) Action {
	there, err := t.Exists(a.Cgroup)
	if a.Gone, a.Err = !there && err == nil, err; a.Gone || err != nil {
		a.To = ""
		return a
	}
	var leaves []string
	if leaves, a.Err = a.plan(t); a.Err != nil || dryRun {
		return a
	}
	if a.KubeletValue && !j.restoring(ctx, a.Cgroup, a.Knob, a.From) {
		a.To = a.From // systemd gets it too
	}
	if u != nil && a.Unit != "" && property[a.Knob] != "" {
		waits.Store("systemd has not answered about " + a.Unit)
		a.Err = a.resetUnit(ctx, t, u)
	}
	waits.Store("its write has not returned")
	for _, leaf := range leaves {
		err := t.Write(leaf, a.Knob, a.To)
		if errors.Is(err, fs.ErrNotExist) && t.Ended(leaf) || errors.Is(err, cgroupfs.ErrOwn) {
			continue // it has ended, or ends with this process
		}
		if err != nil && leaf == a.Cgroup {
			j.failed(a.Cgroup, a.Knob, a.From)
		}
		a.Err = errors.Join(a.Err, err)
	}
	return a
}

// plan sets From, and To of cpuset.mems, and returns the cgroups to write in order.
func (a *Action) plan(t *cgroupfs.Tree) (leaves []string, err error) {
	if leaves, err = t.Leaves(a.Cgroup); err != nil {
		return nil, fmt.Errorf("find what to restore: %w", err)
	}
	switch a.Knob {
	case cgroup.MemoryMin, cgroup.MemoryLow:
		slices.Reverse(leaves) // protection is lowered from the inside out
	case cgroup.CpusetMems:
		if a.To, err = t.EffectiveMems(path.Dir(a.Cgroup)); err != nil {
			return nil, fmt.Errorf("find what to restore: %w", err)
		}
	}
	a.From, err = t.Text(a.Cgroup, a.Knob)
	return leaves, err
}

// resetUnit resets the property, which systemd would write again at its next reload.
func (a *Action) resetUnit(ctx context.Context, t *cgroupfs.Tree, u Units) error {
	value, err := a.Knob.Parse([]byte(a.To))
	if err != nil {
		return fmt.Errorf("find what to restore: %w", err)
	}
	err = setMemory(ctx, u, t, a.Cgroup, a.Unit, map[cgroup.Knob]uint64{a.Knob: value}, new(bool))
	if errors.Is(err, ErrNoSystemd) || errors.Is(err, ErrNoUnit) {
		return nil // nothing can write it again
	}
	return err
}

func depth(cgroup string) int { return strings.Count(cgroup, "/") }

// groupFirst sorts memory.oom.group first, because systemd overwrites it with every other property: see setMemory.
func groupFirst(knob cgroup.Knob) int {
	if knob == cgroup.MemoryOOMGroup {
		return 0
	}
	return 1
}
