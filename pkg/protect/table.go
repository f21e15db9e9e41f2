package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
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
	compared     time.Time // when a pass last compared all files
	parts        []*part   // the cgroup, and crun's inner cgroup of a container, which gets the same values
	innerUnknown bool      // it is unknown whether crun's inner cgroup exists
	slowSlot     chan bool // full while a slow write is under way
	overwritten  bool      // see setMemory; sendLoop's
	migration    Migration // of a container
}

// part is a cgroup with the values of a row.
type part struct {
	*row
	dir     string
	watched bool // inotify reports writes to its files
	remade  int  // how often its cgroup ended or may have been recreated: the result of an earlier write says nothing then
	files   [len(knobs)]file
}

// isInner reports whether the part is crun's inner cgroup.
func (part *part) isInner() bool { return part != part.parts[0] }

// knobs are the files of a part, in the order of part.files.
var knobs = [...]cgroup.Knob{cgroup.MemoryOOMGroup, cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, cgroup.CpusetMems}

// Indices in knobs. Files from high on may take long to write.
const (
	oomGroup = 0
	high     = 3
	mems     = 4
)

// files is a set of files, a bit for each index in knobs.
type files uint8

const allFiles = files(1<<len(knobs) - 1)

// initial holds the kernel's defaults. For cpuset.mems there is no default to write.
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

// rowState says how this plugin treats a cgroup.
type rowState uint8

const (
	desired     rowState = iota // a target names it
	runtimeOnly                 // a target names it, but the kernel lets only the runtime write: see cgroupfs.ErrOwn
	released                    // no target names it any more, but values of this plugin may be left
	removed                     // it is no longer in the table
)

// viaRuntime reports whether systemd holds the values of the files: the runtime writes a container's files through systemd.
func (r *row) viaRuntime() bool { return r.level == cgroup.LevelContainer }

// all iterates over the files of a row, with their indices in knobs.
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

// any reports whether is returns true for a file.
func (r *row) any(is func(*file) bool) bool {
	for _, f := range r.all() {
		if is(f) {
			return true
		}
	}
	return false
}

// idle reports whether no file has to be compared until inotify reports a change. Cgroups above the pods are never idle, because inotify
// does not report that kubepods was recreated.
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

// hasNoValues reports whether the row is a pod without values. Its cgroup.subtree_control still affects the files of its containers.
func (r *row) hasNoValues() bool {
	return r.state == desired && r.level == cgroup.LevelPod && !r.any((*file).compared)
}

func (r *row) abovePods() bool { return r.level != cgroup.LevelPod && r.level != cgroup.LevelContainer }

// DesireAll replaces the whole desired state. The files of all other cgroups go back to the kernel's defaults. The error names the
// invalid targets. Apply writes the values. Do not call it beside Desire.
func (p *Protector) DesireAll(targets []cgroup.Target) error {
	p.mu.Lock()
	others := maps.Clone(p.rows)
	p.mu.Unlock()
	for _, t := range targets {
		delete(others, t.Cgroup)
	}
	return p.Desire(targets, slices.Collect(maps.Keys(others)))
}

// Desire changes a part of the desired state: it sets the targets, and the files of the cgroups that are gone go back to the kernel's
// defaults. Its cost does not grow with the number of pods.
func (p *Protector) Desire(targets []cgroup.Target, gone []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range gone {
		if r := p.rows[dir]; r != nil {
			p.release(r)
		}
	}
	var errs []error
	for _, t := range targets {
		errs = append(errs, p.setTarget(t))
	}
	return errors.Join(errs...)
}

// Journaled holds the journal's entries of existing cgroups and, for cpuset.mems, the NUMA nodes of their parents.
type Journaled struct {
	entries []Entry
	nodes   map[string]uint64
}

// Journaled reads cgroups, which may block.
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
		text, err := p.tree.EffectiveMems(path.Dir(e.Cgroup))
		if err != nil {
			continue
		}
		if nodes, err := cgroup.CpusetMems.Parse([]byte(text)); err == nil { // an invalid list is left alone
			w.nodes[e.Cgroup] = nodes // none in a folder that plays a cgroup: an empty file is the default there
		}
	}
	return w
}

// RestoreAll ends the desired state, for a dry run: files that this plugin wrote go back to their earlier values, as after Rollback, and all
// others are left alone. Apply and WriteLate write the values. Until then they stay in the journal, for the next RestoreAll.
func (p *Protector) RestoreAll(w Journaled) {
	if p.journal == nil { // the earlier values are unknown
		_ = p.DesireAll(nil) // no target can be invalid
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
			if nodes, read := w.nodes[dir]; i == mems && !read {
				f.ignore()
			} else {
				p.restoreFile(r, f, i, nodes)
			}
			if f.goal == restoring && p.unconfirmed(r) { // systemd may have written what it held, and nobody is told
				f.readFailed()
			}
		}
		r.runtimeWrote(false)
		p.toWrite(r)
	}
}

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
		t.Seen = nil // the table knows newer values
	}
	r.level, r.driver, r.fresh = t.Level, t.Driver, t.Fresh
	if r.state == released {
		r.state = desired
	}
	p.setValues(r, want)
	p.toWrite(r)
	if t.ByRuntime {
		p.awaitRuntime(r)
		return nil
	}
	r.runtimeWrote(false)
	if t.Seen != nil {
		p.observe(r, *t.Seen)
		if p.watcher != nil { // changes before the watch were not reported
			p.delayed[r] = allFiles
			signal(p.repairDue)
		}
	}
	return nil
}

// keepPod adds a row for a pod, even without values (see hasNoValues), or keeps a row that was released.
func (p *Protector) keepPod(pod string) {
	switch r := p.rows[pod]; {
	case r == nil:
		p.addRow(pod, cgroup.LevelPod)
	case r.state == released:
		r.state = desired
		p.toWrite(r)
	}
}

// toWrite leaves a row to the next Apply, and its protection to the next pass.
func (p *Protector) toWrite(r *row) { p.dirty[r], p.unwritten[r] = true, true }

// observe records values that were read from a container's files.
func (p *Protector) observe(r *row, seen cgroup.Seen) {
	values, _ := valuesOf(seen.Values, seen.Mems) // an invalid node list is read again
	for i, value := range values {
		f := &r.parts[0].files[i]
		if value != nil && f.compared() && f.goal != restoring { // systemd may hold another value
			f.observe(p.rounded(f, i, *value), r.viaRuntime())
		}
	}
}

// rounded returns the desired value if the kernel rounded it down to the value that was read.
func (p *Protector) rounded(f *file, index int, value uint64) uint64 {
	if index != mems && index != oomGroup && memoryqos.Holds(value, f.want, p.page) {
		return f.want
	}
	return value
}

// release restores the kernel's defaults in a cgroup that is no longer a target. Usually its container has ended and the next pass finds the
// cgroup gone. After a runtime was killed, the cgroup of a process that never ran may remain: its protection would be missing for the
// other containers of the pod, and systemd would set it again at a reload.
func (p *Protector) release(r *row) {
	r.state = released
	p.setValues(r, knobValues{})
	r.runtimeWrote(false)
	p.toWrite(r)
}

// RestoreEnded restores the kernel's defaults in cgroups that are in the journal but not in the table: their containers ended while the
// plugin was not connected. After the last pod of a node these include kubepods and the QoS levels. Call it after Apply of all targets.
func (p *Protector) RestoreEnded(ctx context.Context) {
	if p.journal != nil {
		_ = p.run(ctx, applying, p.endedRows) // Reconcile retries and reports failures
	}
}

// endedRows adds rows for cgroups that only the journal has.
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

// addEntry adds a row for an entry of the journal.
func (p *Protector) addEntry(e Entry, level string) *row {
	r := p.addRow(e.Cgroup, level)
	if e.Unit != "" {
		r.driver = cgroup.Systemd
	}
	return r
}

func (p *Protector) addRow(dir, level string) *row {
	r := &row{cgroup: dir, depth: depth(dir), level: level, slowSlot: make(chan bool, 1)}
	r.parts = []*part{{row: r, dir: dir}}
	p.rows[dir] = r
	return r
}

// removeRow removes a row. Later events of its files change nothing.
func (p *Protector) removeRow(r *row) {
	r.state = removed
	for _, f := range r.all() {
		f.setGoal(dropped, unread)
	}
	delete(p.rows, r.cgroup)
	delete(p.dirty, r)
	delete(p.unwritten, r)
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

// setValues sets the desired values. A file without a desired value goes back to the kernel's default if this plugin wrote it.
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

// restoreFile restores a file that is in the journal to its earlier value or the default, and ignores all others. nodes is the default of
// cpuset.mems.
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

// unrestored reports whether the journal has a file that must go back to the kernel's default, because the kubelet wants no other value.
// Either an earlier run wrote it, before an upgrade or a change of the configuration, or the runtime wrote an old value from its record.
func (p *Protector) unrestored(r *row, index int) bool {
	if p.journal == nil || r.fresh {
		return false
	}
	before, written := p.journal.before(r.cgroup, knobs[index])
	return written && before == ""
}

// awaitRuntime leaves the files to the runtime, which is about to write this plugin's values: they are added to the journal.
// memory.oom.group is not, because its value may be the kubelet's.
func (p *Protector) awaitRuntime(r *row) {
	for i, f := range r.all() {
		if f.awaitRuntime(); f.goal == managed && i != oomGroup && (i == mems || f.want != initial[i]) {
			p.note(Entry{Cgroup: r.cgroup, Knob: knobs[i], Unit: p.unit(r)})
		}
	}
}

// runtimeWrote lets passes compare the files that were left to the runtime, or memory.high alone.
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
	r.innerUnknown = err != nil // it is looked for again in later passes
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

// setRemade records that a cgroup has ended, or is perhaps another one and holds the kernel's defaults.
func (part *part) setRemade() {
	part.remade++
	for i := range part.files {
		part.files[i].readFailed()
	}
}

// watch adds an inotify watch for a cgroup, and reports whether there was none. It is called before the first read, so that no later write is
// missed. A file that is not read afterwards must be compared again: another pass may have read it before.
func (p *Protector) watch(part *part) (added bool) {
	watcher := p.watcher // stopWatching may run while the lock is released below
	if watcher == nil || part.watched && !part.abovePods() {
		return false
	}
	above := p.rows[path.Dir(part.cgroup)]
	// It may have been recreated, too, while its parent was not watched. Writes of its cgroup.subtree_control reset the container's files.
	if part.level == cgroup.LevelContainer && above != nil && p.addWatch(watcher, above.parts[0]) {
		p.delayed[above] = allFiles
		signal(p.repairDue)
	}
	return p.addWatch(watcher, part)
}

func (p *Protector) addWatch(watcher *cgroupfs.Watcher, part *part) (added bool) {
	before, remade := part.watched, part.remade
	part.watched = true // an event may reset it: the cgroup was recreated
	var err error
	tell := p.onChange != nil && !part.abovePods() // earlier changes were not reported
	p.outside(func() {
		added, err = watcher.Watch(cgroupfs.Change{Cgroup: part.dir})
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
	if before && added && part.remade == remade { // nothing else reports it
		part.setRemade()
	}
	if part.state == removed {
		p.unwatch(part)
	}
	return added
}

// Watched returns the cgroups that inotify watches while Run runs: writes to their files, and the removal of their children.
func (p *Protector) Watched() map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := make(map[string]bool, len(p.rows))
	for dir, r := range p.rows {
		told[dir] = r.parts[0].watched
	}
	return told
}

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

// unwatch ends the watch of a removed row, unless another row has its cgroup.
func (p *Protector) unwatch(part *part) {
	if p.watcher != nil && p.rows[part.cgroup] == nil {
		p.watcher.Unwatch(cgroupfs.Change{Cgroup: part.dir})
	}
}

// markChanged marks the files that a change affects.
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
			if part.dir == c.Cgroup {
				part.watched = false
				part.setRemade()
			}
		}
		p.delayed[r] = allFiles
	case !c.Limits():
		p.delayed[r] |= 1 << slices.Index(knobs[:], cgroup.Knob(c.File))
	}
}

// fewRows is how many unchanged rows show that no file below a cgroup was reset.
const fewRows = 3

// reset returns the rows whose files a write of a cgroup's cgroup.subtree_control may have reset. A runtime writes this file on all levels
// for each new container. Because thousands of rows may be below, a few rows that still hold their values show that none was reset.
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

// note adds a knob to the journal before it is written, and reports whether it is new there.
func (p *Protector) note(e Entry) bool {
	if p.journal == nil || !p.journal.Note(e) {
		return false
	}
	p.notes++
	return true
}

// endIfGone removes a cgroup that is gone from the journal, unless another row has it.
func (p *Protector) endIfGone(r *row) {
	if p.journal == nil || !p.ended(r.cgroup) {
		return
	}
	if now := p.rows[r.cgroup]; now == nil || now == r {
		p.journal.End(r.cgroup)
	}
}
