package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
)

// CreateContainer is a container that is about to be created. It is answered with its nodes and values.
type CreateContainer struct {
	Pod       Pod
	Container Container
	Facts
	Header
}

func (e CreateContainer) apply(l *Ledger) {
	out := &l.step.effects
	p := l.podFor(e.Pod, e.Known, e.podLimit(e.Pod))
	if p == nil {
		return
	}
	if out.Err = p.check(e.Container); out.Err != nil {
		return
	}
	if out.Err = l.overtaken(p.named(e.Container.Name), e.Container.ID); out.Err != nil {
		return
	}
	l.seeContainers(e.Siblings)
	l.step.facts = e.Facts
	c, err := l.admit(p, e.Container)
	now := l.deriveRun(c)
	if out.Err = err; err == nil {
		c.Policy = l.memoryPolicy(c, now.request.Request, e.Mems)
		out.Answer = now.adjustment()
		out.Answer.MemoryPolicy = c.Policy.MemoryPolicy
		l.answered(c, &now, out.Answer, e.Container.Resources.Unified, nil)
	}
	out.Decision = c.decision(&now)
	out.Decision.Affinity = l.step.affinity
}

// answered is what follows when an adjustment is sent for a container: asked are the values that the kubelet wants in its
// files, wanted those that it wants from now on.
func (l *Ledger) answered(c *container, now *derivedRun, adjustment Adjustment, asked, wanted map[string]string) {
	if l.state.Resolved.Config.DryRun() {
		return
	}
	l.step.answered = append(l.step.answered, c)
	l.journal(c, adjustment, asked, wanted)
	c.Record.Values, c.Record.Resend = now.values, false
	if c.Phase != Creating { // what is given at creation is in the record
		c.Record.Unsure = c.Record.Unsure.also(adjustment)
	}
	if adjustment.CpusetMems != "" {
		c.Record.OursMems = true
		c.Record.Mems, c.FoundMems = adjustment.CpusetMems, adjustment.CpusetMems
	}
}

// admit takes a new container in: its place and its values. A container of the same name that was there before is
// replaced, whether it has ended or its creation was given up.
func (l *Ledger) admit(p *pod, received Container) (*container, error) {
	c := p.named(received.Name)
	if c == nil {
		c = p.addSlot(received.Name)
		l.annotations(p)
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
	if err != nil && !l.state.Resolved.Config.DryRun() { // which refuses nothing
		l.end(c)
	}
	return c, err
}

// attach begins a run of a container. Nothing of its last one is left, but for the devices of one that is the same to the runtime.
func (l *Ledger) attach(c *container, received Container, phase Phase) {
	devices := received.Devices
	if c.ID == received.ID && len(c.Devices) > 0 {
		devices = c.Devices
	}
	l.returnClaims(c)
	revision := c.Revision + 1
	c.Run = Run{
		ID: received.ID, Phase: phase, Born: l.step.now, Revision: revision, Seq: l.step.seq,
		Resources: received.Resources, Limit: limitOf(received.Resources.MemoryLimit), Devices: devices,
		Record: Record{Mems: received.Resources.Mems}, FoundMems: received.Resources.Mems, Raised: l.state.Raises[received.ID],
	}
	c.Cgroup, _ = c.pod.path.Container(received.CgroupsPath, received.ID)
	if l.state.Resolved.Config.DRA.Enabled {
		if c.TooManyClaims = len(received.Claims) > claims.MostRefs; !c.TooManyClaims {
			c.Claims = received.Claims
		}
	}
	delete(l.state.Raises, received.ID)
	l.containers[received.ID] = c
	c.CPUNodes = l.exclusiveCPUs(c)
}

// limitOf reads a CRI memory limit: what is not positive is none.
func limitOf(limit *int64) uint64 {
	if limit == nil || *limit <= 0 {
		return 0
	}
	return uint64(*limit)
}

// AbandonContainer is a container whose creation failed after it was decided. Its allocation waits for the next try.
type AbandonContainer struct{ ID string }

func (e AbandonContainer) apply(l *Ledger) {
	if c := l.containers[e.ID]; c != nil && c.Phase == Creating {
		l.end(l.changeContainer(e.ID))
	}
}

// end takes a container out of the living ones. Its allocation stays.
func (l *Ledger) end(c *container) {
	if l.containers[c.ID] == c {
		delete(l.containers, c.ID)
	}
	c.Phase, c.Raised, c.Pending = Stopped, 0, nil
	l.returnClaims(c)
}

// forget drops a container that has ended and has no allocation.
func (l *Ledger) forget(c *container) {
	if c.alive() || l.blocks(c) != nil {
		return
	}
	p := c.pod
	p.containers = slices.DeleteFunc(p.containers, func(other *container) bool { return other == c })
	p.Slots = slices.DeleteFunc(p.Slots, func(other *Slot) bool { return other == c.Slot })
}
