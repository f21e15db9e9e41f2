package protect

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Apply makes the targets the desired state, as a whole: a cgroup that was among the last ones and is not among these is put
// back to the kernel's default; a container has ended then. Protection is lowered bottom-up and then raised top-down, so that
// at no moment a parent promises less than its children. A cgroup that is gone is no error.
//
// It does all that it can. It returns when the files hold the values, with what failed above the containers: what fails in
// one is logged, and tried again by Reconcile. A container's memory.high and cpuset.mems, which may take long to write, are
// left to Finish. systemd receives all values afterwards.
func (p *Protector) Apply(ctx context.Context, targets []cgroup.Target) error {
	return errors.Join(p.DesireAll(targets), p.Settle(ctx))
}

// Update is Apply for a part: the targets become desired, the cgroups that are gone are put back, and the rest stays as it
// is. Its cost does not grow with the number of pods. Where it fails, Apply tries everything again.
func (p *Protector) Update(ctx context.Context, targets []cgroup.Target, gone []string) error {
	return errors.Join(p.Desire(targets, gone), p.Settle(ctx))
}

// DesireAll is the part of Apply that writes nothing. The error is of targets that are wrong.
func (p *Protector) DesireAll(targets []cgroup.Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.round++
	err := p.takeAll(targets)
	for _, r := range p.rows {
		if r.round != p.round {
			p.unset(r)
		}
	}
	for _, r := range p.rows {
		p.unsettled[r] = true
	}
	return err
}

// Desire is the part of Update that writes nothing. The error is of targets that are wrong.
func (p *Protector) Desire(targets []cgroup.Target, gone []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range gone {
		if r := p.rows[dir]; r != nil {
			p.unset(r)
		}
	}
	return p.takeAll(targets)
}

// takeAll makes targets the desired state of their cgroups.
func (p *Protector) takeAll(targets []cgroup.Target) error {
	var errs []error
	for _, t := range targets {
		if r, err := p.take(t); err != nil {
			errs = append(errs, err)
		} else {
			p.unsettled[r] = true
		}
	}
	return errors.Join(errs...)
}

// Settle has the files hold what has become desired since the last one.
func (p *Protector) Settle(ctx context.Context) error {
	return errors.Join(p.run(ctx, news, func() []*row {
		rows := slices.Collect(maps.Keys(p.unsettled))
		clear(p.unsettled)
		return rows
	}).above...)
}

// unset has a cgroup that is no target any more hold the kernel's defaults. A container has ended then, and its cgroup is usually
// gone. A runtime that was killed leaves it for a while, or forever, with a process that never ran: what it claims is missing to
// the others of its pod, and its unit claims it again when systemd reloads.
func (p *Protector) unset(r *row) {
	if r.level == cgroup.LevelContainer && p.tree.Ended(r.cgroup) {
		p.drop(r)
		return
	}
	r.on(unnamed)
	p.set(r, memoryqos.Values{}, nil)
	r.compare(false)
	p.unsettled[r] = true
}

// Unclaim is unset for containers that ended while nobody listened: the journal has them, and they are no targets. The caller has
// just applied all targets.
func (p *Protector) Unclaim(ctx context.Context) {
	if p.journal != nil {
		_ = p.run(ctx, news, p.takeUnclaimed) // what fails in a container is logged
	}
}

// takeUnclaimed enters rows for containers that only the journal knows.
func (p *Protector) takeUnclaimed() (rows []*row) {
	for _, e := range p.journal.Entries() { // one for each file
		if p.rows[e.Cgroup] != nil || cgroup.LevelOf(e.Cgroup) != cgroup.LevelContainer || p.tree.Ended(e.Cgroup) {
			continue
		}
		r := p.add(e.Cgroup, cgroup.LevelContainer)
		if e.Unit != "" {
			r.driver = cgroup.Systemd
		}
		p.unset(r)
		rows = append(rows, r)
	}
	return rows
}

// Finish writes what Apply, Update and Reconcile have left of some containers: memory.high and cpuset.mems. Run does so for
// all.
func (p *Protector) Finish(ctx context.Context, dirs ...string) error {
	var errs []error
	for _, dir := range p.takeLate(dirs) { // each as it is when its turn comes
		errs = append(errs, p.Check(ctx, dir))
	}
	return errors.Join(errs...)
}

// FinishAll is Finish for all containers.
func (p *Protector) FinishAll(ctx context.Context) error { return p.Finish(ctx, p.allLate()...) }
