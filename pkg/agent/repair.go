package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// files are what a container's cgroup should hold: a value, or the kernel's default where one of ours stood before.
func (a *Agent) files(c *container) cgroup.ContainerKnobs {
	wanted := c.effective()
	back := func(value *uint64, had bool, nothing uint64) *uint64 {
		if value == nil && had {
			return &nothing
		}
		return value
	}
	knobs := cgroup.ContainerKnobs{
		Cgroup: c.cgroup,
		Driver: c.pod.path.Driver,
		Values: memoryqos.Values{
			Min:  back(wanted.Min, c.had.min, 0),
			Low:  back(wanted.Low, c.had.low, 0),
			High: back(wanted.High, c.had.high, cgroup.Max),
		},
	}
	knobs.Mems = a.mems(c)
	return knobs
}

// mems is the cpuset.mems that the container should have from us: its nodes, or all of the machine's when it had nodes
// from us and must not any more. "" leaves it alone.
func (a *Agent) mems(c *container) string {
	switch {
	case c.byKubelet:
		return ""
	case !c.nodes.Empty():
		return c.nodes.String()
	case c.released:
		return a.allNodes.String()
	}
	return ""
}

// checkFiles compares a container's files with what they should hold and writes those that differ. A container that has
// no cgroup yet, or no more, is no error.
func (a *Agent) checkFiles(ctx context.Context, id string) error {
	a.mu.Lock()
	c := a.containers[id]
	if c == nil || c.cgroup == "" || a.resolved.Config.DryRun {
		a.mu.Unlock()
		return nil
	}
	knobs := a.files(c)
	c.check = false
	a.mu.Unlock()

	differ, err := a.differing(knobs)
	if err != nil || differ.Mems == "" && differ.Values == (memoryqos.Values{}) {
		return err
	}
	err = a.protector.SetContainer(ctx, differ)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, cgroup.ErrOwn): // it has ended, or only the runtime can
		return nil
	case err != nil:
		a.counters.containerWriteErrors.Add(1)
		return fmt.Errorf("cgroup %s: %w", knobs.Cgroup, err)
	}
	a.counters.containerRepairs.Add(1)
	a.mu.Lock()
	c.repaired = a.now()
	a.mu.Unlock()
	return nil
}

// differing keeps of the knobs those whose files hold something else.
func (a *Agent) differing(knobs cgroup.ContainerKnobs) (cgroup.ContainerKnobs, error) {
	wanted := knobs
	knobs.Values, knobs.Mems = memoryqos.Values{}, ""
	for _, leaf := range a.tree.Leaves(wanted.Cgroup) {
		for _, file := range []struct {
			knob cgroup.Knob
			from *uint64
			to   **uint64
		}{
			{cgroup.MemoryMin, wanted.Values.Min, &knobs.Values.Min},
			{cgroup.MemoryLow, wanted.Values.Low, &knobs.Values.Low},
			{cgroup.MemoryHigh, wanted.Values.High, &knobs.Values.High},
		} {
			if file.from == nil {
				continue
			}
			shows, err := a.tree.Get(leaf, file.knob)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return knobs, err
			}
			if !memoryqos.Holds(shows, *file.from, uint64(a.machine.PageSize)) {
				*file.to = file.from
			}
		}
		if wanted.Mems != "" {
			mems, err := a.tree.Mems(leaf)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return knobs, err
			}
			if err == nil && mems != wanted.Mems {
				knobs.Mems = wanted.Mems
			}
		}
	}
	return knobs, nil
}

// bring gives running containers what they should have after the rules or their requests have changed. The levels above
// are raised first and lowered last.
func (a *Agent) bring(ctx context.Context, containers []*container) {
	updates := a.due(containers)
	a.protect(ctx)
	if len(updates) == 0 {
		return
	}
	a.push(ctx, updates)
	a.mu.Lock()
	for _, update := range updates {
		if c := a.containers[update.ContainerID]; c != nil {
			a.settle(c)
		}
	}
	a.mu.Unlock()
	a.protect(ctx)
}

// due collects the updates of those containers that do not have what they should.
func (a *Agent) due(containers []*container) []Update {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.resolved.Config.DryRun {
		return nil
	}
	var updates []Update
	for _, c := range containers {
		if !c.alive() {
			continue
		}
		if c.state == Unknown { // its answer is still on the way: StartContainer looks again
			c.check = true
			continue
		}
		update, changed := a.updateOf(c)
		if !changed {
			continue
		}
		if !same(c.given, c.effective()) {
			before := c.given
			c.before = &before
			a.sumUp(c.pod)
		}
		a.note(c.cgroup, update.Adjustment, c.resources.Unified)
		updates = append(updates, update)
	}
	return updates
}

// updateOf is what a container lacks. The lock is held.
func (a *Agent) updateOf(c *container) (Update, bool) {
	update := Update{ContainerID: c.id}
	update.Unified = changes(c.given, c.effective(), nil)
	if mems := a.mems(c); mems != "" && mems != c.givenMems {
		update.CpusetMems = mems
	}
	return update, !update.Empty()
}

// push sends updates to the runtime, and writes the cgroup files where it can not take them.
func (a *Agent) push(ctx context.Context, updates []Update) {
	a.mu.Lock()
	apply := a.apply
	a.mu.Unlock()
	if apply != nil {
		err := apply(ctx, updates)
		if err == nil {
			a.pushed(updates)
			return
		}
		a.log.WithError(err).Warn("the runtime did not take updates of running containers: their cgroup files are written instead")
	}
	for _, update := range updates {
		if err := a.checkFiles(ctx, update.ContainerID); err != nil {
			a.log.WithField("containerID", update.ContainerID).WithError(err).Warn("a container's cgroup files could not be written; trying again")
			a.recheck(update.ContainerID)
		}
	}
}

// pushed notes that the runtime has taken updates. It ignores those that fail, so the files are looked at afterwards.
func (a *Agent) pushed(updates []Update) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counters.updates.Add(uint64(len(updates)))
	for _, update := range updates {
		if c := a.containers[update.ContainerID]; c != nil {
			c.check = true
			a.gave(c, update.Adjustment)
		}
	}
	a.poke()
}

// gave notes what a container has been given.
func (a *Agent) gave(c *container, adjustment Adjustment) {
	c.given = c.effective()
	if adjustment.CpusetMems != "" {
		c.givenMems = adjustment.CpusetMems
	}
}

// recheck has Run look at a container's files.
func (a *Agent) recheck(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.containers[id]; c != nil {
		c.check = true
	}
}
