package world

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of faults that are drawn by themselves, so that the rest of a seed stays as it is.
const (
	OpensFail  = "opens fail"        // of cgroup files: Target is "every" or "every third" (EMFILE), or the name of one file (EACCES)
	OCIFails   = "OCI runtime fails" // to create and to update containers, after plugins have answered
	NotUpdated = "updates refused"   // that the runtime has not asked for
)

// opens is what opening a file fails with.
func (t *trouble) opens(cgroup, file string) error {
	if t.left(OpensFail) == 0 {
		return nil
	}
	t.mu.Lock()
	spans := slices.Clone(t.spans)
	t.mu.Unlock()
	for _, s := range spans {
		if s.kind != OpensFail || time.Now().After(s.to) {
			continue
		}
		switch {
		case s.target == "every", s.target == "every third" && t.draw("open "+cgroup+file, 3) == 0:
			return unix.EMFILE
		case s.target == file:
			return unix.EACCES
		}
	}
	return nil
}

// failing is an error of the runtime while a fault of this kind lasts.
func (t *trouble) failing(kind string) error {
	if t.left(kind) == 0 {
		return nil
	}
	return fmt.Errorf("%s", kind)
}

// refusals adds what files, the OCI runtime and the runtime refuse, writes to cpuset.mems, and to a few scenarios a pod API that only answers at
// the end, a Memory Manager that is off, or one that lets run what it cannot place.
func (d drawer) refusals(s *Scenario) {
	d.Rand = draws(s.Seed, "refusals")
	switch d.IntN(12) {
	case 0:
		if strings.Contains(s.Config, "podLevel") {
			break
		}
		s.Config += "memoryManagerPolicy: None\n"
	case 1:
		s.Config += "onUnsatisfiable: Unpinned\n"
	}
	if d.oneIn(2) {
		s.Faults = append(s.Faults, Fault{At: d.when(d.between(30*time.Second, d.length)), Kind: Overwritten, Target: "container mems"})
	}
	if d.calm {
		return
	}
	add := func(kind, target string, length time.Duration) {
		s.Faults = append(s.Faults, Fault{At: d.when(d.between(10*time.Second, d.length)), Kind: kind, Target: target, Length: Duration(d.between(time.Second, length)), Draw: d.Uint64()})
	}
	if d.oneIn(3) {
		add(OpensFail, pick(d, "every", "every third", ".", "memory.max", "memory.high", "memory.min", "memory.low", "cpuset.mems"), time.Minute)
	}
	if d.oneIn(4) {
		add(OCIFails, "", 40*time.Second)
	}
	if d.oneIn(4) {
		add(NotUpdated, "", 3*time.Minute)
	}
	if d.oneIn(10) {
		s.Faults = append(s.Faults, Fault{At: d.when(0), Kind: PodAPISilent, Length: Duration(d.length)})
	}
}

// unread has another writer come to limits while files cannot be opened.
func (d drawer) unread(s *Scenario) {
	d.Rand = draws(s.Seed, "limits while files cannot be opened")
	for _, f := range s.Faults {
		if f.Kind == OpensFail {
			s.Faults = append(s.Faults, Fault{At: d.when(time.Duration(f.At) + d.between(0, time.Duration(f.Length))), Kind: Overwritten, Target: "container limit"})
		}
	}
}

// mems has another writer give a container that has NUMA nodes of its own all of them.
func (n *simulation) mems(cgroup string) {
	if mems := n.text(cgroup, "cpuset.mems"); mems != "" {
		var all []string
		for i, node := range n.scenario.Machine.Nodes {
			if node.Memory > 0 {
				all = append(all, fmt.Sprint(i))
			}
		}
		_ = n.kernel.Write(cgroup, "cpuset.mems", strings.Join(all, ","))
	}
}
