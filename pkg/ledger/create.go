package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// CreateContainer is a container that is about to be created. It is answered with its nodes and values.
type CreateContainer struct {
	Pod       Pod
	Container Container
	// PodLimit is the limit that a Guaranteed pod's cgroup was observed to have, without the pod's overhead, in bytes; nil
	// when it was not.
	PodLimit *uint64
	// Known is the newest that the pod APIs know of the pod.
	Known pods.Answer
	// PodDevices are the devices of the pod's other containers, as far as they are known, by name.
	PodDevices map[string][]topologymanager.Device
	// FreePages are what the kernel has free of the huge pages that the container asks for; nil verifies nothing.
	FreePages []memorymanager.FreePages
	// Siblings are those of the pod's other containers that were looked at (Ledger.Siblings).
	Siblings Presence
	// Usage is of the cgroups that an earlier try has asked for (Effects.Again), and Relieved how many containers have been moved for it.
	Usage    map[string]Usage
	Relieved int
	// Mems are the NUMA nodes that the pod's cgroup may use; empty when they were not read.
	Mems nodeset.Set
	Header
}

func (e CreateContainer) apply(l *Ledger) {
	out := &l.step.effects
	p := l.podFor(e.Pod, e.Known, e.PodLimit)
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
	l.step.freePages, l.step.podDevices = e.FreePages, e.PodDevices
	l.step.creating = &e
	c, err := l.admit(p, e.Container)
	l.touch(p)
	if out.Err = err; err == nil {
		c.memoryPolicy, c.policySource, c.noPolicy = l.memoryPolicy(c, e.Mems)
		out.Answer = c.adjustment()
		out.Answer.MemoryPolicy = c.memoryPolicy
		l.answered(c, out.Answer, e.Container.Resources.Unified, nil)
	}
	out.Decision = c.decision()
}

// answered is what follows when an adjustment is sent for a container: asked are the values that the kubelet wants in its
// files, wanted those that it wants from now on.
func (l *Ledger) answered(c *container, adjustment Adjustment, asked, wanted map[string]string) {
	if l.resolved.Config.DryRun {
		return
	}
	l.journal(c, adjustment, asked, wanted)
	c.given, c.again = c.effective(), false
	if c.state != Creating { // what is given at creation is in the record
		c.unsure = c.unsure.also(adjustment)
	}
	if adjustment.CpusetMems != "" {
		c.oursMems = true
		c.givenMems, c.foundMems = adjustment.CpusetMems, adjustment.CpusetMems
	}
}

// admit takes a new container in: its place and its values. A container of the same name that was there before is
// replaced, whether it has ended or its creation was given up.
func (l *Ledger) admit(p *pod, received Container) (*container, error) {
	c := p.named(received.Name)
	if c == nil {
		c = &container{pod: p, name: received.Name}
		p.containers = append(p.containers, c)
		l.annotations(p)
	} else {
		l.end(c)
	}
	l.attach(c, received, Creating)
	c.limitIsPods = c.hasPodLimit()
	l.findShared(p)
	err := l.checkAnnotations(c)
	if err == nil {
		err = l.allocate(c)
	}
	if err != nil && !l.resolved.Config.DryRun { // which refuses nothing
		l.end(c)
	}
	l.sumUp(p)
	return c, err
}

// attach ties a container of the runtime to its state.
func (l *Ledger) attach(c *container, received Container, state State) {
	if c.id != received.ID || len(c.devices) == 0 { // a container keeps its devices
		c.devices = received.Devices
	}
	c.id, c.state, c.born, c.seen, c.seq = received.ID, state, l.step.now, false, l.step.seq
	c.resources = received.Resources
	l.recomputeSharers(c.leaveClaims())
	c.claims, c.tooManyClaims = nil, false
	if l.resolved.Config.DRA.Enabled {
		if c.tooManyClaims = received.MoreClaims || len(received.Claims) > claims.MostRefs; !c.tooManyClaims {
			c.claims = received.Claims
		}
	}
	c.limit = limitOf(received.Resources.MemoryLimit)
	c.earlier, c.limitIsPods, c.there = [4]uint64{}, false, false
	c.cgroup, _ = c.pod.path.Container(received.CgroupsPath, received.ID)
	c.given, c.givenMems, c.foundMems = memoryqos.Values{}, received.Resources.Mems, received.Resources.Mems
	c.before, c.updating, c.unsure, c.again = nil, zeroTime, fileSet{}, false
	c.released, c.ours, c.oursMems = false, false, false
	c.off, c.offBytes, c.offSince = 0, 0, zeroTime
	c.memoryPolicy, c.policySource, c.noPolicy = MemoryPolicy{}, "", ""
	c.raised = l.raises[received.ID]
	delete(l.raises, received.ID)
	c.revision++
	l.containers[received.ID] = c
	l.compute(c)
	l.recomputeSharers(c.joinClaims())
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
	if c := l.containers[e.ID]; c != nil && c.state == Creating {
		l.end(c)
		l.sumUp(c.pod)
	}
}

// end takes a container out of the living ones. Its allocation stays.
func (l *Ledger) end(c *container) {
	if l.containers[c.id] == c {
		delete(l.containers, c.id)
	}
	if c.high() != nil {
		l.highChanged()
	}
	if c.cgroup != "" {
		l.step.effects.Over = append(l.step.effects.Over, c.cgroup)
	}
	if c.target.Cgroup != "" {
		l.step.effects.Ended = append(l.step.effects.Ended, c.target.Cgroup)
	}
	c.state, c.before, c.raised, c.target = Stopped, nil, 0, cgroup.Target{}
	l.recomputeSharers(c.leaveClaims())
	l.touch(c.pod)
}

// forget drops a container that has ended and has no allocation.
func (l *Ledger) forget(c *container) {
	if c.alive() || l.manager != nil && l.manager.Blocks(c.pod.key(), c.name) != nil {
		return
	}
	p := c.pod
	p.containers = slices.DeleteFunc(p.containers, func(other *container) bool { return other == c })
	l.touch(p)
}
