package ledger

import "github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"

// SyncContainers updates the runtime's record of containers to the desired values. Their files do not wait for the runtime.
type SyncContainers struct {
	IDs []string
	// Unsent is set if there is no way to the runtime: the journal has the kubelet's values before the files are written.
	Unsent bool `json:",omitempty"`
	// Usage is the memory of their cgroups.
	Usage map[string]Usage
}

func (e SyncContainers) apply(l *Ledger) {
	if l.state.Resolved.Config.DryRun() {
		return
	}
	for _, id := range e.IDs {
		c := l.changeContainer(id)
		if c == nil || c.Phase == Creating { // the answer to its creation is under way
			continue
		}
		now := l.deriveRun(c)
		update, lacks := c.syncUpdate(&now)
		if !lacks {
			continue
		}
		if e.Unsent {
			l.journal(c, update.Adjustment, c.Resources.Unified, nil)
			continue
		}
		l.recordAnswer(c, &now, update.Adjustment, c.Resources.Unified, nil)
		update.Adjustment = l.withinBound(c, update.Adjustment, e.Usage)
		if !update.Empty() {
			l.step.effects.Updates = append(l.step.effects.Updates, update)
		}
	}
}

// withinBound keeps the present cpuset.mems of a running container if the desired one would move more memory than the configuration allows,
// or an unknown amount. It names the present nodes in the update, because the runtime would write its own record otherwise. Every later
// answer tries the desired nodes again.
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

// Resend is a container whose files do not hold what the runtime was asked to write, and that only the runtime can write. The runtime is
// asked again.
type Resend struct{ Cgroup string }

func (e Resend) apply(l *Ledger) {
	if at := l.containerAt(e.Cgroup); at != nil {
		c := l.changeContainer(at.ID)
		now := l.deriveRun(c)
		c.Record.Resend, c.Record.Unsure = true, c.Record.Unsure.plus(now.adjustment())
	}
}

// syncUpdate returns the update that the runtime's record needs, and whether it needs one. Unsure files are no reason for an update, but
// are part of one if Resend is set.
func (c *container) syncUpdate(now *derivedRun) (Update, bool) {
	update := Update{ContainerID: c.ID}
	sure := Record{Values: c.Record.Values, Mems: c.Record.Mems}
	if c.Record.Resend || !sure.answer(now, Resources{}).Empty() {
		update.Adjustment = c.Record.answer(now, Resources{})
	}
	return update, !update.Empty()
}

// mems returns the cpuset.mems to set for the container: its nodes, those to which it is confined, or all nodes if this plugin had set nodes
// and must not any more; "" to set none.
func (l *Ledger) mems(c *container) string {
	switch {
	case c.ByKubelet:
		return ""
	case !c.Nodes.Empty():
		return c.Nodes.String()
	case !c.Confined.Empty():
		return c.Confined.String()
	case c.Released:
		return l.allNodes.String()
	}
	return ""
}
