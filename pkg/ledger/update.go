package ledger

import (
	"cmp"
	"maps"
	"slices"
)

// UpdateContainer is the kubelet's change of a container's resources (in-place resize). The answer has what this plugin changes with it,
// and may be empty.
type UpdateContainer struct {
	Pod       Pod
	Container Container
	To        Resources
	Facts
	Header
}

func (e UpdateContainer) apply(l *Ledger) {
	out := &l.step.effects
	limit := e.podLimit(e.Pod)
	p := l.podFor(e.Pod, e.PodInfo, limit)
	if p == nil {
		return
	}
	c := l.changeContainer(e.Container.ID)
	if c == nil {
		if !e.Container.State.Alive() || p.check(e.Container) != nil {
			return
		}
		if out.Err = l.overtaken(p.container(e.Container.Name), e.Container.ID); out.Err != nil {
			return
		}
		c = l.addMissed(p, e.Container, e.Files)
	} else if out.Err = l.overtaken(c, c.ID); out.Err != nil {
		return
	}
	l.recordPresence(e.Siblings)
	old, asked, before := *c.Slot, request(c), c.promised(l.deriveRun(c).qos)
	next := l.updated(c, e.To, limit)
	if _, changed := p.sharing(next); changed {
		c.Run = next.Run
		l.findShared(p)
		next = c
	}
	decided, err := l.resize(next, asked, e.To)
	run := next.Run
	if err == nil && decided.Refusal != nil && slices.Equal(decided.Refusal.Request, request(next)) {
		decided.Refusal = nil // the same resize is refused no more
	}
	if err != nil {
		run = old.Run
		run.Revision, run.Seq = next.Revision, next.Seq
	}
	c.Run = run
	l.assign(c, decided)
	now := l.deriveRun(c)
	if out.Err = err; err != nil {
		if c.Refusal == nil || c.Refusal.Count == 1 { // only the first try is logged
			out.Decision = c.decision(&now)
		}
		return
	}
	c.Pending = &Pending{Since: l.step.now}
	if !sameValues(before, now.qos) {
		c.Pending.Before = &before
	}
	adjustment := c.Record.answer(&now, e.To)
	moved := c.Nodes != old.Nodes || c.Limit != old.Limit || !slices.Equal(c.PendingResize, old.PendingResize)
	if !adjustment.Empty() || moved {
		out.Decision = c.decision(&now)
	}
	l.recordAnswer(c, &now, adjustment, c.Resources.Unified, e.To.Unified)
	adjustment = l.withinBound(c, adjustment, e.Usage)
	if !l.state.Runtime.ReplyUnified {
		// The runtime would drop them. The agent writes the files after the update.
		adjustment.Unified = nil
	}
	out.Answer = adjustment
}

// updated returns the container as it would be after an update, in its present place.
func (l *Ledger) updated(c *container, to Resources, podLimit *uint64) *container {
	slot := *c.Slot
	next := &container{Slot: &slot, pod: c.pod, grant: c.grant}
	next.Revision++
	next.Seq = l.step.seq
	next.Resources = c.Resources.Updated(to)
	if limit := to.MemoryLimit; limit != nil && *limit != 0 { // in CRI 0 keeps the limit
		next.setLimit(limitOf(limit))
		next.LimitIsPods = podLimit != nil && next.hasPodLimit() // otherwise the pod's may be an old one
	}
	if next.Resources.CPUs != c.Resources.CPUs || to.CPUShares != nil {
		next.CPUNodes = l.exclusiveCPUs(next)
	}
	return next
}

// Updated returns the resources after a request. What the request does not name is kept.
func (have Resources) Updated(to Resources) Resources {
	if to.MemoryLimit != nil && *to.MemoryLimit != 0 {
		have.MemoryLimit = to.MemoryLimit
	}
	if to.CPUShares != nil && *to.CPUShares != 0 {
		have.CPUShares = to.CPUShares
	}
	have.OOMScoreAdj = cmp.Or(to.OOMScoreAdj, have.OOMScoreAdj)
	have.CPUs, have.Mems = cmp.Or(to.CPUs, have.CPUs), cmp.Or(to.Mems, have.Mems)
	have.OOMGroup = cmp.Or(to.OOMGroup, have.OOMGroup)
	if len(to.Hugepages) > 0 {
		have.Hugepages = to.Hugepages
	}
	if len(to.Unified) > 0 {
		all := map[string]string{}
		maps.Copy(all, have.Unified)
		maps.Copy(all, to.Unified)
		have.Unified = all
	}
	return have
}

// FailUpdate is an update that was answered with an error: the files then show the real values. Its Header is the update's.
type FailUpdate struct {
	ID string
	Header
}

func (e FailUpdate) apply(l *Ledger) {
	if c := l.changeContainer(e.ID); c != nil && e.Seq >= c.Seq {
		l.endUpdate(c)
	}
}

// FinishUpdate is an update of the kubelet's that the runtime has applied: from now on the files should hold the desired values. Without an
// ID it finishes all updates whose end the runtime has not reported in time.
type FinishUpdate struct {
	ID string
	Header
}

func (e FinishUpdate) apply(l *Ledger) {
	if e.ID != "" {
		if c := l.changeContainer(e.ID); c != nil && e.Seq >= c.Seq {
			c.Record.Unsure = FileSet{}
			l.endUpdate(c)
		}
		return
	}
	for _, p := range l.living {
		for _, c := range p.containers {
			if c.Pending != nil && l.step.now.Sub(c.Pending.Since) > updateTakes {
				l.change(p)
				l.endUpdate(c)
			}
		}
	}
}

// endUpdate ends an update, applied or failed: either way the runtime may have written its record.
func (l *Ledger) endUpdate(c *container) {
	c.Pending = nil
	l.readLimit(c)
	l.journalRecord(c)
}

// FinishUnsolicited is the end of unsolicited updates that were sent to the runtime, applied or failed.
type FinishUnsolicited struct{ IDs []string }

func (e FinishUnsolicited) apply(l *Ledger) {
	for _, id := range e.IDs {
		if c := l.containers[id]; c != nil {
			l.journalRecord(c)
		}
	}
}
