package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
)

// CreateContainer is a container that the runtime is about to create. The answer has its nodes and values.
type CreateContainer struct {
	Pod       Pod
	Container Container
	Facts
	Header
}

func (e CreateContainer) apply(l *Ledger) {
	out := &l.step.effects
	p := l.podFor(e.Pod, e.PodInfo, e.podLimit(e.Pod))
	if p == nil {
		return
	}
	if out.Err = p.check(e.Container); out.Err != nil {
		return
	}
	if out.Err = l.overtaken(p.container(e.Container.Name), e.Container.ID); out.Err != nil {
		return
	}
	l.recordPresence(e.Siblings)
	l.step.facts = e.Facts
	c, err := l.admit(p, e.Container)
	now := l.deriveRun(c)
	if out.Err = err; err == nil {
		c.Policy = l.memoryPolicy(c, now.request.Request, e.Mems)
		out.Answer = now.adjustment()
		out.Answer.MemoryPolicy = c.Policy.MemoryPolicy
		if l.state.Resolved.Config.ExposeAssignedMemset && !e.Container.HasMemset && !c.Nodes.Empty() {
			out.Answer.Memset = now.mems
		}
		c.OOMScore, c.NoOOMScore = l.oomScore(c)
		out.Answer.OOMScore = c.OOMScore
		l.recordAnswer(c, &now, out.Answer, e.Container.Resources.Unified, nil)
	}
	out.Decision = c.decision(&now)
	out.Decision.Affinity = l.step.affinity
}

// recordAnswer updates the record and the journal when an adjustment is sent for a container. asked and wanted are as in journal.
func (l *Ledger) recordAnswer(c *container, now *derivedRun, adjustment Adjustment, asked, wanted map[string]string) {
	if l.state.Resolved.Config.DryRun() {
		return
	}
	l.step.synced = append(l.step.synced, c)
	l.journal(c, adjustment, asked, wanted)
	c.Record.Values, c.Record.Resend = now.values, false
	if c.Phase != Creating { // the values of a creation are in the record
		c.Record.Unsure = c.Record.Unsure.plus(adjustment)
	}
	if adjustment.CpusetMems != "" {
		c.Record.WrittenMems = true
		c.Record.Mems, c.FoundMems = adjustment.CpusetMems, adjustment.CpusetMems
	}
}

// admit places a new container. It replaces a container of the same name that has ended or whose creation was abandoned.
func (l *Ledger) admit(p *pod, received Container) (*container, error) {
	c := p.container(received.Name)
	if c == nil {
		c = p.addSlot(received.Name)
		l.recheckAnnotations(p)
	} else {
		l.end(c)
	}
	l.attach(c, received, Creating)
	c.LimitIsPods = c.hasPodLimit()
	l.findShared(p)
	err := l.checkAnnotations(c)
	if err == nil {
		err = l.place(c)
	}
	if err != nil && !l.state.Resolved.Config.DryRun() { // a dry run refuses nothing
		l.end(c)
	}
	return c, err
}

// attach starts a new Run of a container. Nothing of the last run is kept, except the devices if the runtime's id is the same.
func (l *Ledger) attach(c *container, received Container, phase Phase) {
	devices := received.Devices
	if c.ID == received.ID && len(c.Devices) > 0 {
		devices = c.Devices
	}
	l.releaseClaims(c)
	revision := c.Revision + 1
	c.Run = Run{
		ID: received.ID, Phase: phase, Born: l.step.now, Revision: revision, Seq: l.step.seq,
		Resources: received.Resources, Limit: limitOf(received.Resources.MemoryLimit), Devices: devices,
		OOMScore: received.OOMScore, Record: Record{Mems: received.Resources.Mems}, FoundMems: received.Resources.Mems, Raised: l.state.Raises[received.ID],
	}
	c.Cgroup, _ = c.pod.path.Container(received.CgroupsPath, received.ID)
	if l.state.Resolved.Config.DRA.Enabled {
		if c.TooManyClaims = len(received.Claims) > claims.MaxRefs; !c.TooManyClaims {
			c.Claims = received.Claims
		}
	}
	delete(l.state.Raises, received.ID)
	l.containers[received.ID] = c
	c.CPUNodes = l.exclusiveCPUs(c)
}

// limitOf converts a CRI memory limit; 0 or less is no limit.
func limitOf(limit *int64) uint64 {
	if limit == nil || *limit <= 0 {
		return 0
	}
	return uint64(*limit)
}

// AbandonContainer is a container whose creation failed after it was decided. Its allocation is kept for the next try.
type AbandonContainer struct{ ID string }

func (e AbandonContainer) apply(l *Ledger) {
	if c := l.containers[e.ID]; c != nil && c.Phase == Creating {
		l.end(l.changeContainer(e.ID))
	}
}

// end marks a container as stopped. Its allocation is kept.
func (l *Ledger) end(c *container) {
	if l.containers[c.ID] == c {
		delete(l.containers, c.ID)
	}
	c.Phase, c.Raised, c.Pending = Stopped, 0, nil
	l.releaseClaims(c)
}

// dropSlot removes an ended container that has no allocation.
func (l *Ledger) dropSlot(c *container) {
	if c.alive() || l.blocks(c) != nil {
		return
	}
	p := c.pod
	p.containers = slices.DeleteFunc(p.containers, func(other *container) bool { return other == c })
	p.Slots = slices.DeleteFunc(p.Slots, func(other *Slot) bool { return other == c.Slot })
}
