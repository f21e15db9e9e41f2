package protect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// A scope says which files of cgroups a pass compares, and what it leaves.
type scope struct {
	unread      bool // without files that are done
	immediate   bool // without the delays of a series, and without a wait for the runtime
	onlyHigh    bool // memory.high, and no other file
	onlyDelayed bool // only files that the kernel reported, or whose repair is delayed
	onlyRaise   bool // no slow file but a memory.high that goes up: the others are made late
	unbounded   bool // whatever memory a write moves
}

var (
	applying     = scope{unread: true}
	periodic     = scope{}
	repairing    = scope{onlyDelayed: true}
	raising      = scope{immediate: true, onlyHigh: true, onlyRaise: true}
	checkingHigh = scope{immediate: true, onlyHigh: true}
	checking     = scope{immediate: true}
	starting     = scope{immediate: true, unbounded: true}
)

// postpones reports whether a change is left to a late write: see lane.
func (within scope) postpones(c change) bool {
	return c.level == cgroup.LevelContainer && c.index >= high && (!within.immediate || within.onlyRaise && !c.raises())
}

// pass is one look at rows, and what it has found.
type pass struct {
	scope
	rows          []*row
	changes       []change
	ancestorErrs  []error       // what failed above the containers
	containerErrs []error       // what failed in them
	missing       uint64        // containers that do not hold what somebody should have written
	next          time.Duration // until the first repair that waits; 0 where none does
	stored        bool          // the journal's file was waited for, perhaps in vain
}

// change is a file that may have to be written.
type change struct {
	*part
	index int
	// unreadable is set where the file could not be understood, and is written all the same.
	unreadable   bool
	newInJournal bool // the journal has it only because of this change
	ready        bool // the journal has it, and it was found due
}

func (c change) file() *file { return &c.files[c.index] }

func (c change) knob() cgroup.Knob { return knobs[c.index] }

// due reports whether it has to be written.
func (c change) due() bool { return c.file().toWrite() || c.file().toRead() && c.unreadable }

// lowers reports whether the change takes something away.
func (c change) lowers() bool { f := c.file(); return f.known() && f.want < f.have }

// restoreText is what a file held before our first write, where rollback is to restore it: a kubelet with MemoryQoS writes a pod's
// values when it makes the cgroup, and never again. Above the pods its sums move with every pod, and an old one would be
// wrong. A container's memory.oom.group is the kubelet's, too. When the journal was lost, a value of ours is found; it is the one that is
// desired.
func (c change) restoreText() string {
	kubelets := c.level == cgroup.LevelPod && c.index != mems || c.index == oomGroup
	if f := c.file(); kubelets && f.known() && (c.fresh || f.have != f.want) {
		return c.knob().Format(f.have)
	}
	return ""
}

// order sorts changes: first those that lower, children before parents; then those that raise, parents before children. In
// between each cgroup holds the smaller of its old and new value, so that the sum of children never exceeds their parent's old
// value while it is lowered, nor its new one while they are raised. What may take long comes last.
func order(a, b change) int {
	if a.index >= high != (b.index >= high) {
		return cmp.Compare(a.index, b.index)
	}
	down, up := a.lowers(), b.lowers()
	deeper := cmp.Compare(depth(b.dir), depth(a.dir))
	switch {
	case down && !up:
		return -1
	case up && !down:
		return 1
	case !down:
		deeper = -deeper
	}
	return cmp.Or(deeper, cmp.Compare(a.dir, b.dir), cmp.Compare(a.index, b.index))
}

// plan is what is to be written, in order.
type plan struct {
	waits  bool // for the journal's file: nothing of the plan may be written yet
	writes []planned
	slow   []change
}

// planned is a write of a file of protection, and what came of it.
type planned struct {
	change
	value uint64
	put   bool // systemd alone lacks the value otherwise
	late  bool // it has not returned in time
	err   error
}

// WriteLimit is how long a pass waits for the kernel to take a value of protection, which takes microseconds unless something is wrong:
// all passes, and with them the runtime's events, write one after the other.
const WriteLimit = 500 * time.Millisecond

// run looks at rows, which are chosen under the lock, and has their files hold what is desired.
func (p *Protector) run(ctx context.Context, within scope, rows func() []*row) *pass {
	s := p.compare(within, rows)
	if len(s.changes) > 0 {
		for _, c := range p.writeAll(ctx, s) {
			s.add(c.part, p.writeSlowly(ctx, s.scope, c))
		}
	}
	p.finish(s)
	return s
}

// compare reads what there is to read, and finds what may have to be written.
func (p *Protector) compare(within scope, rows func() []*row) *pass {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &pass{scope: within, rows: rows()}
	now, wants := p.now(), within.wants
	for _, r := range s.rows {
		these := allFiles
		switch {
		case within.onlyHigh:
			these = 1 << high
		case within.onlyDelayed:
			these = p.delayed[r]
		}
		if these == allFiles && !within.unread {
			r.compared = now
		}
		if !within.unread {
			p.delayed[r] &^= these
		}
		if p.delayed[r] == 0 {
			delete(p.delayed, r)
		}
		if within.immediate {
			r.runtimeWrote(within.onlyHigh)
		}
		if r.hasNoValues() {
			p.watch(r.parts[0])
		}
		if !r.any(wants) || r.state == released && r.level == cgroup.LevelContainer && p.ended(r.cgroup) {
			continue
		}
		p.findInner(r)
		before := s.missing
		for _, part := range r.parts {
			p.watch(part)
			for i := range part.files {
				if these&(1<<i) != 0 {
					p.compareFile(s, change{part: part, index: i}, now)
				}
			}
		}
		s.missing = min(s.missing, before+1) // however many files
	}
	return s
}

// wants reports whether such a file is looked at.
func (within scope) wants(f *file) bool { return f.compared() && !(within.unread && f.done()) }

// compareFile compares one file.
func (p *Protector) compareFile(s *pass, c change, now time.Time) {
	f := c.file()
	if !s.wants(f) {
		return
	}
	if !s.unread || f.toRead() {
		found, err := p.read(c, now)
		if found != none && c.level == cgroup.LevelContainer {
			s.missing++
		}
		s.add(c.part, err)
		c.unreadable = err != nil
	}
	wait := f.backoff.due.Sub(now)
	switch {
	case !c.due():
	case wait > 0 && !s.unread && !s.immediate && !c.unreadable:
		p.delayed[c.row] |= 1 << c.index
		if s.next == 0 || wait < s.next {
			s.next = wait
		}
	case s.postpones(c):
		p.postpone(c)
	default:
		s.changes = append(s.changes, c)
	}
}

// read reads what a file holds. A cgroup that is not there is no error.
func (p *Protector) read(c change, now time.Time) (deviation, error) {
	f := c.file()
	value, err, fresh := uint64(0), error(nil), false
	for !fresh {
		before := f.changes
		p.outside(func() { value, err = p.tree.Get(c.dir, c.knob()) })
		fresh = f.changes == before
		if !f.compared() { // it is somebody else's by now
			return none, nil
		}
	}
	if err != nil {
		seen := f.known()
		f.readFailed()
		if !errors.Is(err, fs.ErrNotExist) {
			return none, err
		}
		if c.watched = false; seen && !c.isInner() {
			p.endIfGone(c.row)
		}
		return none, nil
	}
	found := f.observe(p.rounded(f, c.index, value), c.viaRuntime())
	if found == externalChange {
		f.backoff.add(now)
		if !p.unconfirmed(c.row) { // until then systemd may write an older value of ours
			p.countExternalChange(c)
		}
	}
	return found, nil
}

// readAgain reads a file whose content is not known any more since it was compared: another pass has written it, or failed to.
func (p *Protector) readAgain(c *change) (err error) {
	if c.file().toRead() && !c.unreadable {
		_, err = p.read(*c, p.now())
		c.unreadable = err != nil
	}
	return err
}

// add adds an error about a cgroup; nil is none.
func (s *pass) add(part *part, err error) {
	switch {
	case err == nil:
	case part.level == cgroup.LevelContainer:
		s.containerErrs = append(s.containerErrs, err)
	default:
		s.ancestorErrs = append(s.ancestorErrs, err)
	}
}

// writeAll writes files of protection, after the journal's file has all that is to be written, and returns the slow ones. A journal that
// cannot be written stops nothing.
func (p *Protector) writeAll(ctx context.Context, s *pass) []change {
	for {
		slow, waits := p.writeFast(ctx, s)
		if !waits {
			return slow
		}
		_ = p.journal.Wait(ctx)
		s.stored = true
	}
}

// writeFast writes the files of protection that are due now, unless something of the pass waits for the journal's file.
func (p *Protector) writeFast(ctx context.Context, s *pass) (slow []change, waits bool) {
	if !s.onlyHigh {
		if !p.lockWrites(ctx) {
			p.postponeAll(s, ctx.Err())
			return nil, false
		}
		defer func() { <-p.writeSlot }()
	}
	todo := p.plan(s)
	for i := range todo.writes {
		if w := &todo.writes[i]; w.put {
			p.write(w)
		}
	}
	p.record(s, todo.writes)
	return todo.slow, todo.waits
}

// lockWrites is false where another pass writes until ctx ends.
func (p *Protector) lockWrites(ctx context.Context) bool {
	select {
	case p.writeSlot <- true:
		return true
	default:
	}
	select {
	case p.writeSlot <- true:
		return true
	case <-ctx.Done():
		return false
	}
}

// postponeAll leaves what is due to the next pass.
func (p *Protector) postponeAll(s *pass, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range s.changes {
		if p.rows[c.cgroup] == c.row {
			p.dirty[c.row] = true
		}
		s.add(c.part, err)
	}
}

// timeoutError is the error of a write that is late.
func (c change) timeoutError() error {
	return fmt.Errorf("write %s of cgroup %s: the kernel has not taken a value within %v", c.knob(), c.dir, WriteLimit)
}

// write makes a write. Where it is late, what comes of it is entered when it returns.
func (p *Protector) write(w *planned) {
	returned, late, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		err := p.tree.Set(w.dir, w.knob(), w.value)
		select {
		case returned <- err:
		case <-late:
			_ = p.recordSlow(w.change, w.value, err) // it is tried again
			p.postponeIfDue(w.change)
			p.slow.Delete(done)
			close(done)
		}
	}()
	select {
	case w.err = <-returned:
	case <-time.After(p.writeLimit):
		w.late, w.err = true, w.timeoutError()
		p.slow.Store(done, nil)
		close(late)
	}
}

// plan finds what is to be written now, and enters it in the journal.
func (p *Protector) plan(s *pass) (todo plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.SortFunc(s.changes, order)
	waits := p.journal != nil && !s.stored
	raises := true
	for i := range s.changes {
		c := &s.changes[i]
		s.add(c.part, p.readAgain(c))
		if !c.due() {
			continue
		}
		if c.ready = true; p.noteChange(*c) {
			c.newInJournal, waits = true, true
		}
		raises = raises && c.raises()
	}
	// A raise of memory.high waits for no disk: the container has had a value of ours, which the journal knows.
	if waits && !raises {
		return plan{waits: true}
	}
	for _, c := range s.changes {
		f := c.file()
		switch {
		case !c.ready || !c.due():
		case c.index < high && f.pendingWrites > 0: // it is looked at when that has returned
			s.add(c.part, c.timeoutError())
		case c.index >= high:
			todo.slow = append(todo.slow, c)
		default:
			todo.writes = append(todo.writes, planned{change: c, value: f.want, put: !f.known() || f.have != f.want})
			f.pendingWrites++
			f.beginWrite()
		}
	}
	return todo
}

// record enters what came of writes, and has systemd receive the values.
func (p *Protector) record(s *pass, writes []planned) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range writes {
		if w.late {
			s.add(w.part, w.err)
			continue
		}
		w.file().pendingWrites--
		s.add(w.part, p.recordWrite(w.change, w.value, w.err))
	}
}

// recordWrite enters what came of a write, and has systemd receive the value. The error is nil where the cgroup is gone or only the runtime
// may write. A file that holds nothing of ours is not restored: another writer's value may be in it.
func (p *Protector) recordWrite(c change, value uint64, err error) error {
	if err == nil {
		if c.file().wrote(value) {
			p.enqueue(c)
		}
		return nil
	}
	c.file().writeFailed()
	if c.newInJournal && c.level != cgroup.LevelContainer { // a container's may be there because its runtime writes it
		p.journal.forget(c.cgroup, c.knob(), false)
	}
	switch {
	case errors.Is(err, cgroupfs.ErrOwn):
		if c.state == desired {
			c.state = runtimeOnly
		}
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// noteChange enters a change in the journal, before it is made, and reports whether it was not there. A value that is put back is.
func (p *Protector) noteChange(c change) bool {
	if c.isInner() || c.file().goal == restoring {
		return false
	}
	return p.note(Entry{Cgroup: c.cgroup, Knob: c.knob(), Unit: p.unit(c.row), Restore: c.restoreText()})
}

// finish counts, and forgets what is restored.
func (p *Protector) finish(s *pass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repairs.Containers += s.missing
	p.countFailures(s.containerErrs)
	for _, r := range s.rows {
		p.forgetRestored(r)
		if r.state == released && !p.hasLeftovers(r) && r.state == released { // it may be named again meanwhile
			p.removeRow(r)
		}
	}
}

// countFailures counts and logs what failed in containers. What has not been done before its caller's time was over is no failure.
func (p *Protector) countFailures(failed []error) {
	failed = slices.DeleteFunc(slices.Clone(failed), func(err error) bool {
		return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	})
	p.repairs.Failures += uint64(len(failed))
	if err := errors.Join(failed...); p.unwritable.new(err, p.now()) {
		p.log.WithError(err).Warn("containers' cgroup files could not be read or written; trying again")
	}
}

// hasLeftovers reports whether something of ours is, or may be, left in a cgroup that is no target any more.
func (p *Protector) hasLeftovers(r *row) bool {
	some := r.innerUnknown || p.unconfirmed(r)
	for _, f := range r.all() {
		some = some || !f.done() || f.pendingWrites > 0
	}
	return some && !p.ended(r.cgroup)
}

// forgetRestored removes the files of a cgroup from the journal that hold the kernel's default again, once nothing can overwrite them:
// systemd has confirmed it, no older write is under way, and all of its cgroups are known.
func (p *Protector) forgetRestored(r *row) {
	for i := range knobs {
		// The stall guard raises a container's memory.high to the default, and the runtime's record keeps the computed one.
		restored, atDefault := true, i != oomGroup && i != mems && !(i == high && r.level == cgroup.LevelContainer)
		for _, part := range r.parts {
			f := &part.files[i]
			atDefault = atDefault && f.want == initial[i]
			restored = restored && f.status == confirmed && (f.goal == restoring || atDefault) && f.pendingWrites == 0
		}
		if !restored || r.innerUnknown || p.unconfirmed(r) {
			continue
		}
		if p.journal != nil {
			p.journal.forget(r.cgroup, knobs[i], atDefault)
		}
		for _, part := range r.parts {
			if f := &part.files[i]; f.goal == restoring {
				f.restored()
			}
		}
	}
}
