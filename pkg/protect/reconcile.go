package protect

import (
	"context"
	"errors"
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
	s := p.run(ctx, patrol, p.takeNext)
	return s.next, errors.Join(s.above...)
}

// takeNext are the rows of the next Reconcile.
func (p *Protector) takeNext() []*row {
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
	return rows
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

func (p *Protector) inspect(ctx context.Context, l look, dirs ...string) error {
	s := p.run(ctx, l, func() (rows []*row) {
		for _, dir := range dirs {
			if r := p.rows[dir]; r != nil {
				rows = append(rows, r)
			}
		}
		return rows
	})
	return errors.Join(append(s.above, s.inside...)...)
}

// repair looks at a cgroup whose files were written, and at those with a repair that waits, so that the answer is the earliest
// of all.
func (p *Protector) repair(ctx context.Context, dirs ...string) (time.Duration, error) {
	s := p.run(ctx, patrol, func() []*row { return p.takeDelayed(dirs) })
	return s.next, errors.Join(s.above...)
}

func (p *Protector) takeDelayed(dirs []string) []*row {
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
	return rows
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
