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
	blocks, wanted := l.manager.Blocks(c.pod.key(), c.Name), l.wanted(c)
	return blocks != nil && wanted.Kind != memoryqos.Init && len(wanted.Request) > 0 && !holds(blocks, wanted.Request)
}

// fit brings a container's allocation to its request, as far as there is room where whole is not set. The error refuses
// the change.
func (l *Ledger) fit(c *container, whole bool) error {
	placement, err := l.manager.Resize(l.wanted(c), whole)
	if err != nil {
		return err
	}
	l.allocated(c, placement)
	if !even(placement.Blocks) {
		c.Pinning = strings.TrimSuffix(c.Pinning, spreadEvenly)
	}
	return nil
}

// allocated notes where a container's memory is.
func (l *Ledger) allocated(c *container, placement memorymanager.Placement) {
	c.Nodes, c.Short, c.Refusal = placement.Nodes, placement.Short, nil
	l.state.AnyShort = l.state.AnyShort || len(c.Short) > 0
}

// refit fits a running container, which is never refused.
func (l *Ledger) refit(c *container) {
	if c.ByKubelet {
		_ = l.adopt(c, request(c), c.Pinning) // refuses nothing
		return
	}
	if err := l.fit(c, false); err != nil {
		l.note(Warn, "a container cannot be allocated what it was resized to: its old allocation stays", l.fields(c), err)
	} else if len(c.Short) > 0 {
		l.note(Warn, "a container was resized and found no room: it is allocated less than its limit", l.fields(c), nil)
	}
}

// fitShort tries again to allocate what containers are short of, once anything was released.
func (l *Ledger) fitShort() {
	if l.manager == nil || !l.state.AnyShort || l.state.Fitted == l.room() {
		return
	}
	l.state.AnyShort = false
	var short []*container
	for _, c := range l.containers {
		if len(c.Short) > 0 {
			short = append(short, c)
		}
	}
	for _, c := range inOrder(short) {
		before := c.Short
		l.hasChanged(c.pod)
		if err := l.fit(c, false); err == nil && !slices.Equal(before, c.Short) {
			l.note(Info, "a container that was resized is allocated more of what it asks for", l.fields(c), nil)
		}
		l.state.AnyShort = l.state.AnyShort || len(c.Short) > 0
	}
	l.state.Fitted = l.room()
}
