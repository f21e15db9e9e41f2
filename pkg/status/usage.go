package status

import (
	"strconv"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// readingTime bounds what one document spends on the kernel's files. A container takes about 50 µs.
const readingTime = 250 * time.Millisecond

// freshTime is for how long what was read of a container is shown again, so that many who watch cost no more than one.
const freshTime = time.Second

// Usages reads the kernel's counters of running containers. It reads for a bounded time: containers whose turn does not come
// are shown as they were read before.
type Usages struct {
	tree  *cgroup.Tree
	now   func() time.Time
	fresh time.Duration

	mu   sync.Mutex
	next int // where the last reading stopped, so that every container has its turn
	last map[string]reading
}

// reading is what was read of a container; usage is nil where it had just ended.
type reading struct {
	at    time.Time
	usage *Usage
}

// NewUsages returns a reader of the cgroups in a tree.
func NewUsages(tree *cgroup.Tree) *Usages {
	return &Usages{tree: tree, now: time.Now, fresh: freshTime}
}

// read returns the counters of the view's running containers, by cgroup.
func (u *Usages) read(view *ledger.View) map[string]*Usage {
	u.mu.Lock()
	defer u.mu.Unlock()
	var cgroups []string
	for _, pod := range view.Pods {
		for i := range pod.Containers {
			if c := &pod.Containers[i]; c.State == ledger.Running && c.Cgroup != "" {
				cgroups = append(cgroups, c.Cgroup)
			}
		}
	}
	began, stopped := u.now(), -1
	readings, usages := make(map[string]reading, len(cgroups)), make(map[string]*Usage, len(cgroups))
	for i := range cgroups {
		at := (u.next + i) % len(cgroups)
		r, now := u.last[cgroups[at]], u.now()
		switch {
		case now.Sub(r.at) < u.fresh:
		case now.Sub(began) < readingTime:
			r = reading{now, u.usage(cgroups[at])}
		case stopped < 0:
			stopped = at
		}
		readings[cgroups[at]], usages[cgroups[at]] = r, r.usage
	}
	u.last, u.next = readings, max(stopped, 0) // containers that have ended are forgotten
	return usages
}

// usage reads the kernel's counters; nil for a container that has just ended.
func (u *Usages) usage(path string) *Usage {
	current, err := u.tree.Current(path)
	if err != nil {
		return nil
	}
	usage := &Usage{Current: current}
	if events, err := u.tree.Events(path); err == nil {
		usage.HighEvents = events.High
	}
	if pressure, ok, err := u.tree.Pressure(path); err == nil && ok {
		usage.FullStall = float64(pressure.Full.Total) / 1e6
	}
	if stat, err := u.tree.NUMAStat(path); err == nil && len(stat) > 0 {
		usage.PerNode = map[string]uint64{}
		for _, kind := range []string{"anon", "file"} {
			for node, bytes := range stat[kind] {
				usage.PerNode[strconv.Itoa(node)] += bytes
			}
		}
	}
	return usage
}
