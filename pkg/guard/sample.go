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

// blind estimates stall where the kernel keeps no pressure: time in which memory.high was hit, usage stood at it and
// hardly grew, and reclaim gave nothing.
type blind struct {
	last  Sample
	stuck bool // at the last reading
	total time.Duration
}

func (b *blind) stall(s Sample, high uint64) time.Duration {
	grown := s.Current - min(s.Current, b.last.Current)
	b.stuck = !b.last.At.IsZero() && s.HighEvents > b.last.HighEvents &&
		float64(s.Current) >= float64(high)*(1-slack) &&
		grown < smallestStep && s.Reclaimed < b.last.Reclaimed+smallestStep
	if b.stuck {
		b.total += s.At.Sub(b.last.At)
	}
	b.last = s
	return b.total
}
