package guard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// In Linux 6.12 before 6.12.13, and 6.13 before 6.13.2, a task of a cgroup with a CPU limit may count as running forever once it has slept
// (fixed by kernel commit 7d9da040575b; 6.12 has c6508124193d, the first fix). Then full of memory.pressure, the time in which no task
// ran and some waited for memory, does not advance on that CPU, and its trigger does not fire.

// fullDoubtful reports whether full may be broken in a kernel release. Distributions may have fixed it, so fullBroken compares the counters.
func fullDoubtful(release string) bool {
	var minor, patch int
	n, _ := fmt.Sscanf(release, "6.%d.%d", &minor, &patch)
	return n == 2 && (minor == 12 && patch < 13 || minor == 13 && patch < 2)
}

// times are the kernel's counters of a container's time.
type times struct {
	some, full time.Duration // totals of memory.pressure
	user       time.Duration // CPU time of its own code (cpu.stat)
}

// fullBroken reports whether full did not advance between two samples of a stopped container, although some advanced and hardly any of its
// code ran.
func fullBroken(before, after times, stopped bool, s Settings) bool {
	return stopped && after.full == before.full && after.some-before.some >= s.Stall && after.user-before.user < s.Window/100
}

// comparison is the state of the comparison of full with some.
type comparison struct {
	blind
	times
}

// compare finds containers of a pod for which full is broken; they are sampled every window from then on.
func (g *Guard) compare(pod string, now time.Time) {
	due := func(w *watched) bool { return w.blind == nil && now.Sub(w.compared.last.At) >= g.settings.Window }
	for _, w := range g.of(pod, due) {
		s, err := g.sample(w.Cgroup, now)
		cpu, err2 := g.tree.CPUStat(w.Cgroup)
		if errors.Join(err, err2) == nil { // otherwise it has ended
			g.compareWith(w, s, time.Duration(cpu["user_usec"])*time.Microsecond)
		}
	}
}

func (g *Guard) compareWith(w *watched, s Sample, user time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &w.compared
	before := c.times
	c.times = times{s.SomeStall, s.FullStall, user}
	c.stall(s, w.brake.High(), 0)
	if w.blind == nil && fullBroken(before, c.times, c.stuck, g.settings) {
		c.total = s.FullStall
		w.blind, w.noFull, w.look = &c.blind, true, s.At.Add(g.settings.Window)
		g.triggers.Interrupt()
		g.noFull.Do(func() {
			g.log.WithFields(w.fields()).Warn("stall guard: full of memory.pressure does not advance on this kernel while the container is stopped; for such containers memory.events is read every window instead")
		})
	}
}

// doubtful reads the kernel's release.
func (n Node) doubtful() bool {
	release, err := os.ReadFile(filepath.Join(n.Proc, "sys/kernel/osrelease"))
	return err == nil && fullDoubtful(string(release))
}
