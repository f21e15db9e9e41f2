package protect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
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
	for _, r := range p.rows {
		r.target = false
	}
	err := p.takeAll(targets)
	for _, r := range p.rows {
		if !r.target {
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
			r.target = false
			if p.unset(r); p.rows[dir] == r {
				p.unsettled[r] = true
			}
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
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := slices.Collect(maps.Keys(p.unsettled))
	clear(p.unsettled)
	return errors.Join(p.settle(ctx, rows)...)
}

// unset has a cgroup that is no target any more hold the kernel's defaults. A container has ended then, and its cgroup is usually
// gone. A runtime that was killed leaves it for a while, or forever, with a process that never ran: what it claims is missing to
// the others of its pod, and its unit claims it again when systemd reloads.
func (p *Protector) unset(r *row) {
	if r.level == cgroup.LevelContainer && p.tree.Ended(r.cgroup) {
		p.drop(r)
		return
	}
	r.byRuntime = false
	p.set(r, memoryqos.Values{}, nil)
}

// Unclaim is unset for containers that ended while nobody listened: the journal has them, and they are no targets. The caller has
// just applied all targets.
func (p *Protector) Unclaim(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.journal == nil {
		return
	}
	left := map[string]*row{}
	for _, e := range p.journal.Entries() {
		known := p.rows[e.Cgroup] != nil || left[e.Cgroup] != nil // each of its files has an entry
		if known || cgroup.LevelOf(e.Cgroup) != cgroup.LevelContainer || p.tree.Ended(e.Cgroup) {
			continue
		}
		r := &row{cgroup: e.Cgroup, level: cgroup.LevelContainer}
		if e.Unit != "" {
			r.driver = cgroup.Systemd
		}
		left[e.Cgroup] = r
	}
	for _, r := range left {
		p.add(r)
		p.unset(r)
	}
	_ = p.settle(ctx, slices.Collect(maps.Values(left))) // what fails in a container is logged
}

// settle makes these cgroups hold what is desired, and drops those that are no target any more.
func (p *Protector) settle(ctx context.Context, rows []*row) (above []error) {
	var changes []change
	var failed failures
	for _, r := range rows {
		if p.rows[r.cgroup] != r || r.byRuntime || r.settled() {
			continue
		}
		for _, part := range p.parts(r) {
			if part == nil {
				continue
			}
			for i := range part.files {
				due, err := p.isDue(part, i)
				failed.add(part, err)
				switch {
				case !due:
				case slow(part, i):
					p.postpone(change{row: part, index: i})
				default:
					changes = append(changes, change{row: part, index: i})
				}
			}
		}
	}
	p.write(ctx, changes, &failed)
	p.countContainers(rows, failed.inside)
	for _, r := range rows {
		if p.rows[r.cgroup] != r {
			continue
		}
		p.forgetRestored(r)
		if !r.target && !p.left(r) {
			p.drop(r)
		}
	}
	return failed.above
}

// failures are errors above the containers, and in them.
type failures struct{ above, inside []error }

// add adds an error about a file of a cgroup; nil is none.
func (f *failures) add(r *row, err error) {
	switch {
	case err == nil:
	case r.level == cgroup.LevelContainer:
		f.inside = append(f.inside, err)
	default:
		f.above = append(f.above, err)
	}
}

// settled reports whether there is nothing to do for any file.
func (r *row) settled() bool {
	for i := range r.files {
		if f := &r.files[i]; !f.settled() || f.untold() {
			return false
		}
	}
	return r.inner == nil || r.inner.settled()
}

// isDue reports whether a file is to be written. Where a pod's file is seen for the first time to hold what is desired,
// systemd may not hold it yet, and it is a change all the same; a container's was written by its runtime, through systemd,
// except for what is restored.
func (p *Protector) isDue(r *row, index int) (bool, error) {
	f := &r.files[index]
	if f.settled() {
		return f.untold(), nil
	}
	if f.known {
		return true, nil
	}
	err := p.look(r, index)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if r.level != cgroup.LevelContainer {
		return true, err
	}
	if f.settled() && f.restore {
		return true, nil
	}
	if f.settled() {
		f.ours = !f.isInitial(index)
		return false, nil
	}
	r.repaired = r.repaired || !f.restore
	return true, err
}

// slow reports whether a file may take long to write: the kernel reclaims memory, or moves pages, before the write returns.
func slow(r *row, index int) bool { return r.level == cgroup.LevelContainer && index >= high }

// postpone leaves a slow file of a container to Finish.
func (p *Protector) postpone(c change) {
	p.late[c.lane()][c.container()] = true
	poke(p.wake)
}

// Finish writes what Apply, Update and Reconcile have left of some containers: memory.high and cpuset.mems. Run does so for
// all.
func (p *Protector) Finish(ctx context.Context, dirs ...string) error {
	p.mu.Lock()
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !p.takeLate(dir) })
	p.mu.Unlock()
	var errs []error
	for _, dir := range dirs { // each as it is when its turn comes
		errs = append(errs, p.Check(ctx, dir))
	}
	return errors.Join(errs...)
}

// takeLate reports whether a container has late writes, which its caller makes now.
func (p *Protector) takeLate(dir string) (late bool) {
	for l := range p.late {
		late = late || p.late[l][dir]
		delete(p.late[l], dir)
	}
	return late
}

// FinishAll is Finish for all containers.
func (p *Protector) FinishAll(ctx context.Context) error {
	p.mu.Lock()
	late := maps.Clone(p.late[raises])
	maps.Copy(late, p.late[others])
	p.mu.Unlock()
	return p.Finish(ctx, slices.Sorted(maps.Keys(late))...)
}

// countContainers counts the containers that have been repaired, and logs what failed in others. What has not been done before its
// caller's time was over is no failure.
func (p *Protector) countContainers(rows []*row, failed []error) {
	for _, r := range rows {
		if r.repaired || r.inner != nil && r.inner.repaired {
			p.repairs.Containers++
			r.repaired = false
			if r.inner != nil {
				r.inner.repaired = false
			}
		}
	}
	failed = slices.DeleteFunc(slices.Clone(failed), func(err error) bool {
		return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	})
	p.repairs.Failures += uint64(len(failed))
	if err := errors.Join(failed...); p.unwritable.new(err, p.now()) {
		p.log.WithError(err).Warn("containers' cgroup files could not be read or written; trying again")
	}
}

// left reports whether something of ours is, or may be, left in a cgroup that is no target any more.
func (p *Protector) left(r *row) bool {
	some := p.unconfirmed(r.cgroup)
	for i := range r.files {
		some = some || r.files[i].ours && (r.unclear || !r.files[i].settled() || r.files[i].untold())
	}
	if r.inner != nil {
		some = some || p.left(r.inner)
	}
	return some && !p.tree.Ended(r.cgroup)
}

// change is a file that does not hold what is desired.
type change struct {
	*row
	index int
	noted bool // the journal has it only because of this change, which has written nothing yet
	// onlyRaise has a memory.high that does not go up any more left to Finish again.
	onlyRaise bool
}

func (c change) file() *file { return &c.files[c.index] }

// lowers reports whether the change takes something away.
func (c change) lowers() bool { f := c.file(); return f.known && f.want < f.have }

// before is what a file held before our first write, where rollback is to restore it: a kubelet with MemoryQoS writes a pod's
// values when it makes the cgroup, and never again. Above the pods its sums move with every pod, and an old one would be
// wrong. When the journal was lost, a value of ours is found; it is the one that is desired.
func (c change) before() string {
	if f := c.file(); c.level == cgroup.LevelPod && c.index != mems && f.known && (c.fresh || f.have != f.want) {
		return cgroup.FormatLimit(f.have)
	}
	return ""
}

// look reads what a file holds.
func (p *Protector) look(r *row, index int) error {
	f := &r.files[index]
	v, err := p.read(r.cgroup, index)
	if f.known = err == nil; !f.known {
		return err
	}
	p.found(r)
	p.has(f, index, v)
	return nil
}

func (p *Protector) read(dir string, index int) (uint64, error) {
	if index != mems {
		return p.tree.Get(dir, knobs[index])
	}
	text, err := p.tree.Mems(dir)
	if err != nil {
		return 0, err
	}
	nodes, err := nodeset.Parse(text)
	return uint64(nodes), err
}

func (p *Protector) put(dir string, index int, value uint64) error {
	if index != mems {
		return p.tree.Set(dir, knobs[index], value)
	}
	return p.tree.SetMems(dir, nodeset.Set(value).String())
}

// write makes the changes: first those that lower, children before parents; then those that raise, parents before children.
// In between each cgroup holds the smaller of its old and new value, so that the sum of children never exceeds their parent's
// old value while it is lowered, nor its new one while they are raised. What may take long comes last, and without the lock.
// The journal's file has all of them before the first is written.
func (p *Protector) write(ctx context.Context, changes []change, failed *failures) {
	for i := range changes {
		changes[i].noted = p.noteChange(changes[i])
	}
	changes = p.saveJournal(ctx, changes)
	slices.SortFunc(changes, func(a, b change) int {
		if a.index >= high != (b.index >= high) {
			return cmp.Compare(a.index, b.index)
		}
		down, up := a.lowers(), b.lowers()
		deeper := cmp.Compare(depth(b.cgroup), depth(a.cgroup))
		switch {
		case down != up:
			if down {
				return -1
			}
			return 1
		case !down:
			deeper = -deeper
		}
		return cmp.Or(deeper, cmp.Compare(a.cgroup, b.cgroup), cmp.Compare(a.index, b.index))
	})
	var units []*row
	values := make(map[*row]map[cgroup.Knob]uint64)
	for _, c := range changes {
		var err error
		if c.index < high {
			err = p.writeFile(c)
		} else {
			err = p.writeSlowly(ctx, c)
		}
		failed.add(c.row, err)
		if !p.isWritten(c) {
			continue
		}
		if values[c.row] == nil {
			units, values[c.row] = append(units, c.row), make(map[cgroup.Knob]uint64, 2)
		}
		values[c.row][knobs[c.index]] = c.file().want
	}
	for _, r := range units {
		p.systemd.set(r.cgroup, p.unit(r.cgroup, r.driver), values[r])
	}
}

// saveJournal waits for the journal's file, without the lock, and returns the changes that are to be made after that. A file that
// cannot be written is the journal's trouble, and stops no change. A raise of memory.high waits for no disk: the container has had a
// value of ours, which the journal knows.
func (p *Protector) saveJournal(ctx context.Context, changes []change) []change {
	if p.journal == nil || p.journal.Saved() || !slices.ContainsFunc(changes, func(c change) bool { return !c.raises() }) {
		return changes
	}
	p.mu.Unlock()
	_ = p.journal.Wait(ctx)
	p.mu.Lock()
	return slices.DeleteFunc(slices.Clone(changes), func(c change) bool {
		r := p.rows[c.container()]
		return r == nil || r.byRuntime && c.index < high || r != c.row && r.inner != c.row
	})
}

// isWritten enters that a file holds a value of ours, and reports whether a unit of systemd is to hold it, too.
func (p *Protector) isWritten(c change) bool {
	f := c.file()
	if !f.wanted || !f.settled() {
		return false
	}
	f.ours = !f.isInitial(c.index)
	return !c.isInner && p.unit(c.cgroup, c.driver) != ""
}

// writeFile writes a file that holds protection.
func (p *Protector) writeFile(c change) error {
	f := c.file()
	if !f.settled() {
		if err := p.put(c.cgroup, c.index, f.want); err != nil {
			return p.notWritten(c, err)
		}
		f.have, f.known = f.want, true
	}
	return nil
}

// noteChange enters a change in the journal, before it is made, and reports whether that is to be withdrawn should nothing be
// written. A value that is put back is there already, and a container's file may be there because its runtime writes it.
func (p *Protector) noteChange(c change) bool {
	if c.isInner || c.file().restore || !c.file().wanted {
		return false
	}
	added := p.note(Entry{Cgroup: c.cgroup, Knob: knobs[c.index], Unit: p.unit(c.cgroup, c.driver), Restore: c.before()})
	return added && c.level != cgroup.LevelContainer
}

// notWritten returns the error of a write, nil where the cgroup is gone or only the runtime may write. A file that holds
// nothing of ours is not restored: another writer's value may be in it.
func (p *Protector) notWritten(c change, err error) error {
	c.file().known = false
	if c.noted {
		p.journal.Forget(c.cgroup, knobs[c.index])
	}
	c.refused = c.refused || errors.Is(err, cgroupfs.ErrOwn)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, cgroupfs.ErrOwn) {
		return nil
	}
	return err
}

// forgetRestored removes the files of a cgroup from the journal that hold the kernel's default again, once systemd cannot
// overwrite them any more, and all of its cgroups are known.
func (p *Protector) forgetRestored(r *row) {
	if p.unconfirmed(r.cgroup) || r.unclear {
		return
	}
	for i := range r.files {
		f, inner := &r.files[i], &file{}
		if r.inner != nil {
			inner = &r.inner.files[i]
		}
		if !f.wanted || !f.settled() || !inner.settled() || !f.isInitial(i) || f.untold() || inner.untold() {
			continue
		}
		f.ours, inner.ours = false, false
		p.forget(r.cgroup, knobs[i])
		if f.restore {
			f.wanted, f.restore = false, false
			inner.wanted, inner.restore = false, false
		}
	}
}

// confirmed receives the values that systemd has confirmed. It has written all values of the unit into the files, so that
// they are compared.
func (p *Protector) confirmed(dir string, values map[cgroup.Knob]uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rows[dir]
	if r == nil {
		for knob, v := range values {
			if knob != cgroup.CpusetMems && v == knob.Default() {
				p.forget(dir, knob)
			}
		}
		return
	}
	if p.unconfirmed(dir) {
		return // of newer values
	}
	_, err := p.reconcile(context.Background(), []*row{r}, patrol)
	if p.complaint.new(err, p.now()) {
		p.log.WithError(err).Warn("a cgroup that systemd has written could not be compared")
	}
	if p.rows[dir] != r {
		return
	}
	p.forgetRestored(r)
	if !r.target && !p.left(r) {
		p.drop(r)
	}
}
