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

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// Action is one thing that Rollback did, or would do.
type Action struct {
	Cgroup string
	Knob   cgroup.Knob
	// Unit is the systemd unit whose property is reset too, if any.
	Unit string
	// Level is that of the cgroup: kubepods, burstable, pod or container.
	Level string
	// From is what the file held, To what it holds afterwards.
	From, To string
	// KubeletValue says that To is what the kubelet wants in the file, and not the kernel's default.
	KubeletValue bool
	// Gone says that the cgroup does not exist any more: nothing is left to do.
	Gone bool
	// Err is why it could not be done; such a knob stays in the journal.
	Err error
}

// Rollback restores every knob in the journal: memory.high, memory.min, memory.low and memory.oom.group to what the kubelet wants there,
// where that is known, else to the kernel's default; cpuset.mems to what the parent may use; children before parents, so that no
// parent promises less than its children. u may be nil. It can be repeated, and is safe while pods run. With dryRun it only returns the
// actions. The error joins those of the actions. Flush the journal afterwards.
func Rollback(ctx context.Context, j *Journal, t *cgroupfs.Tree, u Units, dryRun bool) ([]Action, error) {
	entries := j.Entries()
	slices.SortStableFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(depth(b.Cgroup), depth(a.Cgroup)), cmp.Compare(a.Cgroup, b.Cgroup), groupFirst(a.Knob)-groupFirst(b.Knob))
	})
	var actions []Action
	var errs []error
	for _, e := range entries {
		a := restore(ctx, e, t, u, dryRun)
		if a.Err == nil && !dryRun {
			j.forget(e.Cgroup, e.Knob, false)
		}
		actions = append(actions, a)
		errs = append(errs, a.Err)
	}
	return actions, errors.Join(errs...)
}

// restore puts one knob back.
func restore(ctx context.Context, e Entry, t *cgroupfs.Tree, u Units, dryRun bool) Action {
	a := Action{Cgroup: e.Cgroup, Knob: e.Knob, Unit: e.Unit, Level: cgroup.LevelOf(e.Cgroup), KubeletValue: e.Restore != ""}
	there, err := t.Exists(e.Cgroup)
	if a.Gone, a.Err = !there && err == nil, err; a.Gone || err != nil {
		return a
	}
	var leaves []string
	if leaves, a.Err = a.plan(t, e.Restore); a.Err != nil || dryRun {
		return a
	}
	if u != nil && e.Unit != "" && property[e.Knob] != "" {
		a.Err = a.resetUnit(ctx, t, u)
	}
	for _, leaf := range leaves {
		err := t.Write(leaf, e.Knob, a.To)
		if errors.Is(err, fs.ErrNotExist) && t.Ended(leaf) || errors.Is(err, cgroupfs.ErrOwn) {
			continue // it ended meanwhile, or ends with this process
		}
		a.Err = errors.Join(a.Err, err)
	}
	return a
}

// plan finds what is to be written and where, in order.
func (a *Action) plan(t *cgroupfs.Tree, restore string) (leaves []string, err error) {
	if leaves, err = t.Leaves(a.Cgroup); err != nil {
		return nil, fmt.Errorf("find what to restore: %w", err)
	}
	a.To = cmp.Or(restore, a.Knob.Format(a.Knob.Default()))
	switch a.Knob {
	case cgroup.MemoryMin, cgroup.MemoryLow:
		slices.Reverse(leaves) // protection goes from the inside out
	case cgroup.CpusetMems:
		if a.To, err = t.EffectiveMems(path.Dir(a.Cgroup)); err != nil {
			return nil, fmt.Errorf("find what to restore: %w", err)
		}
	}
	a.From, err = t.Text(a.Cgroup, a.Knob)
	return leaves, err
}

// resetUnit takes the property back that would otherwise return at systemd's next reload.
func (a *Action) resetUnit(ctx context.Context, t *cgroupfs.Tree, u Units) error {
	value, err := a.Knob.Parse([]byte(a.To))
	if err != nil {
		return fmt.Errorf("find what to restore: %w", err)
	}
	err = setMemory(ctx, u, t, a.Cgroup, a.Unit, map[cgroup.Knob]uint64{a.Knob: value})
	if errors.Is(err, ErrNoSystemd) || errors.Is(err, ErrNoUnit) {
		return nil // then nothing holds it
	}
	return err
}

func depth(cgroup string) int { return strings.Count(cgroup, "/") }

// groupFirst sorts memory.oom.group before the other knobs of a cgroup, with which systemd keeps it.
func groupFirst(knob cgroup.Knob) int {
	if knob == cgroup.MemoryOOMGroup {
		return 0
	}
	return 1
}
