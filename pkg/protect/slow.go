package protect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// A lane is a way for the writes of memory.high and cpuset.mems of containers that Run makes. Each container has at most one write in
// each lane.
type lane int

const (
	// raises are writes of a higher memory.high, which gives room and has the kernel reclaim nothing: each is made at once.
	raises lane = iota
	// others wait for the kernel, which reclaims or moves memory before they return. Beyond slowWrites of them the next ones wait.
	others
	lanes
)

// slowWrites is how many containers Run has the kernel reclaim or move memory of at a time. Each of them keeps a thread, and may keep a
// CPU.
const slowWrites = 8

// lane is the lane for a change as it is now.
func (c change) lane() lane {
	if c.raises() {
		return raises
	}
	return others
}

// raises reports whether a change gives a container a higher memory.high than it has or is being given.
func (c change) raises() bool {
	f := c.file()
	switch {
	case c.index != high || c.level != cgroup.LevelContainer:
		return false
	case f.writes > 0:
		return f.want > f.writing || f.want == f.writing && f.raising
	}
	return f.known && f.want > f.have
}

// finishAlways makes the late writes as they come, until ctx ends.
func (p *Protector) finishAlways(ctx context.Context, group *sync.WaitGroup) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			p.startLate(ctx, group)
		}
	}
}

// startLate starts what may be written now. Of those that wait none is preferred.
func (p *Protector) startLate(ctx context.Context, group *sync.WaitGroup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range lanes {
		for dir := range p.late[l] {
			if p.finishing[l][dir] {
				continue // looked at again when that is done
			}
			if l == others && len(p.finishing[l]) == slowWrites {
				break
			}
			delete(p.late[l], dir)
			p.finishing[l][dir] = true
			group.Go(func() { p.finishLate(ctx, l, dir) })
		}
	}
}

// finishLate makes a container's late writes of a lane. What fails is logged.
func (p *Protector) finishLate(ctx context.Context, l lane, dir string) {
	look := everything
	if l == raises {
		look = onlyRaises
	}
	_ = p.inspect(ctx, look, dir)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.finishing[l], dir)
	poke(p.wake)
}

// underWay is a write that has not returned.
type underWay struct {
	turn chan struct{} // of its container; nil for a raise
	done chan struct{} // closed when it has returned
	err  error
	left bool // its caller has not waited for it
}

// writeSlowly writes memory.high or cpuset.mems without the lock: before it returns, the kernel may reclaim what is above the
// value, or move pages; beyond the bound of that nothing is written. One such write of a container is made at a time. A raise waits for
// no other: which of two was written last is not known, and both look afterwards. A write that has begun when ctx ends is left alone.
func (p *Protector) writeSlowly(ctx context.Context, c change) error {
	f := c.file()
	for !f.settled() {
		if err := ctx.Err(); err != nil {
			return err
		}
		w := &underWay{done: make(chan struct{})}
		if !c.raises() {
			if c.onlyRaise {
				p.postpone(c)
				return nil
			}
			if err := p.takeTurn(ctx, c.turn); err != nil {
				return err
			}
			w.turn = c.turn
			if due, err := p.mayMove(c); !due {
				<-w.turn
				return err
			}
		}
		p.begin(c, w)
		if err := p.await(ctx, w); err != nil {
			return err
		}
		if w.err != nil {
			return p.notWritten(c, w.err)
		}
	}
	return nil
}

// takeTurn waits, without the lock, until no other slow write of the container is under way.
func (p *Protector) takeTurn(ctx context.Context, turn chan struct{}) error {
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mayMove reports whether a file is still to be written, and may be.
func (p *Protector) mayMove(c change) (bool, error) {
	f := c.file()
	for c.index == mems && !f.settled() {
		want := f.want
		may, err := p.mayMigrate(c.container(), c.cgroup, nodeset.Set(want))
		if err != nil {
			return false, p.notWritten(c, err)
		}
		if f.want == want {
			return may, nil // what is withheld is decided again by Reconcile
		}
	}
	return !f.settled(), nil
}

// begin begins a write, and has what came of it entered when it returns.
func (p *Protector) begin(c change, w *underWay) {
	f := c.file()
	want := f.want
	f.writing, f.raising, f.writes = want, w.turn == nil, f.writes+1
	p.writes[w] = true
	go func() {
		w.err = p.put(c.cgroup, c.index, want)
		p.mu.Lock()
		defer p.mu.Unlock()
		f.writes--
		if w.err == nil {
			f.have, f.known = want, true
			if f.want != want {
				w.err = p.look(c.row, c.index)
			}
		}
		if w.turn != nil {
			<-w.turn
		}
		if w.left {
			p.returned(c, w.err)
		}
		delete(p.writes, w)
		close(w.done)
	}()
}

// await waits, without the lock, until a write has returned. The error is that of ctx, and the write is left alone then.
func (p *Protector) await(ctx context.Context, w *underWay) error {
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return p.leave(ctx, w)
	}
}

// leave leaves a write alone that has not returned.
func (p *Protector) leave(ctx context.Context, w *underWay) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.writes[w] {
		return nil
	}
	w.left = true
	return ctx.Err()
}

// returned does what the caller of a write would have done that has left it alone.
func (p *Protector) returned(c change, err error) {
	switch {
	case err != nil:
		_ = p.notWritten(c, err) // Reconcile tries again
	case p.isWritten(c):
		p.systemd.set(c.cgroup, p.unit(c.cgroup, c.driver), map[cgroup.Knob]uint64{knobs[c.index]: c.file().want})
	}
	if !c.file().settled() {
		p.postpone(c)
	}
}

// awaitWrites waits until all writes that were begun have returned, or ctx ends.
func (p *Protector) awaitWrites(ctx context.Context) error {
	p.mu.Lock()
	begun := slices.Collect(maps.Keys(p.writes))
	p.mu.Unlock()
	for _, w := range begun {
		select {
		case <-w.done:
		case <-ctx.Done():
			return fmt.Errorf("a write of a container's memory.high or cpuset.mems has not returned: %w", ctx.Err())
		}
	}
	return nil
}
