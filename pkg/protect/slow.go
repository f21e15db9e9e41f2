package protect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// lane holds late writes of containers' memory.high and cpuset.mems, which Run makes. A container has at most one write in each lane.
type lane struct {
	scope   scope
	limit   int           // of concurrent writes; 0 is no limit
	late    map[*row]bool // waiting
	running map[*row]bool // being written
}

// The indices of the lanes.
const (
	// raises are writes of a higher memory.high, for which the kernel reclaims nothing: each is made at once.
	raises = iota
	// others are writes that return after the kernel has reclaimed or moved memory.
	others
)

// slowWrites bounds the concurrent writes of others. Each occupies a thread, and may occupy a CPU.
const slowWrites = 8

func newLane(within scope, limit int) *lane {
	return &lane{scope: within, limit: limit, late: make(map[*row]bool), running: make(map[*row]bool)}
}

// start moves late writes to running within the limit and returns their rows.
func (l *lane) start() (rows []*row) {
	for r := range l.late {
		if l.limit > 0 && len(l.running) == l.limit {
			break
		}
		if !l.running[r] { // otherwise it starts when the running write ends
			delete(l.late, r)
			l.running[r] = true
			rows = append(rows, r)
		}
	}
	return rows
}

// raises reports whether a change raises a container's memory.high above the file's value or that of the newest write.
func (c change) raises() bool {
	f := c.file()
	switch {
	case c.index != high || c.level != cgroup.LevelContainer:
		return false
	case f.pendingWrites > 0:
		return f.want > f.newestWrite || f.want == f.newestWrite && f.newestRaises
	}
	return f.known() && f.want > f.have
}

// postpone makes a slow write a late one.
func (p *Protector) postpone(c change) {
	lane := p.lanes[others]
	if c.raises() {
		lane = p.lanes[raises]
	}
	lane.late[c.row] = true
	signal(p.lateDue)
}

// WriteLate makes all late writes now, for callers without Run: raises first, which wait for no other write.
func (p *Protector) WriteLate(ctx context.Context) error {
	var errs []error
	for _, l := range p.lanes {
		for _, dir := range p.takeLate(l) {
			errs = append(errs, p.inspect(ctx, l.scope, dir))
		}
	}
	return errors.Join(errs...)
}

// takeLate removes a lane's late writes and returns their containers.
func (p *Protector) takeLate(l *lane) (dirs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range l.late {
		dirs = append(dirs, r.cgroup)
	}
	clear(l.late)
	slices.Sort(dirs)
	return dirs
}

// startLate starts late writes within the limits.
func (p *Protector) startLate(ctx context.Context, group *sync.WaitGroup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		for _, r := range l.start() {
			group.Go(func() { p.finishLate(ctx, l, r) })
		}
	}
}

// finishLate makes a container's late writes. Errors are logged.
func (p *Protector) finishLate(ctx context.Context, l *lane, r *row) {
	_ = p.inspect(ctx, l.scope, r.cgroup)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(l.running, r)
	signal(p.lateDue)
}

// writeSlowly writes memory.high or cpuset.mems. The write returns after the kernel has reclaimed memory above the value, or moved pages. If
// ctx ends first, writeSlowly returns, and the write goes on and is recorded.
func (p *Protector) writeSlowly(ctx context.Context, within scope, c change) error {
	var err error
	done := make(chan struct{})
	p.slow.Store(done, nil)
	go func() {
		defer close(done)
		defer p.slow.Delete(done)
		err = p.writeUntilEqual(ctx, within, c)
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeUntilEqual writes a slow file until it holds the desired value, which may change meanwhile. Each cgroup has one such write at a time.
// Only a raise does not wait: because the order of two concurrent writes is unknown, both read the file afterwards.
func (p *Protector) writeUntilEqual(ctx context.Context, within scope, c change) error {
	hasSlot := false
	for ctx.Err() == nil {
		var pages cgroupfs.Counted
		if hasSlot && c.index == mems {
			pages = p.countPages(ctx, c.dir, within.unbounded)
		}
		switch next := p.nextStep(within, c, hasSlot, pages); {
		case next.waits:
			select {
			case c.slowSlot <- true:
				hasSlot = true
				defer func() { <-c.slowSlot }()
			case <-ctx.Done():
			}
		case next.writes:
			c.remade = next.remade
			err := p.tree.Set(c.dir, c.knob(), next.value)
			if recorded := p.recordSlow(c, next.value, err); err != nil {
				return recorded
			}
		default:
			return next.err
		}
	}
	p.postponeIfDue(c)
	return ctx.Err()
}

// step is what writeUntilEqual does next: it writes, waits for the slot, or ends.
type step struct {
	waits, writes bool
	value         uint64
	remade        int // see change
	err           error
}

func (p *Protector) nextStep(within scope, c change, hasSlot bool, pages cgroupfs.Counted) step {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := c.file(), p.readAgain(&c)
	raises := c.raises()
	switch {
	case !c.due():
		return step{err: err}
	case f.known() && f.have == f.want:
		f.wrote(f.want)
		p.enqueue(c)
		return step{}
	case p.noteChange(c): // the journal had forgotten it: a new pass waits for the file
		p.postpone(c)
		return step{}
	case raises:
	case within.onlyRaise:
		p.postpone(c)
		return step{}
	case !hasSlot:
		return step{waits: true}
	case c.index == mems:
		may, err := p.mayMigrate(c.row, pages, nodeset.Set(f.want), within.unbounded)
		if err != nil {
			f.readFailed()
		}
		if !may {
			return step{err: err} // Reconcile decides again about a blocked write
		}
	}
	f.pendingWrites, f.newestWrite, f.newestRaises = f.pendingWrites+1, f.want, raises
	f.beginWrite()
	return step{writes: true, value: f.want, remade: c.part.remade}
}

func (p *Protector) recordSlow(c change, value uint64, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.file().pendingWrites--
	return p.recordWrite(c, value, err)
}

// postponeIfDue makes the write a late one if it is still due.
func (p *Protector) postponeIfDue(c change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := c.file(); f.toRead() || f.toWrite() {
		p.postpone(c)
	}
}

// awaitSlow waits until all slow writes that have begun return, or until ctx ends.
func (p *Protector) awaitSlow(ctx context.Context) (err error) {
	p.slow.Range(func(done, _ any) bool {
		select {
		case <-done.(chan struct{}):
		case <-ctx.Done():
			err = fmt.Errorf("a write of a cgroup's file has not returned: %w", ctx.Err())
		}
		return err == nil
	})
	return err
}
