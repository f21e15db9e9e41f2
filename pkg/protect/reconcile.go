package protect

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// containersPerPass is how many containers one Reconcile looks at, so that its cost does not grow with the node.
const containersPerPass = 150

// Reconcile reads what cgroups hold, compares with what is desired and repairs: everything above the containers, and a bounded
// number of containers, the next ones at the next call. What takes long to write is left to Finish. It returns when it wants
// to be called again because a repair waits; 0 is never.
func (p *Protector) Reconcile(ctx context.Context) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := make([]*row, 0, len(p.rows)-len(p.containers)+containersPerPass)
	for dir, r := range p.rows {
		if r.level != cgroup.LevelContainer || p.delayed[dir] {
			rows = append(rows, r)
		}
	}
	for range min(containersPerPass, len(p.containers)) {
		r := p.containers[p.next%len(p.containers)]
		p.next = (p.next + 1) % len(p.containers)
		if !p.delayed[r.cgroup] {
			rows = append(rows, r)
		}
	}
	return p.reconcile(ctx, rows, patrol)
}

// A pass says which files of cgroups a look at them compares, and what it leaves.
type pass struct {
	atOnce    bool // without the delays of a series
	onlyHigh  bool // memory.high, and no other file
	onlyRaise bool // no slow file but a memory.high that goes up: the others are left to Finish
}

var (
	patrol     = pass{}
	onlyRaises = pass{atOnce: true, onlyHigh: true, onlyRaise: true}
	onlyHigh   = pass{atOnce: true, onlyHigh: true}
	everything = pass{atOnce: true}
)

// leaves reports whether a change is left to Finish.
func (w pass) leaves(c change) bool {
	return slow(c.row, c.index) && (!w.atOnce || w.onlyRaise && !c.raises())
}

// Check reads what these cgroups hold, compares with what is desired and repairs at once, whatever other writers did before and
// however long it takes. A cgroup that is not in the table, or not there, is no error.
func (p *Protector) Check(ctx context.Context, dirs ...string) error {
	return p.inspect(ctx, everything, dirs...)
}

// CheckHigh is Check for a container's memory.high alone. One that is raised waits for no other write, and for no disk.
func (p *Protector) CheckHigh(ctx context.Context, dir string) error {
	return p.inspect(ctx, onlyHigh, dir)
}

func (p *Protector) inspect(ctx context.Context, w pass, dirs ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := make([]*row, 0, len(dirs))
	for _, dir := range dirs {
		if r := p.rows[dir]; r != nil {
			rows = append(rows, r)
		}
	}
	_, err := p.reconcile(ctx, rows, w)
	return err
}

// repair looks at a cgroup whose files were written, and at those with a repair that waits, so that the answer is the earliest
// of all.
func (p *Protector) repair(ctx context.Context, dirs ...string) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range dirs {
		p.delayed[dir] = true
	}
	rows := make([]*row, 0, len(p.delayed))
	for dir := range p.delayed {
		if r := p.rows[dir]; r != nil {
			rows = append(rows, r)
		} else {
			delete(p.delayed, dir)
		}
	}
	return p.reconcile(ctx, rows, patrol)
}

// reconcile compares rows and repairs what is due, or everything at once.
func (p *Protector) reconcile(ctx context.Context, rows []*row, w pass) (next time.Duration, err error) {
	var changes []change
	var failed failures
	now := p.now()
	for _, r := range rows {
		if !w.onlyHigh {
			delete(p.delayed, r.cgroup)
		}
		if r.byRuntime && !w.atOnce || !r.wants() {
			continue
		}
		r.byRuntime = r.byRuntime && w.onlyHigh
		for _, part := range p.parts(r) {
			if part == nil {
				continue
			}
			for i := range part.files {
				if w.onlyHigh && i != high {
					continue
				}
				wait, due, err := p.check(part, i, now)
				failed.add(part, err)
				c := change{row: part, index: i, onlyRaise: w.onlyRaise}
				switch {
				case due && w.leaves(c):
					p.postpone(c)
				case due, w.atOnce && wait > 0:
					changes = append(changes, c)
				case wait > 0:
					p.delayed[r.cgroup] = true
					if next == 0 || wait < next {
						next = wait
					}
				}
			}
		}
	}
	p.write(ctx, changes, &failed)
	p.countContainers(rows, failed.inside)
	errs := failed.above
	if w.atOnce {
		errs = append(errs, failed.inside...)
	}
	for _, c := range changes {
		if c.file().settled() {
			c.file().series.open = false
		}
	}
	for _, r := range rows {
		if r.restores() && p.rows[r.cgroup] == r {
			p.forgetRestored(r)
		}
	}
	return next, errors.Join(errs...)
}

// wants reports whether a file has a desired value.
func (r *row) wants() bool {
	for i := range r.files {
		if r.files[i].wanted {
			return true
		}
	}
	return false
}

// restores reports whether a file goes back to the kernel's default.
func (r *row) restores() bool {
	for i := range r.files {
		if r.files[i].restore {
			return true
		}
	}
	return false
}

// check compares one file. It returns whether the file is to be repaired now, or how long the repair waits.
func (p *Protector) check(r *row, index int, now time.Time) (wait time.Duration, due bool, err error) {
	f := &r.files[index]
	if !f.wanted {
		return 0, false, nil
	}
	wrote, seen := f.settled(), f.known // as far as we knew
	switch err := p.look(r, index); {
	case errors.Is(err, fs.ErrNotExist):
		if r.watched = false; seen {
			p.endIfGone(r)
		}
		return 0, false, nil
	case err != nil:
		return 0, true, err // what cannot be understood is written again
	case f.settled():
		f.series.open = false
		return 0, f.untold(), nil
	case wrote:
		f.series.hit(now)
		p.overwritten(change{row: r, index: index})
		r.repaired = r.level == cgroup.LevelContainer
	case !seen:
		r.repaired = r.level == cgroup.LevelContainer
	}
	if wait := f.series.due.Sub(now); f.series.open && wait > 0 {
		return wait, false, nil
	}
	return 0, true, nil
}

// Run reconciles every period and whenever the watcher reports a write, until ctx ends. It leaves writes that have not returned by then
// alone.
func (p *Protector) Run(ctx context.Context, period time.Duration) {
	var changes <-chan cgroupfs.Change
	if p.watcher != nil {
		changes = p.watcher.Changes()
	}
	var finishing sync.WaitGroup
	defer finishing.Wait()
	finishing.Go(func() { p.finishAlways(ctx, &finishing) })
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	delayed := time.NewTimer(time.Hour) // for repairs that wait
	defer delayed.Stop()
	for {
		var next time.Duration
		var err error
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			next, err = p.Reconcile(ctx)
		case <-delayed.C:
			next, err = p.repair(ctx)
		case c, ok := <-changes:
			if !ok {
				changes = nil
				continue
			}
			next, err = p.repair(ctx, c.Cgroup)
		}
		if next > 0 {
			delayed.Reset(next)
		}
		p.complain(err)
	}
}

// Prune forgets what belongs to cgroups that are gone, in the journal and in the watcher, and watches those that came late or were
// recreated.
func (p *Protector) Prune() {
	if p.journal != nil {
		p.journal.Prune(p.tree.Exists)
	}
	if p.watcher == nil {
		return
	}
	p.watcher.Prune()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rows {
		if r.level != cgroup.LevelContainer {
			_ = p.watch(r) // logged when it failed first
		}
	}
}

func (p *Protector) complain(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.complaint.new(err, p.now()) {
		p.log.WithError(err).Warn("memory protection could not be checked or restored everywhere")
	}
}
