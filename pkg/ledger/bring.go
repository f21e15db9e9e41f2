package ledger

// Bring asks for the updates of those among the containers of which the runtime's record is not what it should be, as it is
// now. Their files do not wait for the runtime.
type Bring struct{ IDs []string }

func (e Bring) apply(l *Ledger) {
	if l.resolved.Config.DryRun {
		return
	}
	for _, id := range e.IDs {
		c := l.changeContainer(id)
		if c == nil || c.Phase == Creating { // its answer is on its way: StartContainer has it checked
			continue
		}
		now := l.deriveRun(c)
		update, lacks := c.lacks(&now)
		if !lacks {
			continue
		}
		l.answered(c, &now, update.Adjustment, c.Resources.Unified, nil)
		l.step.effects.Updates = append(l.step.effects.Updates, update)
	}
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

// Withheld is a container that the runtime was not asked to give its nodes, because that would move too much memory: it has Mems
// as before. Every later answer of ours names the nodes again.
type Withheld struct{ ID, Mems string }

func (e Withheld) apply(l *Ledger) {
	if c := l.containers[e.ID]; c != nil {
		c.Record.Mems, c.FoundMems = e.Mems, e.Mems
	}
}

// lacks is what the runtime's record of a container lacks, or may lack: with an update it writes all of its record. What may be
// there is no reason for an update.
func (c *container) lacks(now *derivedRun) (Update, bool) {
	update := Update{ContainerID: c.ID}
	others := now.mems != "" && now.mems != c.Record.Mems
	if !c.Record.Resend && !others && changes(c.Record.Values, now.values, nil, FileSet{}) == nil {
		return update, false
	}
	update.Unified = changes(c.Record.Values, now.values, nil, c.Record.Unsure)
	if others || c.Record.Unsure.Mems {
		update.CpusetMems = now.mems
	}
	return update, !update.Empty()
}

// mems is the cpuset.mems that the container should have from us: its nodes, the machine's without those that it is kept off, or all
// of the machine's when it had nodes from us and must not any more. "" leaves it alone.
func (l *Ledger) mems(c *container) string {
	switch {
	case c.ByKubelet:
		return ""
	case !c.Nodes.Empty():
		return c.Nodes.String()
	case !c.Off.Nodes.Empty():
		return l.allNodes.Minus(c.Off.Nodes).String()
	case c.Released:
		return l.allNodes.String()
	}
	return ""
}
