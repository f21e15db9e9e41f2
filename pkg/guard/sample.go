package guard

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

var pageSize = uint64(os.Getpagesize())

// sample reads the kernel's files for a container and its node.
func (g *Guard) sample(cgroup string, now time.Time) (Sample, error) {
	current, err := g.tree.Current(cgroup)
	events, err2 := g.tree.Events(cgroup)
	stat, err3 := g.tree.Stat(cgroup)
	swap, err4 := g.swap(cgroup)
	pressure, _, err5 := g.tree.Pressure(cgroup)
	reclaims, err6 := g.node.reclaims()
	available, err7 := g.node.available()
	stolen, back := stat["pgsteal"], stat["workingset_refault_file"]+stat["workingset_refault_anon"]
	return Sample{
		At: now, Current: current, File: stat["active_file"] + stat["inactive_file"], Swap: swap,
		Reclaimed: (stolen - min(stolen, back)) * pageSize, HighEvents: events.High,
		FullStall:    time.Duration(pressure.Full.Total) * time.Microsecond,
		SomeStall:    time.Duration(pressure.Some.Total) * time.Microsecond,
		NodeReclaims: reclaims, NodeAvailable: available,
	}, cmp.Or(err, err2, err3, err4, err5, err6, err7)
}

// swap returns the bytes that can still be swapped out. A kernel without swap has no such files.
func (g *Guard) swap(cgroup string) (uint64, error) {
	limit, err := g.tree.Get(cgroup, "memory.swap.max")
	if limit == 0 || g.tree.Lacks(cgroup, err) {
		return 0, nil
	}
	used, err2 := g.tree.Get(cgroup, "memory.swap.current")
	free, err3 := g.node.meminfo("SwapFree")
	return min(limit-min(limit, used), free), errors.Join(err, err2, err3)
}

// blind replaces the kernel's trigger for a container. If the kernel counts stalls but refuses triggers, as before 6.5 without
// CAP_SYS_RESOURCE, the counter is read. Otherwise stall is estimated: time in which memory.high was hit, usage was at memory.high and hardly
// grew, and reclaim freed nothing. One beyond memory.high may grow as slowly as the kernel has it while some task sleeps most of the time.
type blind struct {
	counts bool
	last   Sample
	stuck  bool // in the last sample
	total  time.Duration
}

// stall returns the full stall, and sets stuck if the kernel's trigger would have fired since the last sample.
func (b *blind) stall(s Sample, high uint64, trigger time.Duration) time.Duration {
	last := b.last
	b.last = s
	if b.counts {
		b.stuck = !last.At.IsZero() && s.FullStall-last.FullStall >= trigger
		return s.FullStall
	}
	grown := s.Current - min(s.Current, last.Current)
	creeps := s.beyond(high) && 2*(s.SomeStall-last.SomeStall) >= s.At.Sub(last.At)
	b.stuck = !last.At.IsZero() && s.HighEvents > last.HighEvents &&
		float64(s.Current) >= float64(high)*(1-slack) &&
		(creeps || grown < smallestStep && (s.beyond(high) || s.Reclaimed < last.Reclaimed+smallestStep))
	if b.stuck {
		b.total += s.At.Sub(last.At)
	}
	return b.total
}

// ErrNoPressure means that the kernel has no pressure triggers for a cgroup: it was built without CONFIG_PSI or booted with psi=0, they are off in
// cgroup.pressure, or this process may not use them.
var ErrNoPressure = errors.New("the kernel gives no memory.pressure trigger for this cgroup")

// unprivilegedWindow divides the windows of a process without CAP_SYS_RESOURCE (kernel 6.5; psi_trigger_create in kernel/sched/psi.c).
const unprivilegedWindow = 2 * time.Second

// trigger sets the kernel's trigger on a cgroup, with a longer window if the kernel requires one.
func (g *Guard) trigger(cgroup string, stall time.Duration) (int32, error) {
	window := g.settings.Window
	id, err := g.triggers.Add(cgroup, stall, window)
	if errors.Is(err, unix.EINVAL) && window%unprivilegedWindow != 0 {
		id, err = g.triggers.Add(cgroup, stall, window-window%unprivilegedWindow+unprivilegedWindow)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		err = ErrNoPressure
	}
	if err != nil {
		return 0, fmt.Errorf("%s/memory.pressure: %w", cgroup, err)
	}
	return id, nil
}
