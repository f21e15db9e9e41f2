package ledger

import "github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"

// SyncContainers has the runtime's record of containers follow what it should be, as that is now. Their files do not wait for the
// runtime.
type SyncContainers struct {
	IDs []string
	// Usage is what the kernel shows of their cgroups.
	Usage map[string]Usage
}

func (e SyncContainers) apply(l *Ledger) {
	if l.state.Resolved.Config.DryRun() {
		return
	}
	for _, id := range e.IDs {
		c := l.changeContainer(id)
		if c == nil || c.Phase == Creating { // its answer is on its way
			continue
		}
		now := l.deriveRun(c)
		update, lacks := c.lacks(&now)
		if !lacks {
			continue
		}
		l.answered(c, &now, update.Adjustment, c.Resources.Unified, nil)
		update.Adjustment = l.withinBound(c, update.Adjustment, e.Usage)
		if !update.Empty() {
			l.step.effects.Updates = append(l.step.effects.Updates, update)
		}
	}
}

// withinBound has the runtime write the cpuset.mems that a running container has already, where the desired one would move more memory
// than the configuration allows, or where that is not known. Its own record may be another one, which it would write where none is
// named; every later answer names the nodes again.
func (l *Ledger) withinBound(c *container, a Adjustment, usage map[string]Usage) Adjustment {
	to, err := nodeset.Parse(a.CpusetMems)
	used, measured := usage[c.Cgroup]
	if a.CpusetMems == "" || c.Phase == Creating || c.Cgroup == "" || err != nil || measured && used.allows(to, l.state.Resolved.MostMoved()) {
		return a
	}
	a.CpusetMems = used.Mems
	c.Record.Mems, c.FoundMems = used.Mems, used.Mems
	return a
}

// Resend is a container whose files do not hold what the runtime was asked to write, and nobody else can: the runtime is asked
// again.
type Resend struct{ Cgroup string }

func (e Resend) apply(l *Ledger) {
	if at := l.at(e.Cgroup); at != nil {
		c := l.changeContainer(at.ID)
		now := l.deriveRun(c)
		c.Record.Resend, c.Record.Unsure = true, c.Record.Unsure.also(now.adjustment())
	}
}

// lacks is what the runtime's record of a container lacks, or may lack: with an update it writes all of its record. What may be
// there is no reason for an update.
func (c *container) lacks(now *derivedRun) (Update, bool) {
	update := Update{ContainerID: c.ID}
	known := Record{Values: c.Record.Values, Mems: c.Record.Mems}
	if c.Record.Resend || !known.answer(now, Resources{}).Empty() {
		update.Adjustment = c.Record.answer(now, Resources{})
	}
	return update, !update.Empty()
}

// mems is the cpuset.mems that the container should have from us: its nodes, or all of the machine's when it had nodes from us and must
// not any more. "" leaves it alone.
func (l *Ledger) mems(c *container) string {
	switch {
	case c.ByKubelet:
		return ""
	case !c.Nodes.Empty():
		return c.Nodes.String()
	case c.Released:
		return l.allNodes.String()
	}
	return ""
}
