package agent

import (
	"context"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// misfits reports whether a container's allocation is not what it asks for. An init container's shrinks as others of its
// pod take its memory over.
func (a *Agent) misfits(c *container) bool {
	if a.manager == nil {
		return false
	}
	blocks, wanted := a.manager.Blocks(keyOf(c.pod.Pod), c.name), a.wanted(c)
	return blocks != nil && wanted.Kind != memorymanager.Init && len(wanted.Request) > 0 && !holds(blocks, wanted.Request)
}

// fit brings a container's allocation to its request, as far as there is room where whole is not set. The error refuses
// the change.
func (a *Agent) fit(c *container, whole bool) error {
	generation := a.manager.Generation()
	placement, err := a.manager.Resize(a.wanted(c), whole)
	if err != nil {
		return err
	}
	a.allocated(c, placement)
	if a.manager.Generation() != generation {
		a.record(c.pod)
	}
	return nil
}

// allocated takes over where a container's memory is.
func (a *Agent) allocated(c *container, placement memorymanager.Placement) {
	c.nodes, c.short, c.refusal = placement.Nodes, placement.Short, nil
	a.anyShort = a.anyShort || len(c.short) > 0
}

// refit fits a running container, which is never refused.
func (a *Agent) refit(c *container) {
	if c.byKubelet {
		_ = a.adopt(c, request(c), c.pinning) // refuses nothing
		return
	}
	log := a.log.WithFields(c.fields())
	if err := a.fit(c, false); err != nil {
		log.WithError(err).Warn("a container cannot be allocated what it was resized to: its old allocation stays")
	} else if len(c.short) > 0 {
		log.WithField("short", c.short.String()).Warn("a container was resized and found no room: it is allocated less than its limit")
	}
}

// fitShort tries again to allocate what containers are short of, once anything was released.
func (a *Agent) fitShort(ctx context.Context) {
	a.mu.Lock()
	changed := a.tryShort()
	if len(changed) == 0 {
		a.mu.Unlock()
		return
	}
	ticket := a.recordState()
	decisions := make([]facts, len(changed))
	for i, c := range changed {
		decisions[i] = c.facts()
	}
	a.mu.Unlock()
	_ = a.durable(ctx, ticket) // they run all the same
	for _, about := range decisions {
		a.log.WithFields(about.fields()).Info("a container that was resized is allocated more of what it asks for")
	}
	a.bring(ctx, changed)
}

// tryShort returns the containers that have more than before. The lock is held.
func (a *Agent) tryShort() (changed []*container) {
	if a.manager == nil || !a.anyShort || a.fitted == a.manager.Generation() {
		return nil
	}
	a.anyShort, a.batch = false, true
	defer func() { a.batch = false }()
	var short []*container
	for _, c := range a.containers {
		if len(c.short) > 0 {
			short = append(short, c)
		}
	}
	for _, c := range inOrder(short) {
		before := c.short
		if err := a.fit(c, false); err == nil && !slices.Equal(before, c.short) {
			changed = append(changed, c)
			a.touch(c.pod)
		}
		a.anyShort = a.anyShort || len(c.short) > 0
	}
	a.fitted = a.manager.Generation()
	return changed
}
