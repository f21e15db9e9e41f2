package ledger

import (
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// misfits reports whether a container's allocation is not what it asks for. An init container's shrinks as others of its
// pod take its memory over.
func (l *Ledger) misfits(c *container) bool {
	if l.manager == nil {
		return false
	}
	blocks, wanted := l.manager.Blocks(c.pod.key(), c.name), l.wanted(c)
	return blocks != nil && wanted.Kind != memoryqos.Init && len(wanted.Request) > 0 && !holds(blocks, wanted.Request)
}

// fit brings a container's allocation to its request, as far as there is room where whole is not set. The error refuses
// the change.
func (l *Ledger) fit(c *container, whole bool) error {
	generation := l.manager.Generation()
	placement, err := l.manager.Resize(l.wanted(c), whole)
	if err != nil {
		return err
	}
	l.allocated(c, placement)
	if !even(placement.Blocks) {
		c.pinning = strings.TrimSuffix(c.pinning, spreadEvenly)
	}
	if l.manager.Generation() != generation {
		l.persist(c.pod)
	}
	return nil
}

// allocated notes where a container's memory is.
func (l *Ledger) allocated(c *container, placement memorymanager.Placement) {
	c.nodes, c.short, c.refusal = placement.Nodes, placement.Short, nil
	l.anyShort = l.anyShort || len(c.short) > 0
}

// refit fits a running container, which is never refused.
func (l *Ledger) refit(c *container) {
	if c.byKubelet {
		_ = l.adopt(c, request(c), c.pinning) // refuses nothing
		return
	}
	if err := l.fit(c, false); err != nil {
		l.note(Warn, "a container cannot be allocated what it was resized to: its old allocation stays", c.fields(), err)
	} else if len(c.short) > 0 {
		l.note(Warn, "a container was resized and found no room: it is allocated less than its limit", c.fields(), nil)
	}
}

// fitShort tries again to allocate what containers are short of, once anything was released.
func (l *Ledger) fitShort() {
	if l.manager == nil || !l.anyShort || l.fitted == l.room() {
		return
	}
	l.anyShort = false
	var short []*container
	for _, c := range l.containers {
		if len(c.short) > 0 {
			short = append(short, c)
		}
	}
	for _, c := range inOrder(short) {
		before := c.short
		if err := l.fit(c, false); err == nil && !slices.Equal(before, c.short) {
			l.touch(c.pod)
			l.persist(c.pod)
			l.bring(c)
			l.note(Info, "a container that was resized is allocated more of what it asks for", c.fields(), nil)
		}
		l.anyShort = l.anyShort || len(c.short) > 0
	}
	l.fitted = l.room()
}
