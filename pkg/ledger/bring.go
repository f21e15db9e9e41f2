package ledger

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// Bring asks for the updates of those among the containers that do not have what they should, as it is now.
type Bring struct{ IDs []string }

// apply returns the updates. The cgroups above a container carry what it has until the update is Settled.
func (e Bring) apply(l *Ledger) {
	if l.resolved.Config.DryRun {
		return
	}
	for _, id := range e.IDs {
		c := l.containers[id]
		if c == nil || c.state == Unknown { // its answer is on its way: StartContainer has it checked
			continue
		}
		update, lacks := l.updateOf(c)
		if !lacks {
			continue
		}
		if !same(c.given, c.effective()) {
			before := c.given
			c.before = &before
			l.sumUp(c.pod)
		}
		l.answered(c, update.Adjustment, c.resources.Unified, nil)
		l.step.effects.Updates = append(l.step.effects.Updates, update)
	}
}

// updateOf is what a container lacks.
func (l *Ledger) updateOf(c *container) (Update, bool) {
	update := Update{ContainerID: c.id}
	update.Unified = changes(c.given, c.effective(), nil)
	if mems := l.mems(c); mems != "" && mems != c.givenMems {
		update.CpusetMems = mems
	}
	return update, !update.Empty()
}

// Desired are what a container's files should hold: a value, or the kernel's default where one of ours stood before. It is
// false for a container that has none of ours to look after.
func (l *Ledger) Desired(id string) (protect.ContainerKnobs, bool) {
	c := l.containers[id]
	if c == nil || c.cgroup == "" || c.state == Unknown || l.resolved.Config.DryRun {
		return protect.ContainerKnobs{}, false
	}
	wanted := c.effective()
	restored := func(knob cgroup.Knob, value *uint64, had bool) *uint64 {
		if value == nil && had {
			initial := knob.Default()
			return &initial
		}
		return value
	}
	return protect.ContainerKnobs{
		Cgroup: c.cgroup,
		Driver: c.pod.path.Driver,
		Values: memoryqos.Values{
			Min:  restored(cgroup.MemoryMin, wanted.Min, c.had.min),
			Low:  restored(cgroup.MemoryLow, wanted.Low, c.had.low),
			High: restored(cgroup.MemoryHigh, wanted.High, c.had.high),
		},
		Mems: l.mems(c),
	}, true
}

// mems is the cpuset.mems that the container should have from us: its nodes, or all of the machine's when it had nodes
// from us and must not any more. "" leaves it alone.
func (l *Ledger) mems(c *container) string {
	switch {
	case c.byKubelet:
		return ""
	case !c.nodes.Empty():
		return c.nodes.String()
	case c.released:
		return l.allNodes.String()
	}
	return ""
}
