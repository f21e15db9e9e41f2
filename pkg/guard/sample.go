package guard

import (
	"errors"
	"os"
	"time"
)

var pageSize = uint64(os.Getpagesize())

// sample reads the kernel's files for a container and its node.
func (g *Guard) sample(cgroup string, now time.Time) (Sample, error) {
	s := Sample{At: now}
	var err error
	if s.Current, err = g.tree.Current(cgroup); err != nil {
		return s, err
	}
	events, err := g.tree.Events(cgroup)
	if err != nil {
		return s, err
	}
	s.HighEvents = events.High
	stat, err := g.tree.Stat(cgroup)
	if err != nil {
		return s, err
	}
	s.File = stat["active_file"] + stat["inactive_file"]
	stolen, back := stat["pgsteal"], stat["workingset_refault_file"]+stat["workingset_refault_anon"]
	s.Reclaimed = (stolen - min(stolen, back)) * pageSize
	if s.Swap, err = g.swap(cgroup); err != nil {
		return s, err
	}
	pressure, _, err := g.tree.Pressure(cgroup)
	if err != nil {
		return s, err
	}
	s.FullStall = time.Duration(pressure.Full.Total) * time.Microsecond
	s.SomeStall = time.Duration(pressure.Some.Total) * time.Microsecond
	if s.NodeReclaims, err = g.node.reclaims(); err != nil {
		return s, err
	}
	s.NodeAvailable, err = g.node.available()
	return s, err
}

// swap is what the container can still swap out. A kernel without swap has no such files.
func (g *Guard) swap(cgroup string) (uint64, error) {
	limit, err := g.tree.Get(cgroup, "memory.swap.max")
	if limit == 0 || g.tree.Lacks(cgroup, err) {
		return 0, nil
	}
	used, err2 := g.tree.Get(cgroup, "memory.swap.current")
	free, err3 := g.node.swap()
	return min(limit-min(limit, used), free), errors.Join(err, err2, err3)
}

// blind is what the guard sees of a container where the kernel does not tell of its stall. Where it counts it all the same, as before 6.5
// for a process without CAP_SYS_RESOURCE, that is read. Otherwise stall is estimated: time in which memory.high was hit, usage stood at it
// and hardly grew, and reclaim gave nothing.
type blind struct {
	counts bool
	last   Sample
	stuck  bool // at the last reading
	total  time.Duration
}

// stall is the full stall, in which trigger since the last reading is what the kernel would have told of.
func (b *blind) stall(s Sample, high uint64, trigger time.Duration) time.Duration {
	last := b.last
	b.last = s
	if b.counts {
		b.stuck = !last.At.IsZero() && s.FullStall-last.FullStall >= trigger
		return s.FullStall
	}
	grown := s.Current - min(s.Current, last.Current)
	b.stuck = !last.At.IsZero() && s.HighEvents > last.HighEvents &&
		float64(s.Current) >= float64(high)*(1-slack) &&
		grown < smallestStep && s.Reclaimed < last.Reclaimed+smallestStep
	if b.stuck {
		b.total += s.At.Sub(last.At)
	}
	return b.total
}
