package protect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

const (
	// prunedAtOnce bounds the cgroups of one Prune, which nothing waits for.
	prunedAtOnce = 15
	// comparePeriod is the time between two reads of watched files: inotify does not report a writer that keeps a file open.
	comparePeriod = 30 * time.Minute
)

// Apply writes the values that changed since the last Apply. It lowers protection bottom-up and then raises it top-down, so that a parent
// never has less than its children. A cgroup that is gone is no error.
//
// One failure does not stop the rest. Apply returns the errors above the containers; those in containers are logged, and Reconcile retries
// them. A container's memory.high and cpuset.mems may take long to write and are left to Run. systemd receives the values afterwards.
func (p *Protector) Apply(ctx context.Context) error {
	s := p.run(ctx, applying, func() []*row {
		rows := slices.Collect(maps.Keys(p.dirty))
		clear(p.dirty)
		return rows
	})
	return errors.Join(s.ancestorErrs...)
}

// Reconcile compares cgroups with the desired values and repairs them: those above the pods, those that inotify does not watch or that failed
// before, and all others each half hour. Slow writes are left to Run. It returns the time until a delayed repair is due; 0 means that none is.
func (p *Protector) Reconcile(ctx context.Context) (time.Duration, error) {
	return p.reconcile(ctx, periodic, p.nextRows)
}

func (p *Protector) reconcile(ctx context.Context, within scope, rows func() []*row) (time.Duration, error) {
	defer progress.Begin("the writer of cgroup files")()
	s := p.run(ctx, within, rows)
	return s.next, errors.Join(s.ancestorErrs...)
}

// nextRows returns the rows of the next Reconcile.
func (p *Protector) nextRows() (rows []*row) {
	for _, r := range p.rows {
		if _, delayed := p.delayed[r]; delayed || !r.idle() || p.now().Sub(r.compared) >= comparePeriod {
			rows = append(rows, r)
		}
	}
	return rows
}

// Check compares cgroups with the desired values and repairs them at once, without backoff and however long the writes take. A cgroup that
// is not in the table or does not exist is no error.
func (p *Protector) Check(ctx context.Context, dirs ...string) error {
	return p.inspect(ctx, checking, dirs...)
}

// CheckHigh is Check for a container's memory.high alone. A raise waits for no other write and for no disk.
func (p *Protector) CheckHigh(ctx context.Context, dir string) error {
	return p.inspect(ctx, checkingHigh, dir)
}

func (p *Protector) inspect(ctx context.Context, within scope, dirs ...string) error {
	s := p.run(ctx, within, func() (rows []*row) {
		for _, dir := range dirs {
			if r := p.rows[dir]; r != nil {
				rows = append(rows, r)
			}
		}
		return rows
	})
	return errors.Join(append(s.ancestorErrs, s.containerErrs...)...)
}

// repair compares the files that were written and those with a delayed repair. It returns the time until the next repair is due.
func (p *Protector) repair(ctx context.Context, told map[cgroupfs.Change]bool) (time.Duration, error) {
	return p.reconcile(ctx, repairing, func() []*row {
		for c := range told {
			p.markChanged(c)
		}
		return slices.Collect(maps.Keys(p.delayed))
	})
}

// Run reconciles every period and repairs whenever the watcher reports a change, until ctx ends. It does not wait for writes that have not
// returned by then.
func (p *Protector) Run(ctx context.Context, period time.Duration) {
	var changes <-chan map[cgroupfs.Change]bool
	if p.watcher != nil {
		changes = p.watcher.Changes()
	}
	var finishing sync.WaitGroup
	defer finishing.Wait()
	finishing.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-p.lateDue:
				p.startLate(ctx, &finishing)
			}
		}
	})
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	delayed := time.NewTimer(time.Hour) // for delayed repairs
	defer delayed.Stop()
	for {
		var next time.Duration
		var err error
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			next, err = p.Reconcile(ctx)
		case <-p.repairDue:
			next, err = p.repair(ctx, nil)
		case <-delayed.C:
			next, err = p.repair(ctx, nil)
		case told, ok := <-changes:
			if !ok {
				changes = nil
				p.stopWatching()
				continue
			}
			if p.onChange != nil {
				p.onChange(told)
			}
			next, err = p.repair(ctx, told)
		}
		if next > 0 {
			delayed.Reset(next)
		}
		p.complain(err)
	}
}

// Prune removes a bounded number of cgroups from the journal that are gone and whose end was missed.
func (p *Protector) Prune() {
	if p.journal != nil {
		p.journal.prune(prunedAtOnce, p.tree.Exists)
	}
}

// Repairs counts containers whose files did not hold what the runtime should have written and that were repaired, and the failures to read
// or write containers' files.
type Repairs struct{ Containers, Failures uint64 }

// Repairs returns how often containers were repaired.
func (p *Protector) Repairs() Repairs {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.repairs
}

// Unwritable returns the containers whose files do not hold the desired values and that only the runtime can write: this process runs in
// them.
func (p *Protector) Unwritable() (cgroups []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for dir, r := range p.rows {
		if r.level == cgroup.LevelContainer && r.state == runtimeOnly && r.any(func(f *file) bool { return f.toRead() || f.toWrite() }) {
			cgroups = append(cgroups, dir)
		}
	}
	slices.Sort(cgroups)
	return cgroups
}

func (p *Protector) complain(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.complaint.new(err, p.now()) {
		p.log.WithError(err).Warn("memory protection could not be checked or restored everywhere")
	}
}

// complaint limits how often a recurring error is logged.
type complaint struct {
	text string
	last time.Time
}

// new reports whether an error should be logged.
func (c *complaint) new(err error, now time.Time) bool {
	text := ""
	if err != nil {
		text = fmt.Sprint(err)
	}
	if text == c.text && now.Sub(c.last) < lineEvery {
		return false
	}
	c.text, c.last = text, now
	return text != ""
}
