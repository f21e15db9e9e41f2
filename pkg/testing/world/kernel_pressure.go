package world

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The lines of memory.pressure.
const (
	some = iota
	full
)

const (
	psiPeriod = 2 * time.Second // kernel/sched/psi.c, PSI_FREQ
	fixed     = 1 << 11         // include/linux/sched/loadavg.h, FIXED_1
)

// exps are EXP_10s, EXP_60s and EXP_300s of kernel/sched/psi.c.
var exps = [3]uint64{1677, 1981, 2034}

// averages are a line of memory.pressure.
type averages struct {
	total, seen time.Duration
	last, next  time.Time
	avg         [3]uint64 // percent, in parts of fixed
}

func newAverages(now time.Time) averages { return averages{last: now, next: now.Add(psiPeriod)} }

// update is update_averages: periods in which nobody looked had no stall, which is added with the last of them.
func (a *averages) update(now time.Time) {
	if now.Before(a.next) {
		return
	}
	missed := now.Sub(a.next) / psiPeriod
	a.next = a.next.Add((missed + 1) * psiPeriod)
	period := now.Sub(a.last.Add(missed * psiPeriod))
	a.last = now
	stalled := min(a.total-a.seen, period)
	a.seen = a.total
	for i, exp := range exps {
		for range min(missed, 3000) {
			a.avg[i] = decayed(a.avg[i], exp, 0)
		}
		a.avg[i] = decayed(a.avg[i], exp, uint64(stalled*100/period)*fixed)
	}
}

// updatePressure precedes each look at memory.pressure.
func (g *group) updatePressure(now time.Time) {
	for line := range g.pressure {
		g.pressure[line].update(now)
	}
}

// fullStall is the full total of memory.pressure.
func (k *Kernel) fullStall(name string) time.Duration {
	return seen(k, name, func(g *group) time.Duration {
		g.updatePressure(k.now)
		return g.pressure[full].total
	})
}

// decayed is calc_load of include/linux/sched/loadavg.h.
func decayed(load, exp, now uint64) uint64 {
	next := load*exp + now*(fixed-exp)
	if now >= load {
		next += fixed - 1
	}
	return next / fixed
}

func (a *averages) text(name string) string {
	show := func(avg uint64) string { return fmt.Sprintf("%d.%02d", avg/fixed, avg%fixed*100/fixed) }
	return fmt.Sprintf("%s avg10=%s avg60=%s avg300=%s total=%d\n", name, show(a.avg[0]), show(a.avg[1]), show(a.avg[2]), a.total.Microseconds())
}

// press adds the stalls of the last second to all cgroups on the way up: some where any process waited, full where no process ran meanwhile.
// One that has nothing to do sleeps, and counts for neither (kernel/sched/psi.c).
func (k *Kernel) press(passed time.Duration) {
	type waited struct{ some, full time.Duration }
	all := map[*group]waited{}
	for _, p := range k.processes {
		if !p.busy {
			continue
		}
		stalled := min(p.stalled, passed)
		for a := p.group; a != nil; a = a.parent {
			w, known := all[a]
			if w.some = max(w.some, stalled); !known && !k.fullStands() {
				w.full = stalled
			}
			w.full = min(w.full, stalled)
			all[a] = w
		}
	}
	for g, w := range all {
		for line, stalled := range [...]time.Duration{w.some, w.full} {
			if a := &g.pressure[line]; stalled > 0 {
				a.total += stalled
				a.update(k.now)
			}
		}
	}
}

// fullStands reports whether full does not advance: in Linux 6.12 before 6.12.13 a task of a cgroup with a CPU limit may count as running for
// ever once it has slept (repaired by 7d9da040575b), for the cgroups above, too.
func (k *Kernel) fullStands() bool { return k.version == [2]int{6, 12} && k.patch < 13 }

// window is what a trigger has seen: struct psi_window.
type window struct {
	size            time.Duration
	start           time.Time
	value, previous time.Duration
}

// growth is window_update: what was added within the window, with a part of the one before.
func (w *window) growth(now time.Time, total time.Duration) time.Duration {
	elapsed, growth := now.Sub(w.start), total-w.value
	if elapsed > w.size {
		w.start, w.value, w.previous = now, total, growth
		return growth
	}
	return growth + time.Duration(float64(w.previous)*float64(w.size-elapsed)/float64(w.size))
}

// trigger is a pressure trigger on full.
type trigger struct {
	window
	id    int32
	group *group
	stall time.Duration
	look  time.Time // next
	last  time.Time // that it fired
	set   *triggerSet
}

// fire tells of triggers whose stall was reached, each at most once in its window (update_triggers). For a process without CAP_SYS_RESOURCE
// the kernel looks at them with the averages (psi_avgs_work).
func (k *Kernel) fire() {
	for _, t := range k.triggers {
		if k.now.Before(t.look) {
			continue
		}
		t.look = k.now.Add(psiPeriod)
		if t.growth(k.now, t.group.pressure[full].total) >= t.stall && !k.now.Before(t.last.Add(t.size)) {
			t.last = k.now
			t.set.fired(t.id)
		}
	}
}

// endTriggers has those of a cgroup that is removed be ready for once, as epoll sees an edge there.
func (k *Kernel) endTriggers(g *group) {
	kept := k.triggers[:0]
	for _, t := range k.triggers {
		if t.group == g {
			t.set.fired(t.id)
		} else {
			kept = append(kept, t)
		}
	}
	k.triggers = kept
}

// triggerSet is cgroupfs.Triggers.
type triggerSet struct {
	port *Port
	wake bell
	open map[int32]string // cgroups by id: a descriptor remains when its cgroup is gone; guarded by Kernel.mu

	mu    sync.Mutex // after Kernel.mu
	ready []int32
	woken bool
	ended bool
}

func (s *triggerSet) fired(id int32) {
	s.mu.Lock()
	s.ready = append(s.ready, id)
	s.mu.Unlock()
	s.wake.ring()
}

// Add sets a trigger for a process without CAP_SYS_RESOURCE (psi_trigger_create): from Linux 6.5 on its window is a multiple of two seconds;
// before, it may not open the file for that.
func (s *triggerSet) Add(cgroup string, stall, size time.Duration) (int32, error) {
	if err := s.port.before(cgroup, "memory.pressure"); err != nil {
		return 0, err
	}
	k := s.port.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(cgroup)
	switch {
	case g == nil:
		return 0, unix.ENOENT
	case !k.atLeast(6, 5):
		return 0, unix.EPERM
	case size <= 0 || size > 10*time.Second || size%psiPeriod != 0 || stall <= 0 || stall > size:
		return 0, unix.EINVAL
	}
	k.wd++
	t := &trigger{window: window{size: size, start: k.now, value: g.pressure[full].total}, id: int32(k.wd), group: g, stall: stall, set: s, look: k.now.Add(psiPeriod)}
	k.triggers, s.open[t.id] = append(k.triggers, t), cgroup
	return t.id, nil
}

func (s *triggerSet) drop(is func(id int32) bool) {
	k := s.port.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := k.triggers[:0]
	for _, t := range k.triggers {
		if t.set != s || !is(t.id) {
			kept = append(kept, t)
		}
	}
	k.triggers = kept
	maps.DeleteFunc(s.open, func(id int32, _ string) bool { return is(id) })
}

func (s *triggerSet) Remove(id int32) { s.drop(func(other int32) bool { return other == id }) }

func (s *triggerSet) Wait(timeout time.Duration) ([]int32, error) {
	var after <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		after = timer.C
	}
	for {
		s.mu.Lock()
		ready, woken, ended := s.ready, s.woken, s.ended
		s.ready, s.woken = nil, false
		s.mu.Unlock()
		switch {
		case ended:
			return nil, unix.EBADF
		case len(ready) > 0 || woken:
			return ready, nil
		}
		select {
		case <-s.wake:
		case <-after:
			return nil, nil
		}
	}
}

func (s *triggerSet) Interrupt() {
	s.mu.Lock()
	s.woken = true
	s.mu.Unlock()
	s.wake.ring()
}

func (s *triggerSet) Close() error {
	s.drop(func(int32) bool { return true })
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.wake.ring()
	return nil
}
