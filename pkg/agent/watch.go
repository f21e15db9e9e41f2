package agent

import (
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// calmAfterRepair is how long a container's files are left alone after a repair, so that another writer who does not give
// in is not fought at every write.
const calmAfterRepair = 5 * time.Second

// watch asks for news of a container's files that hold values of ours. What cannot be watched is found by the periodic
// check.
func (a *Agent) watch(id string) {
	if a.watcher == nil {
		return
	}
	a.mu.Lock()
	c := a.containers[id]
	if c == nil || c.cgroup == "" || a.resolved.Config.DryRun {
		a.mu.Unlock()
		return
	}
	dir := c.cgroup
	files := make([]string, 0, 2)
	if a.mems(c) != "" {
		files = append(files, string(cgroup.CpusetMems))
	}
	if c.wanted.High != nil {
		files = append(files, string(cgroup.MemoryHigh))
	}
	a.mu.Unlock()
	if len(files) == 0 {
		return
	}
	if err := a.watcher.Watch(dir, files...); err != nil {
		a.log.WithError(err).WithField("cgroup", dir).Debug("writes to a container's files are found by the periodic check only")
	}
}

// written is told of writes to watched files, ours and the runtime's among them.
func (a *Agent) written(change cgroup.Change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.containers {
		if c.cgroup != change.Cgroup {
			continue
		}
		switch rest := calmAfterRepair - a.now().Sub(c.repaired); {
		case !c.alive() || c.held:
		case rest > 0:
			c.held = true
			time.AfterFunc(rest, func() { a.calmed(c) })
		default:
			c.check = true
			a.poke()
		}
		return
	}
}

// calmed looks at what was written in the calm after a repair.
func (a *Agent) calmed(c *container) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.held, c.check = false, c.alive()
	a.poke()
}
