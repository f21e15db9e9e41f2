package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// row is one cgroup of the table.
type row struct {
	cgroup       string
	depth        int // of its path
	level        string
	driver       cgroup.Driver
	fresh        bool // see Target
	state        rowState
	compared     time.Time // when a pass looked at all of its files last
	parts        []*part   // its own cgroup, and the one that crun makes inside a container's, for the same values
	innerUnknown bool      // whether there is one inside could not be read
	slowSlot     chan bool // is full while somebody makes slow writes
	migration    Migration // of a container
}

// part is a cgroup with the values of a row.
type part struct {
	*row
	dir     string
	watched bool // the kernel tells of writes to its files
	files   [len(knobs)]file
}

// isInner reports whether it is the one inside.
func (part *part) isInner() bool { return part != part.parts[0] }

// knobs are the files of a part, in the order of part.files.
var knobs = [...]cgroup.Knob{cgroup.MemoryOOMGroup, cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, cgroup.CpusetMems}

// The indices of memory.oom.group, and of the files that take long to write; those in between hold protection.
const (
	oomGroup = 0
	high     = 3
	mems     = 4
)

// files are files of a row, a bit for each index.
type files uint8

const allFiles = files(1<<len(knobs) - 1)

// initial is what a new cgroup has in the files. cpuset.mems has no such value that would be right to write.
var initial = [...]uint64{
	cgroup.MemoryOOMGroup.Default(), cgroup.MemoryMin.Default(), cgroup.MemoryLow.Default(), cgroup.MemoryHigh.Default(),
}

// knobValues are values in the order of knobs; nil is none.
type knobValues [len(knobs)]*uint64

func valuesOf(v memoryqos.Values, nodes *string) (knobValues, error) {
	all := knobValues{v.OOMGroup, v.Min, v.Low, v.High}
	if nodes == nil {
		return all, nil
	}
	bits, err := cgroup.CpusetMems.Parse([]byte(*nodes))
	if err == nil {
		all[mems] = &bits
	}
	return all, err
}

// A rowState is what a cgroup is to us.
type rowState uint8

const (
	desired     rowState = iota // a target names it
	runtimeOnly                 // one does, and the kernel lets the runtime alone write: see cgroupfs.ErrOwn
	released                    // no target names it any more, and something of ours may be left
	removed                     // it is not in the table any more
)

// viaRuntime reports whether systemd holds what a file was read to hold: a container's was written by its runtime, through systemd.
func (r *row) viaRuntime() bool { return r.level == cgroup.LevelContainer }

// all goes through the files of a row.
func (r *row) all() iter.Seq2[int, *file] {
	return func(yield func(int, *file) bool) {
		for _, part := range r.parts {
			for i := range part.files {
				if !yield(i, &part.files[i]) {
					return
				}
			}
		}
	}
}

// any reports whether a file is such.
func (r *row) any(is func(*file) bool) bool {
	for _, f := range r.all() {
		if is(f) {
			return true
		}
	}
	return false
}

// idle reports whether nothing of it has to be looked at before the kernel tells of it. Nobody tells that kubepods is made again, which is
// looked at like all cgroups above the pods.
func (r *row) idle() bool {
	if r.abovePods() {
		return false
	}
	for _, part := range r.parts {
		if !part.watched && (r.hasNoValues() || r.any((*file).compared)) {
			return false
		}
	}
	return r.state == desired && !r.innerUnknown && !r.any(func(f *file) bool { return f.compared() && !f.done() })
}

// hasNoValues reports whether it is a pod without values. Its controllers have those of its containers.
func (r *row) hasNoValues() bool {
	return r.state == desired && r.level == cgroup.LevelPod && !r.any((*file).compared)
}

func (r *row) abovePods() bool { return r.level != cgroup.LevelPod && r.level != cgroup.LevelContainer }

// DesireAll makes the targets the desired state, as a whole: a cgroup that was among the last ones and is not among these goes back
// to the kernel's default. The error is of targets that are wrong. Apply has the files hold the values.
func (p *Protector) DesireAll(targets []cgroup.Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	named := make(map[string]bool, len(targets))
	for _, t := range targets {
		named[t.Cgroup] = true
	}
	for dir, r := range p.rows {
		if !named[dir] {
			p.release(r)
		}
	}
	return p.setTargets(targets)
}

// Desire is DesireAll for a part: the targets become desired, the cgroups that are gone go back, and the rest stays as it is. Its cost
// does not grow with the number of pods.
func (p *Protector) Desire(targets []cgroup.Target, gone []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range gone {
		if r := p.rows[dir]; r != nil {
			p.release(r)
		}
	}
	return p.setTargets(targets)
}

// Journaled is what the journal says is ours, of cgroups that are there, and for cpuset.mems the NUMA nodes of the cgroup above.
type Journaled struct {
	entries []Entry
	nodes   map[string]uint64
}

// Journaled looks at cgroups, and waits for them.
func (p *Protector) Journaled() Journaled {
	w := Journaled{nodes: map[string]uint64{}}
	if p.journal == nil {
		return w
	}
	for _, e := range p.journal.Entries() {
		if p.tree.Ended(e.Cgroup) {
			continue
		}
		w.entries = append(w.entries, e)
		if e.Knob != cgroup.CpusetMems {
			continue
		}
		if text, err := p.tree.EffectiveMems(path.Dir(e.Cgroup)); err == nil {
			w.nodes[e.Cgroup], _ = cgroup.CpusetMems.Parse([]byte(text)) // what is none is left alone
		}
	}
	return w
}

// RestoreAll has nothing desired any more, as in a dry run, which keeps nothing right: what was written goes back to what was there before, as
// after Rollback, and all else is left alone. Apply and WriteLate write it; until it is written it stays in the journal, and with that for
// the next RestoreAll.
func (p *Protector) RestoreAll(w Journaled) {
	if p.journal == nil { // what was there before is not known
		_ = p.DesireAll(nil) // has no target that could be wrong
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range w.entries {
		if p.rows[e.Cgroup] == nil {
			p.addEntry(e, cgroup.LevelOf(e.Cgroup))
		}
	}
	for dir, r := range p.rows {
		r.state = released
		for i, f := range r.all() {
			if i == mems && w.nodes[dir] == 0 {
				f.ignore()
			} else {
				p.restoreFile(r, f, i, w.nodes[dir])
			}
		}
		r.runtimeWrote(false)
		p.dirty[r] = true
	}
}

func (p *Protector) setTargets(targets []cgroup.Target) error {
	var errs []error
	for _, t := range targets {
		errs = append(errs, p.setTarget(t))
	}
	return errors.Join(errs...)
}

// setTarget makes a target the desired state of its cgroup.
func (p *Protector) setTarget(t cgroup.Target) error {
	var nodes *string
	if t.Mems != "" {
		nodes = &t.Mems
	}
	want, err := valuesOf(t.Values, nodes)
	if err != nil {
		return fmt.Errorf("cgroup %s: cpuset.mems: %w", t.Cgroup, err)
	}
	if t.Level == cgroup.LevelContainer {
		p.keepPod(path.Dir(t.Cgroup))
	}
	r := p.rows[t.Cgroup]
	if r == nil {
		r = p.addRow(t.Cgroup, t.Level)
	} else {
		t.Seen = nil // the table has seen more since
	}
	r.level, r.driver, r.fresh = t.Level, t.Driver, t.Fresh
	if r.state == released {
		r.state = desired
	}
	p.setValues(r, want)
	p.dirty[r] = true
	if t.ByRuntime {
		p.awaitRuntime(r)
		return nil
	}
	r.runtimeWrote(false)
	if t.Seen != nil {
		p.observe(r, *t.Seen)
		if p.watcher != nil { // which did not tell of it yet
			p.delayed[r] = allFiles
			signal(p.repairDue)
		}
	}
	return nil
}

// keepPod has a row for a pod until that ends, also without values: see hasNoValues. One that was about to end is back.
func (p *Protector) keepPod(pod string) {
	switch r := p.rows[pod]; {
	case r == nil:
		p.addRow(pod, cgroup.LevelPod)
	case r.state == released:
		r.state = desired
		p.dirty[r] = true
	}
}

// observe enters what a container's files were read to hold.
func (p *Protector) observe(r *row, seen cgroup.Seen) {
	values, _ := valuesOf(seen.Values, seen.Mems) // what is no list of nodes is read again
	for i, value := range values {
		f := &r.parts[0].files[i]
		if value != nil && f.compared() && f.goal != restoring { // systemd may not hold what goes back
			f.observe(p.rounded(f, i, *value), r.viaRuntime())
		}
	}
}

// rounded is a value that was read. The kernel rounds bytes down to a page.
func (p *Protector) rounded(f *file, index int, value uint64) uint64 {
	if index != mems && index != oomGroup && memoryqos.Holds(value, f.want, p.page) {
		return f.want
	}
	return value
}

// release has a cgroup that is no target any more hold the kernel's defaults. A container has ended then, and its cgroup is usually
// gone, which the next pass finds. A runtime that was killed leaves it for a while, or forever, with a process that never ran: what it
// claims is missing to the others of its pod, and its unit claims it again when systemd reloads.
func (p *Protector) release(r *row) {
	r.state = released
	p.setValues(r, knobValues{})
	r.runtimeWrote(false)
	p.dirty[r] = true
}

// RestoreEnded has cgroups hold the kernel's defaults whose containers ended while nobody listened: the journal has them, and they are no
// targets. On a node whose last pod ended these are kubepods and its QoS classes, too. The caller has just applied all targets.
func (p *Protector) RestoreEnded(ctx context.Context) {
	if p.journal != nil {
		_ = p.run(ctx, applying, p.endedRows) // what fails is tried again by Reconcile, which reports it
	}
}

// endedRows enters rows for cgroups that only the journal knows.
func (p *Protector) endedRows() (rows []*row) {
	for _, e := range p.journal.Entries() { // one for each file
		if p.rows[e.Cgroup] != nil || p.ended(e.Cgroup) || p.rows[e.Cgroup] != nil {
			continue
		}
		r := p.addEntry(e, cgroup.LevelOf(e.Cgroup))
		p.release(r)
		rows = append(rows, r)
	}
	return rows
}

// addEntry enters a row for what only the journal knows.
func (p *Protector) addEntry(e Entry, level string) *row {
	r := p.addRow(e.Cgroup, level)
	if e.Unit != "" {
		r.driver = cgroup.Systemd
	}
	return r
}

// addRow enters a row.
func (p *Protector) addRow(dir, level string) *row {
	r := &row{cgroup: dir, depth: depth(dir), level: level, slowSlot: make(chan bool, 1)}
	r.parts = []*part{{row: r, dir: dir}}
	p.rows[dir] = r
	return r
}

// removeRow removes a row. What is still heard of it changes nothing.
func (p *Protector) removeRow(r *row) {
	r.state = removed
	for _, f := range r.all() {
		f.setGoal(dropped, unread)
	}
	delete(p.rows, r.cgroup)
	delete(p.dirty, r)
	delete(p.delayed, r)
	for _, l := range p.lanes {
		delete(l.late, r)
	}
	p.systemd.remove(r)
	for _, part := range r.parts {
		p.unwatch(part)
	}
	p.endIfGone(r)
}

// setValues makes values the desired ones. What is no longer set goes back to the kernel's default, if it was ours.
func (p *Protector) setValues(r *row, want knobValues) {
	for i, f := range r.all() {
		switch value := want[i]; {
		case value != nil:
			f.desire(*value, r.viaRuntime())
		case i == mems:
			f.ignore()
		case i == oomGroup:
			p.restoreFile(r, f, i, 0)
		default:
			if f.release(initial[i]); f.goal == unmanaged && p.unrestored(r, i) {
				f.setGoal(restoring, unread)
			}
		}
	}
}

// restoreFile has a file go back to what was there before ours, which the journal knows, or to the default. Otherwise it is not ours. nodes are
// the default of cpuset.mems.
func (p *Protector) restoreFile(r *row, f *file, index int, nodes uint64) {
	before, written := "", false
	if p.journal != nil && (index != oomGroup || r.level == cgroup.LevelContainer) {
		before, written = p.journal.before(r.cgroup, knobs[index])
	}
	switch {
	case written:
		value := nodes
		if index != mems {
			value = initial[index]
		}
		if before != "" {
			value, _ = knobs[index].Parse([]byte(before)) // it is restorable
		}
		if f.release(value); f.goal == unmanaged {
			f.setGoal(restoring, unread)
		}
	default:
		f.ignore()
	}
}

// unrestored reports whether the journal has a file that has to go back to the kernel's default: one in which the kubelet wants a value
// of its own does not. An earlier run wrote it, before an upgrade or a change of the configuration. Or the runtime had an old value of
// ours in its record, and is asked to write the default: it may have written that value after we took it away.
func (p *Protector) unrestored(r *row, index int) bool {
	if p.journal == nil || r.fresh {
		return false
	}
	before, written := p.journal.before(r.cgroup, knobs[index])
	return written && before == ""
}

// awaitRuntime has the files left to the runtime, which is about to write them. What it writes are values of ours: the journal has them.
// Its memory.oom.group may be the kubelet's.
func (p *Protector) awaitRuntime(r *row) {
	for i, f := range r.all() {
		if f.awaitRuntime(); f.goal == managed && i != oomGroup && (i == mems || f.want != initial[i]) {
			p.note(Entry{Cgroup: r.cgroup, Knob: knobs[i], Unit: p.unit(r)})
		}
	}
}

// runtimeWrote has the files compared that were left to the runtime, or memory.high alone.
func (r *row) runtimeWrote(onlyHigh bool) {
	for i, f := range r.all() {
		if !onlyHigh || i == high {
			f.runtimeWrote()
		}
	}
}

// findInner looks for crun's cgroup inside a container's.
func (p *Protector) findInner(r *row) {
	if r.level != cgroup.LevelContainer || len(r.parts) > 1 {
		return
	}
	var leaves []string
	var err error
	p.outside(func() { leaves, err = p.tree.Leaves(r.cgroup) })
	if r.state == removed || len(r.parts) > 1 {
		return
	}
	r.innerUnknown = err != nil // looked for again as long as there is something to look at
	for _, dir := range leaves[1:] {
		inner := &part{row: r, dir: dir}
		for i := range inner.files {
			outer := &r.parts[0].files[i]
			inner.files[i] = file{goal: outer.goal, status: outer.status, owned: outer.owned, want: outer.want}
			inner.files[i].readFailed()
		}
		r.parts = append(r.parts, inner)
	}
}

// watch has the kernel tell of a cgroup, which may be yet to come, or another one of the same name. It precedes the first read, so that no
// write between the two is missed.
func (p *Protector) watch(part *part) {
	watcher := p.watcher // the lock is given up below, and stopWatching may come
	if watcher == nil || part.watched && !part.abovePods() {
		return
	}
	part.watched = true // unless what is heard of it meanwhile says that it is another one
	if above := p.rows[path.Dir(part.cgroup)]; part.level == cgroup.LevelContainer && above != nil {
		p.watch(above.parts[0]) // whose controllers have the container's values
	}
	var err error
	tell := p.onChange != nil && !part.abovePods() // of what was changed before, which was told to nobody
	p.outside(func() {
		err = watcher.Watch(cgroupfs.Change{Cgroup: part.dir})
		if err == nil && tell {
			p.onChange(map[cgroupfs.Change]bool{{Cgroup: part.dir}: true})
		}
	})
	if err != nil {
		part.watched = false
		if !errors.Is(err, fs.ErrNotExist) && !p.watchFailed {
			p.watchFailed = true
			p.log.WithError(err).Warn("external changes of some cgroups are noticed by the periodic check only")
		}
	}
	if part.state == removed {
		p.unwatch(part)
	}
}

// Watched are the cgroups of which the kernel tells while Run runs: of writes to their files, and of the ends of those right below.
func (p *Protector) Watched() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := make(map[string]bool, len(p.rows))
	for dir, r := range p.rows {
		told[dir] = r.parts[0].watched
	}
	return told
}

// stopWatching says that the kernel tells of nothing any more.
func (p *Protector) stopWatching() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watcher = nil
	p.log.Warn("the kernel's events cannot be read any more: external changes are noticed by the periodic check only")
	for _, r := range p.rows {
		for _, part := range r.parts {
			part.watched = false
		}
	}
}

// unwatch ends the watch of a row that has ended, unless another one has its cgroup.
func (p *Protector) unwatch(part *part) {
	if p.watcher != nil && p.rows[part.cgroup] == nil {
		p.watcher.Unwatch(cgroupfs.Change{Cgroup: part.dir})
	}
}

// markChanged enters which files are to be looked at because of a change.
func (p *Protector) markChanged(c cgroupfs.Change) {
	r := p.rows[c.Cgroup]
	if above := p.rows[path.Dir(c.Cgroup)]; r == nil && above != nil && above.level == cgroup.LevelContainer && path.Base(c.Cgroup) == "container" {
		r = above // crun's
	}
	switch {
	case c.Resets():
		for _, r := range p.reset(c.Cgroup) {
			p.delayed[r] = allFiles
		}
	case r == nil:
	case c.File == "":
		for _, part := range r.parts {
			part.watched = part.watched && part.dir != c.Cgroup // it may be another one
		}
		p.delayed[r] = allFiles
	case !c.Limits():
		p.delayed[r] |= 1 << slices.Index(knobs[:], cgroup.Knob(c.File))
	}
}

// fewRows is how many rows stand for all that are below the same cgroup.
const fewRows = 3

// reset are the rows whose files may have been reset with the controllers of a cgroup. A runtime writes cgroup.subtree_control of all levels with
// each container that it makes: above the pods, where thousands may be below, a few that hold their values say that none was reset.
func (p *Protector) reset(dir string) (rows []*row) {
	for _, r := range p.rows {
		if path.Dir(r.cgroup) == dir || r.cgroup == dir && r.level == cgroup.LevelContainer {
			rows = append(rows, r)
		}
	}
	holding := 0
	for _, r := range rows {
		holds := 0
		for i, f := range r.all() {
			if r.level == cgroup.LevelContainer || f.goal != managed || f.status != confirmed || i == mems || f.want == initial[i] {
				continue
			}
			var value uint64
			var err error
			if p.outside(func() { value, err = p.tree.Get(r.cgroup, knobs[i]) }); err != nil || p.rounded(f, i, value) != f.want {
				return rows
			}
			holds = 1
		}
		if holding += holds; holding == fewRows {
			break
		}
	}
	if holding > 0 {
		return nil
	}
	return rows
}

// note enters a knob in the journal, before it is written, and reports whether it was not there.
func (p *Protector) note(e Entry) bool { return p.journal != nil && p.journal.Note(e) }

// endIfGone removes a cgroup that is gone from the journal, unless it is another's meanwhile.
func (p *Protector) endIfGone(r *row) {
	if p.journal == nil || !p.ended(r.cgroup) {
		return
	}
	if now := p.rows[r.cgroup]; now == nil || now == r {
		p.journal.End(r.cgroup)
	}
}
