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
	// rowsPerPass is how many pods and containers one Reconcile looks at, so that its cost does not grow with the node; Prune as many cgroups.
	rowsPerPass = 150
	// comparePeriod is the time between two looks at files of which the kernel tells. It tells of no writer that keeps a file open.
	comparePeriod = 30 * time.Minute
)

// Apply has the files hold what has become desired since the last one. Protection is lowered bottom-up and then raised top-down, so
// that at no moment a parent promises less than its children. A cgroup that is gone is no error.
//
// It does all that it can. It returns when the files hold the values, with what failed above the containers: what fails in
// one is logged, and tried again by Reconcile. A container's memory.high and cpuset.mems, which may take long to write, are
// left to Run. systemd receives all values afterwards.
func (p *Protector) Apply(ctx context.Context) error {
	s := p.run(ctx, applying, func() []*row {
		rows := slices.Collect(maps.Keys(p.dirty))
		clear(p.dirty)
		return rows
	})
	return errors.Join(s.ancestorErrs...)
}

// Reconcile reads what cgroups hold, compares with what is desired and repairs, where something failed before or the kernel does not tell of
// writes, and elsewhere each half hour: everything above the pods, and a bounded number of pods and containers, the next ones at the next call.
// What takes long to write is left to Run. It returns when it wants to be called again because a repair waits; 0 is never.
func (p *Protector) Reconcile(ctx context.Context) (time.Duration, error) {
	return p.reconcile(ctx, periodic, p.nextRows)
}

func (p *Protector) reconcile(ctx context.Context, within scope, rows func() []*row) (time.Duration, error) {
	defer progress.Begin("the writer of cgroup files")()
	s := p.run(ctx, within, rows)
	return s.next, errors.Join(s.ancestorErrs...)
}

// nextRows are the rows of the next Reconcile: of the pods and containers those that were not looked at for longest.
func (p *Protector) nextRows() (rows []*row) {
	var many []*row
	for _, r := range p.rows {
		switch _, delayed := p.delayed[r]; {
		case !delayed && r.idle() && p.now().Sub(r.compared) < comparePeriod:
		case !delayed && !r.abovePods():
			many = append(many, r)
		default:
			rows = append(rows, r)
		}
	}
	slices.SortFunc(many, func(a, b *row) int { return a.compared.Compare(b.compared) })
	return append(rows, many[:min(len(many), rowsPerPass)]...)
}

// Check reads what these cgroups hold, compares with what is desired and repairs at once, whatever other writers did before and
// however long it takes. A cgroup that is not in the table, or not there, is no error.
func (p *Protector) Check(ctx context.Context, dirs ...string) error {
	return p.inspect(ctx, checking, dirs...)
}

// CheckHigh is Check for a container's memory.high alone. One that is raised waits for no other write, and for no disk.
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

// repair looks at the files that were written, and at those with a repair that waits, so that the answer is the earliest of all.
func (p *Protector) repair(ctx context.Context, told map[cgroupfs.Change]bool) (time.Duration, error) {
	return p.reconcile(ctx, repairing, func() []*row {
		for c := range told {
			p.markChanged(c)
		}
		return slices.Collect(maps.Keys(p.delayed))
	})
}

// Run reconciles every period, and repairs whenever the watcher tells of a change, until ctx ends. It leaves writes that have not returned by then
// alone.
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

// Prune forgets what the journal has of cgroups that are gone and whose end was missed, of a bounded number of them.
func (p *Protector) Prune() {
	if p.journal != nil {
		p.journal.prune(rowsPerPass, p.tree.Exists)
	}
}

// Repairs count how often the files of a container were found to hold something else than the runtime was to write or had
// written: those that were written instead, and the failures to read or write them.
type Repairs struct{ Containers, Failures uint64 }

// Repairs returns how often containers were repaired.
func (p *Protector) Repairs() Repairs {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.repairs
}

// Unwritable are the containers whose files do not hold what is desired, and can be written by the runtime alone: this
// process is in them.
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

// complaint keeps an error that comes back at every check from filling the log.
type complaint struct {
	text string
	last time.Time
}

// new reports whether an error is worth a line.
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
