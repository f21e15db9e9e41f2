package protect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// scope says which files a pass compares and which writes it leaves to others.
type scope struct {
	unread      bool // skip files that are done
	immediate   bool // without backoff, and without waiting for the runtime
	onlyHigh    bool // memory.high, and no other file
	onlyDelayed bool // only files that the kernel reported, or whose repair is delayed
	onlyRaise   bool // of the slow writes only raises of memory.high; the others become late writes
	unbounded   bool // a write may move any amount of memory
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

// pass is one comparison of rows and its results.
type pass struct {
	scope
	rows          []*row
	changes       []change
	ancestorErrs  []error       // errors above the containers
	containerErrs []error       // errors in containers
	missing       uint64        // containers that lack a value that should have been written
	next          time.Duration // until the first delayed repair is due; 0 if none is
	noted, stored uint64        // Protector.notes when the plan was made, and when a wait for the journal's file began that has ended
}

// change is a file that may have to be written.
type change struct {
	*part
	index        int
	unreadable   bool // the file's content is invalid; it is written all the same
	newInJournal bool // the journal has it only because of this change
	ready        bool // the journal has it, and it was found due
	value        uint64
	remade       int  // of the part when the write began
	systemdOnly  bool // the file holds the value, and only systemd must receive it
	late         bool // the write has not returned within the limit
	err          error
}

func (c change) file() *file { return &c.files[c.index] }

func (c change) knob() cgroup.Knob { return knobs[c.index] }

// due reports whether the file must be written.
func (c change) due() bool { return c.file().toWrite() || c.file().toRead() && c.unreadable }

func (c change) lowers() bool { f := c.file(); return f.known() && f.want < f.have }

// restoreText returns the value before this plugin's first write if rollback must restore it; "" otherwise. A kubelet with MemoryQoS writes a
// pod's values only when it creates the cgroup, and it owns a container's memory.oom.group. Above the pods its sums change with every pod,
// so an old sum would be wrong. After the journal was lost, a file that holds the desired value was written by this plugin.
func (c change) restoreText() string {
	kubelets := c.level == cgroup.LevelPod && c.index != mems || c.index == oomGroup
	if f := c.file(); kubelets && f.known() && (c.fresh || f.have != f.want) {
		return c.knob().Format(f.have)
	}
	return ""
}

// order sorts changes: first those that lower, children before parents; then those that raise, parents before children. In
// between each cgroup holds the smaller of its old and new value, so that the sum of children never exceeds their parent's old
// value while it is lowered, nor its new one while they are raised. Slow writes come last.
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

// WriteLimit is how long a pass waits for the kernel to take a value of protection, which takes microseconds unless something is wrong:
// all passes, and with them the runtime's events, write one after the other. After each late value of a pass it is halved, so that
// others wait no longer than twice WriteLimit, and a millisecond for each of mostLate.
const WriteLimit = 500 * time.Millisecond

// limitAfter halves a limit for each file that was late. The last millisecond keeps the order of files that do not hang.
func limitAfter(late int, limit time.Duration) time.Duration { return limit >> min(late, 9) }

// run compares rows, which are chosen under the lock, and writes their files.
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

// compare reads files and finds changes that may have to be written.
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
			added := p.watch(part)
			for i := range part.files {
				if these&(1<<i) != 0 && s.wants(&part.files[i]) {
					p.compareFile(s, change{part: part, index: i}, now)
				} else if added && part.files[i].compared() {
					p.delayed[r] |= 1 << i
				}
			}
		}
		s.missing = min(s.missing, before+1) // however many files
	}
	return s
}

// catchUp takes into a pass what is desired, not written yet and known to differ: the order of writes between a parent and its children holds only
// where one pass has them all. It reads nothing but the few cgroups above the pods, because others wait for the pass.
func (p *Protector) catchUp(s *pass) {
	if len(p.unwritten) == 0 {
		return
	}
	has := map[*file]bool{}
	for _, c := range s.changes {
		has[c.file()] = true
	}
	for len(p.unwritten) > 0 { // there may be more after a read
		rows := slices.Collect(maps.Keys(p.unwritten))
		clear(p.unwritten)
		for _, r := range rows {
			for _, part := range r.parts {
				p.addProtection(s, part, has)
			}
		}
	}
}

func (p *Protector) addProtection(s *pass, part *part, has map[*file]bool) {
	for i := range part.files[:high] {
		c := change{part: part, index: i}
		if has[c.file()] {
			continue
		}
		if part.abovePods() {
			s.add(part, p.readAgain(&c))
		}
		if c.due() {
			s.changes, has[c.file()] = append(s.changes, c), true
		}
	}
}

// wants reports whether the pass compares a file.
func (within scope) wants(f *file) bool { return f.compared() && !(within.unread && f.done()) }

func (p *Protector) compareFile(s *pass, c change, now time.Time) {
	f := c.file()
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

// read reads a file until no event overlaps the read. A missing cgroup is no error.
func (p *Protector) read(c change, now time.Time) (deviation, error) {
	f := c.file()
	value, err, fresh := uint64(0), error(nil), false
	for !fresh {
		before := f.changes
		p.outside(func() { value, err = p.tree.Get(c.dir, c.knob()) })
		fresh = f.changes == before
		if !f.compared() { // it is no longer managed
			return none, nil
		}
	}
	if err != nil {
		seen := f.known()
		f.readFailed()
		if !errors.Is(err, fs.ErrNotExist) {
			return none, err
		}
		c.part.remade++
		if c.watched = false; seen && !c.isInner() {
			p.endIfGone(c.row)
		}
		return none, nil
	}
	found := f.observe(p.rounded(f, c.index, value), c.viaRuntime())
	if found == externalChange {
		f.backoff.add(now)
		if !p.unconfirmed(c.row) { // until then systemd may write an older value of this plugin
			p.countExternalChange(c)
		}
	}
	return found, nil
}

// readAgain reads a file whose content became unknown after the comparison: another pass has written it, or failed to.
func (p *Protector) readAgain(c *change) (err error) {
	if c.file().toRead() && !c.unreadable {
		_, err = p.read(*c, p.now())
		c.unreadable = err != nil
	}
	return err
}

// add adds an error about a cgroup, if there is one.
func (s *pass) add(part *part, err error) {
	switch {
	case err == nil:
	case part.level == cgroup.LevelContainer:
		s.containerErrs = append(s.containerErrs, err)
	default:
		s.ancestorErrs = append(s.ancestorErrs, err)
	}
}

// mostWaits bounds how often a pass waits for the journal's file: others may note something during each wait.
const mostWaits = 3

// writeAll makes the fast writes once the journal's file has them, and returns the slow ones. A journal that cannot be written stops nothing.
func (p *Protector) writeAll(ctx context.Context, s *pass) []change {
	for waited := 1; ; waited++ {
		slow, waits := p.writeFast(ctx, s)
		if !waits {
			return slow
		}
		_ = p.journal.Wait(context.WithoutCancel(ctx)) // which is soon, also if the caller has gone
		if s.stored = s.noted; waited == mostWaits {
			s.stored = math.MaxUint64
		}
	}
}

// writeFast makes the fast writes that are due, unless the pass must wait for the journal's file.
func (p *Protector) writeFast(ctx context.Context, s *pass) (slow []change, waits bool) {
	if !s.onlyHigh {
		if !p.lockWrites(ctx) {
			p.postponeAll(s, ctx.Err())
			return nil, false
		}
		defer func() { <-p.writeSlot }()
	}
	fast, slow, waits := p.plan(s)
	late := 0 // in this pass
	for i := range fast {
		switch c := &fast[i]; {
		case c.systemdOnly:
		case p.late.Load() >= mostLate:
			c.err = fmt.Errorf("write %s of cgroup %s: %d writes of others have not returned", c.knob(), c.dir, mostLate)
		case !p.write(c, limitAfter(late, p.writeLimit)):
			late++
		}
	}
	p.record(s, fast)
	return slow, waits
}

// record records the results of fast writes, except late ones.
func (p *Protector) record(s *pass, fast []change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range fast {
		if !c.late {
			c.file().pendingWrites--
			c.err = p.recordWrite(c, c.value, c.err)
		}
		s.add(c.part, c.err)
	}
}

// lockWrites waits for writeSlot; it returns false if ctx ends first. It takes a free slot even after ctx has ended.
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

// postponeAll leaves the changes to the next pass.
func (p *Protector) postponeAll(s *pass, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range s.changes {
		if p.rows[c.cgroup] == c.row {
			p.toWrite(c.row)
		}
		s.add(c.part, err)
	}
}

func (c change) timeoutError() error {
	return fmt.Errorf("write %s of cgroup %s: the kernel has not taken a value yet", c.knob(), c.dir)
}

// write writes a file of protection and reports whether it has returned within a limit. The result of a late write is recorded when it returns.
func (p *Protector) write(c *change, limit time.Duration) bool {
	returned, late, done := make(chan error), make(chan struct{}), make(chan struct{})
	at := *c // c is the caller's as soon as the write is late
	go func() {
		err := p.tree.Set(at.dir, at.knob(), at.value)
		select {
		case returned <- err:
		case <-late:
			_ = p.recordSlow(at, at.value, err) // it is tried again
			p.postponeIfDue(at)
			p.slow.Delete(done)
			p.late.Add(-1)
			close(done)
		}
	}()
	select {
	case c.err = <-returned:
	case <-time.After(limit):
		c.late, c.err = true, c.timeoutError()
		p.slow.Store(done, nil)
		p.late.Add(1)
		close(late)
	}
	return !c.late
}

// plan adds the changes that are due to the journal and returns them in order, unless they must wait for the journal's file.
func (p *Protector) plan(s *pass) (fast, slow []change, waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range s.changes {
		c := &s.changes[i]
		s.add(c.part, p.readAgain(c))
	}
	var soon map[*row]bool
	if !s.onlyHigh {
		soon = maps.Clone(p.unwritten)
		p.catchUp(s)
	}
	slices.SortFunc(s.changes, order)
	raises := true
	for i := range s.changes {
		c := &s.changes[i]
		if c.ready = c.due() && !p.leftToPod(s, soon, *c); !c.ready {
			continue
		}
		c.newInJournal = p.noteChange(*c) || c.newInJournal
		raises = raises && c.raises() && c.file().owned
	}
	s.noted = p.notes
	// A raise of memory.high waits for no disk where the container has had a value of ours, which the journal knows.
	if p.journal != nil && s.stored < s.noted && !raises { // another pass may have noted what this one writes
		for _, c := range s.changes { // another pass may write before
			if c.index < high && p.rows[c.cgroup] == c.row {
				p.unwritten[c.row] = true
			}
		}
		return nil, nil, true
	}
	for _, c := range s.changes {
		f := c.file()
		switch {
		case !c.ready || !c.due():
		case c.index < high && f.pendingWrites > 0: // it is compared when that write has returned
			s.add(c.part, c.timeoutError())
		case c.index >= high:
			slow = append(slow, c)
		default:
			c.value, c.remade, c.systemdOnly = f.want, c.part.remade, f.known() && f.have == f.want
			fast = append(fast, c)
			f.pendingWrites++
			f.beginWrite()
		}
	}
	return fast, slow, false
}

// leftToPod leaves a container's protection to another pass that is about to read its pod's, and writes both in their order. soon are the rows with
// protection that is desired and not written.
func (p *Protector) leftToPod(s *pass, soon map[*row]bool, c change) bool {
	pod := p.rows[path.Dir(c.cgroup)]
	if c.level != cgroup.LevelContainer || c.index == oomGroup || c.index >= high || c.lowers() || !soon[pod] || slices.Contains(s.rows, pod) {
		return false
	}
	unread := slices.ContainsFunc(pod.parts[0].files[:high], func(f file) bool { return f.compared() && f.toRead() })
	if unread {
		p.toWrite(pod)
		p.toWrite(c.row)
	}
	return unread
}

// recordWrite records the result of a write and queues the value for systemd. It returns nil if the cgroup is gone or only the runtime may
// write. After a failed first write, nothing has to be restored: the file may hold another writer's value.
func (p *Protector) recordWrite(c change, value uint64, err error) error {
	if err == nil && c.remade == c.part.remade {
		if c.file().wrote(value) {
			p.enqueue(c)
		}
		return nil
	}
	c.file().writeFailed()
	if err == nil { // the file may be another one, and is read; where it holds the value, nothing else tells systemd
		if c.file().toRead() && value == c.file().want {
			p.enqueue(c)
		}
		return nil
	}
	if c.newInJournal && !c.file().owned && c.level != cgroup.LevelContainer { // a container's entry may be there because its runtime writes the file
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

// noteChange adds a change to the journal before it is made, and reports whether it is new there. A file that is restored is in it already.
func (p *Protector) noteChange(c change) bool {
	if c.isInner() || c.file().goal == restoring {
		return false
	}
	return p.note(Entry{Cgroup: c.cgroup, Knob: c.knob(), Unit: p.unit(c.row), Restore: c.restoreText()})
}

// finish counts results, and forgets restored files and rows without leftovers.
func (p *Protector) finish(s *pass) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repairs.Containers += s.missing
	p.countFailures(s.containerErrs)
	for _, r := range s.rows {
		p.forgetRestored(r)
		if r.state == released && !p.hasLeftovers(r) && r.state == released { // a new target may name it meanwhile
			p.removeRow(r)
		}
	}
}

// countFailures counts and logs errors in containers, except those of callers whose time was over.
func (p *Protector) countFailures(failed []error) {
	failed = slices.DeleteFunc(slices.Clone(failed), func(err error) bool {
		return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	})
	p.repairs.Failures += uint64(len(failed))
	if err := errors.Join(failed...); p.unwritable.new(err, p.now()) {
		p.log.WithError(err).Warn("containers' cgroup files could not be read or written; trying again")
	}
}

// hasLeftovers reports whether values of this plugin may be left in a cgroup that is no longer a target.
func (p *Protector) hasLeftovers(r *row) bool {
	some := r.innerUnknown || p.unconfirmed(r)
	for _, f := range r.all() {
		some = some || !f.done() || f.pendingWrites > 0
	}
	return some && !p.ended(r.cgroup)
}

// forgetRestored removes restored files from the journal once nothing can overwrite them: systemd has confirmed the values, no older write
// is under way, and it is known whether there is an inner cgroup.
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
