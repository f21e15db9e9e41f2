package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// UpdateContainer recomputes a container whose resources the kubelet changes. nil means that nothing of ours has to
// change; the error refuses the change.
func (a *Agent) UpdateContainer(ctx context.Context, told Pod, container Container, to Resources) (*Adjustment, error) {
	began := a.now()
	managed, err := a.inquire(ctx, told, container.Name)
	if err != nil || !managed {
		return nil, err
	}
	d := a.decideUpdate(told, container, to)
	if d.err == nil {
		d.err = a.durable(ctx, d.ticket)
	}
	if d.err == nil && !d.dryRun {
		a.note(d.container, d.adjustment, container.Resources.Unified)
		a.noteWanted(d.container, to.Unified)
		a.protect(ctx)
		d.err = ctx.Err()
	}
	if d.err != nil {
		d.err = fmt.Errorf("container %s of pod %s/%s: %w", container.Name, told.Namespace, told.Name, d.err)
	}
	if d.err != nil || !d.adjustment.Empty() || d.moved {
		a.tell("container updated", d, a.now().Sub(began))
	}
	switch {
	case d.dryRun:
		return nil, nil
	case d.err != nil:
		return nil, d.err
	case d.adjustment.Empty():
		return nil, nil
	}
	return &d.adjustment, nil
}

// decideUpdate is the part of an update that happens under the lock.
func (a *Agent) decideUpdate(told Pod, container Container, to Resources) decision {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := decision{dryRun: a.resolved.Config.DryRun}
	p, err := a.podOf(told)
	if err != nil {
		d.err = err
		return d
	}
	c := a.containers[container.ID]
	if c == nil {
		if !container.State.Alive() {
			return d
		}
		c = a.takeIn(p, container)
	}
	old := *c
	c.resources = merged(c.resources, to)
	if limit := to.MemoryLimit; limit != nil && *limit != 0 { // CRI: 0 leaves the limit as it is
		c.limit = limitOf(limit)
	}
	a.compute(c)
	if err := a.rebook(c, to); err != nil {
		raised, refusal := c.raised, c.refusal
		*c = old
		c.raised, c.refusal = raised, refusal
		d.err = err
		if c.refusal == nil || c.refusal.Count == 1 { // the log has the first try
			about := c.facts()
			d.about = &about
		}
		return d
	}
	if !same(old.promised(), c.wanted) {
		before := old.promised()
		c.before = &before
	}
	a.sumUp(p)
	about := c.facts()
	d.about, d.ticket, d.container = &about, p.ticket, c.cgroup
	d.moved = c.nodes != old.nodes || c.limit != old.limit || !slices.Equal(c.short, old.short)
	d.adjustment.Unified = changes(c.given, c.effective(), to.Unified)
	if mems := a.mems(c); mems != "" && (mems != c.givenMems || to.Mems != "" && to.Mems != mems) {
		d.adjustment.CpusetMems = mems
	}
	if d.dryRun {
		d.adjustment = Adjustment{}
		return d
	}
	a.gave(c, d.adjustment)
	if !a.runtime.ReplyUnified && d.adjustment.Unified != nil {
		// The runtime would drop them: PostUpdateContainer writes the files, after the runtime has.
		a.note(c.cgroup, d.adjustment, container.Resources.Unified)
		d.adjustment.Unified = nil
		c.check = true
	}
	return d
}

// rebook brings a container's allocation to its new resources. The error refuses the change.
func (a *Agent) rebook(c *container, to Resources) error {
	if a.manager == nil {
		return nil
	}
	if c.byKubelet {
		if to.Mems == "" && c.limit == 0 {
			return nil
		}
		a.respect(c)
		if a.unpinnable(c) == "" {
			return a.adopt(c, request(c), c.pinning)
		}
		return nil
	}
	if !a.misfits(c) {
		if len(c.short) > 0 { // and no longer is
			c.nodes, c.short = nodesOf(a.manager.Blocks(keyOf(c.pod.Pod), c.name)), nil
		}
		return nil
	}
	if err := a.refusedAgain(c); err != nil {
		return err
	}
	err := a.fit(c, a.resolved.RefusesResize(c.wishes.NUMA))
	if err != nil {
		a.refuse(c, err)
	}
	return err
}

// merged lays a request over what a container has: what it does not name stays.
func merged(have, to Resources) Resources {
	if to.MemoryLimit != nil && *to.MemoryLimit != 0 {
		have.MemoryLimit = to.MemoryLimit
	}
	if to.OOMScoreAdj != nil {
		have.OOMScoreAdj = to.OOMScoreAdj
	}
	if to.CPUs != "" {
		have.CPUs = to.CPUs
	}
	if to.CPUShares != nil && *to.CPUShares != 0 {
		have.CPUShares = to.CPUShares
	}
	if to.Mems != "" {
		have.Mems = to.Mems
	}
	if len(to.Hugepages) > 0 {
		have.Hugepages = to.Hugepages
	}
	if len(to.Unified) > 0 {
		all := maps.Clone(have.Unified)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, to.Unified)
		have.Unified = all
	}
	return have
}

// PostUpdateContainer tells that the runtime has applied an update: what was lowered may now be lowered above too.
func (a *Agent) PostUpdateContainer(ctx context.Context, told Pod, container Container) error {
	a.mu.Lock()
	c := a.containers[container.ID]
	if c == nil {
		a.mu.Unlock()
		return nil
	}
	check := c.check
	a.settle(c)
	a.mu.Unlock()
	a.protect(ctx)
	if !check {
		return nil
	}
	if err := a.checkFiles(ctx, container.ID); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("container %s of pod %s/%s: %w", container.Name, told.Namespace, told.Name, err)
	}
	return nil
}

// settle ends the time in which a lowered container still counts as it was. The lock is held.
func (a *Agent) settle(c *container) {
	if c.before != nil {
		c.before = nil
		a.sumUp(c.pod)
	}
}
