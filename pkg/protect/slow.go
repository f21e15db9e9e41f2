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

// A lane has writes of memory.high and cpuset.mems of containers that Run makes. Each container has at most one write in each.
type lane struct {
	scope   scope
	limit   int           // running at a time; 0 is no bound
	late    map[*row]bool // they are to be made
	running map[*row]bool // Run makes it now
}

// The indices of the lanes.
const (
	// raises are writes of a higher memory.high, which gives room and has the kernel reclaim nothing: each is made at once.
	raises = iota
	// others wait for the kernel, which reclaims or moves memory before they return.
	others
)

// slowWrites is how many containers Run has the kernel reclaim or move memory of at a time. Each of them keeps a thread, and may keep a
// CPU.
const slowWrites = 8

func newLane(within scope, limit int) *lane {
	return &lane{scope: within, limit: limit, late: make(map[*row]bool), running: make(map[*row]bool)}
}

// start moves those to running that Run may make now. None is preferred.
func (l *lane) start() (rows []*row) {
	for r := range l.late {
		if l.limit > 0 && len(l.running) == l.limit {
			break
		}
		if !l.running[r] { // otherwise it is looked at again when that is done
			delete(l.late, r)
			l.running[r] = true
			rows = append(rows, r)
		}
	}
	return rows
}

// raises reports whether a change gives a container a higher memory.high than it has or is being given.
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

// postpone makes the write of a slow file a late one.
func (p *Protector) postpone(c change) {
	lane := p.lanes[others]
	if c.raises() {
		lane = p.lanes[raises]
	}
	lane.late[c.row] = true
	signal(p.lateDue)
}

// WriteLate makes all late writes now. Run does so as they come.
func (p *Protector) WriteLate(ctx context.Context) error {
	var errs []error
	for _, dir := range p.takeLate() { // each as it is when its turn comes
		errs = append(errs, p.Check(ctx, dir))
	}
	return errors.Join(errs...)
}

// takeLate returns the containers that have late writes. Its caller makes them now.
func (p *Protector) takeLate() (dirs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		for r := range l.late {
			dirs = append(dirs, r.cgroup)
		}
		clear(l.late)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// startLate starts what may be written now.
func (p *Protector) startLate(ctx context.Context, group *sync.WaitGroup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		for _, r := range l.start() {
			group.Go(func() { p.finishLate(ctx, l, r) })
		}
	}
}

// finishLate makes a container's late writes. What fails is logged.
func (p *Protector) finishLate(ctx context.Context, l *lane, r *row) {
	_ = p.inspect(ctx, l.scope, r.cgroup)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(l.running, r)
	signal(p.lateDue)
}

// writeSlowly has memory.high or cpuset.mems written: before that returns, the kernel may reclaim what is above the value, or move
// pages. A write that has begun when ctx ends is left alone, and what comes of it is entered all the same.
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

// writeUntilEqual has a slow file hold what is desired, whatever becomes desired meanwhile. One such write of a cgroup is made at a time. A raise
// waits for no other: which of two was written last is not known, and both look afterwards.
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
			if err := p.recordSlow(c, next.value, p.tree.Set(c.dir, c.knob(), next.value)); err != nil {
				return err
			}
		default:
			return next.err
		}
	}
	p.postponeIfDue(c)
	return ctx.Err()
}

// step is what hold does next: it writes, waits for its turn, or ends.
type step struct {
	waits, writes bool
	value         uint64
	err           error
}

// nextStep plans one write.
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
	case p.noteChange(c): // the journal has forgotten it meanwhile: a new pass waits for its file
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
			return step{err: err} // what is blocked is decided again by Reconcile
		}
	}
	f.pendingWrites, f.newestWrite, f.newestRaises = f.pendingWrites+1, f.want, raises
	f.beginWrite()
	return step{writes: true, value: f.want}
}

// recordSlow enters what came of a write.
func (p *Protector) recordSlow(c change, value uint64, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.file().pendingWrites--
	return p.recordWrite(c, value, err)
}

// postponeIfDue makes what is still due a late write.
func (p *Protector) postponeIfDue(c change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := c.file(); f.toRead() || f.toWrite() {
		p.postpone(c)
	}
}

// awaitSlow waits until all slow writes that were begun have returned, or ctx ends.
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
