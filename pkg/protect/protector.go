package protect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Options are what a Protector works with.
type Options struct {
	Tree    *cgroupfs.Tree
	Units   Units             // nil: files only
	Journal *Journal          // nil: none is kept
	Watcher *cgroupfs.Watcher // nil: repairs happen at Reconcile only
	Log     logrus.FieldLogger
	// Migration is BoundMigration's.
	Migration uint64
	// PageSize is what the kernel rounds down to; 0 is the tree's.
	PageSize int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Protector is the table of what cgroups should hold, and of what they were last seen to hold. It is safe for concurrent use.
type Protector struct {
	tree    *cgroupfs.Tree
	systemd *queue // nil: files only
	journal *Journal
	watcher *cgroupfs.Watcher
	log     logrus.FieldLogger
	page    uint64
	now     func() time.Time

	mu         sync.Mutex
	rows       map[string]*row
	containers []*row                 // those of rows, in the order in which Reconcile looks at them
	next       int                    // of containers, at the next Reconcile
	unsettled  map[*row]bool          // what Settle has to look at
	delayed    map[string]bool        // cgroups with a repair that waits
	late       [lanes]map[string]bool // containers with a write that Finish makes
	finishing  [lanes]map[string]bool // containers with a write that Run makes now
	writes     map[*underWay]bool     // slow writes that have not returned
	migration  uint64                 // most bytes of a running container that a write may move
	repairs    Repairs
	overwrites map[Overwrite]uint64
	lines      map[Overwrite]time.Time // when such an overwrite was last logged
	complaint  complaint
	unwritable complaint // of containers

	wake chan struct{} // Run has late writes to make
}

// Repairs count how often the files of a container were found to hold something else than the runtime was to write or had
// written: those that were written instead, and the failures to read or write them.
type Repairs struct{ Containers, Failures uint64 }

// row is one cgroup of the table.
type row struct {
	cgroup    string
	level     string
	driver    cgroup.Driver
	target    bool // the last Apply, or an Update since, named it
	fresh     bool // see Target
	byRuntime bool // see Target
	watched   bool
	repaired  bool // a container's files were found to hold something else, and are being written
	refused   bool // the kernel lets the runtime alone write them: see cgroup.ErrOwn
	place     int  // of a container among Protector.containers
	inner     *row // the cgroup that crun makes inside a container's, for the same values
	isInner   bool
	unclear   bool          // whether there is an inner cgroup could not be read
	turn      chan struct{} // of the slow writes; holds one
	files     [len(knobs)]file
	starting  bool      // a container that does not run yet: its bytes are few, and all moved
	migration Migration // of a container
}

// knobs are the files of a row, in the order of row.files.
var knobs = [...]cgroup.Knob{cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, cgroup.CpusetMems}

// The indices of the files that take long to write; those before hold protection.
const (
	high = 2
	mems = 3
)

// initial is what a new cgroup has in the files of bytes. cpuset.mems has no such value that would be right to write.
var initial = [...]uint64{cgroup.MemoryMin.Default(), cgroup.MemoryLow.Default(), cgroup.MemoryHigh.Default()}

// file is one file of a row: bytes, or a set of NUMA nodes as a bit for each.
type file struct {
	wanted  bool // there is a desired value
	want    uint64
	restore bool // no target sets it any more: it goes back to the default, and is then left alone
	known   bool // the file was seen to hold have
	have    uint64
	ours    bool // a value of ours was written, by us or by the runtime, and is not restored
	series  series

	writes  int    // of a slow file, those that have not returned
	writing uint64 // what the newest of them writes
	raising bool   // it is a raise

	overwritten uint64 // times that another writer changed it
}

// settled reports whether there is nothing to do.
func (f *file) settled() bool { return !f.wanted || f.known && f.have == f.want }

// untold reports whether a file that goes back to the default has not been written for that: it may hold the default already, and
// systemd the value that was ours.
func (f *file) untold() bool { return f.restore && f.ours }

// isInitial reports whether the desired value is what a new cgroup has.
func (f *file) isInitial(index int) bool { return index != mems && f.want == initial[index] }

// New makes a Protector with an empty table.
func New(o Options) *Protector {
	p := &Protector{
		tree: o.Tree, journal: o.Journal, watcher: o.Watcher, log: o.Log, page: uint64(o.PageSize), now: o.Now,
		migration: o.Migration,
		rows:      make(map[string]*row), delayed: make(map[string]bool), wake: make(chan struct{}, 1),
		unsettled: make(map[*row]bool), writes: make(map[*underWay]bool),
		overwrites: make(map[Overwrite]uint64), lines: make(map[Overwrite]time.Time),
	}
	for l := range lanes {
		p.late[l], p.finishing[l] = make(map[string]bool), make(map[string]bool)
	}
	if p.log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		p.log = silent
	}
	if p.now == nil {
		p.now = time.Now
	}
	if p.page == 0 {
		p.page = uint64(p.tree.PageSize())
	}
	if o.Units != nil {
		p.systemd = newQueue(o.Units, p.tree, p.log, p.confirmed)
	}
	return p
}

// take makes a target the desired state of its cgroup.
func (p *Protector) take(t cgroup.Target) (*row, error) {
	var nodes *uint64
	if t.Mems != "" {
		set, err := nodeset.Parse(t.Mems)
		if err != nil {
			return nil, fmt.Errorf("cgroup %s: cpuset.mems: %w", t.Cgroup, err)
		}
		bits := uint64(set)
		nodes = &bits
	}
	r := p.rows[t.Cgroup]
	if r == nil {
		r = &row{cgroup: t.Cgroup, level: t.Level}
		p.add(r)
	} else {
		t.Seen = nil // the table has seen more since
	}
	r.level, r.driver, r.target, r.fresh, r.byRuntime = t.Level, t.Driver, true, t.Fresh, t.ByRuntime
	p.set(r, t.Values, nodes)
	switch {
	case t.ByRuntime:
		p.expect(r)
	case t.Seen != nil:
		p.saw(r, *t.Seen)
	}
	return r, nil
}

// saw enters what a container's files were read to hold.
func (p *Protector) saw(r *row, seen cgroup.Seen) {
	var nodes *uint64
	if seen.Mems != nil {
		if set, err := nodeset.Parse(*seen.Mems); err == nil {
			bits := uint64(set)
			nodes = &bits
		}
	}
	for i, value := range [...]*uint64{seen.Values.Min, seen.Values.Low, seen.Values.High, nodes} {
		f := &r.files[i]
		if value == nil || f.restore { // systemd may not hold what is restored
			continue
		}
		p.has(f, i, *value)
		f.ours = f.ours || f.wanted && f.settled() && !f.isInitial(i)
		p.found(r)
	}
}

// has enters what a file holds. The kernel rounds bytes down to a page.
func (p *Protector) has(f *file, index int, value uint64) {
	f.have, f.known = value, true
	if index != mems && memoryqos.Holds(value, f.want, p.page) {
		f.have = f.want
	}
}

// add enters a row.
func (p *Protector) add(r *row) {
	p.rows[r.cgroup], r.turn = r, make(chan struct{}, 1)
	if r.level == cgroup.LevelContainer {
		r.place = len(p.containers)
		p.containers = append(p.containers, r)
		return // its cgroup may be yet to come: see found
	}
	if err := p.watch(r); err != nil {
		p.log.WithError(err).Warn("until this cgroup can be watched, other writers are noticed by the periodic check only")
	}
}

// drop removes a row.
func (p *Protector) drop(r *row) {
	delete(p.rows, r.cgroup)
	delete(p.unsettled, r)
	p.endIfGone(r)
	if r.level == cgroup.LevelContainer {
		last := p.containers[len(p.containers)-1]
		p.containers[r.place], last.place = last, r.place
		p.containers = p.containers[:len(p.containers)-1]
	}
	if p.watcher != nil && r.level != cgroup.LevelPod {
		p.watcher.Unwatch(r.cgroup)
	}
}

// unrestored reports whether the journal has a file. An earlier run wrote it, before an upgrade or a change of the configuration.
// Or the runtime had an old value of ours in its record, and is asked to write the default: it may have written that value
// after we took it away.
func (p *Protector) unrestored(r *row, index int) bool {
	if p.journal == nil || r.fresh || index == mems {
		return false
	}
	return p.journal.Unrestored(r.container(), knobs[index])
}

// set makes values the desired ones. What is no longer set goes back to the kernel's default, if it was ours.
func (p *Protector) set(r *row, v memoryqos.Values, nodes *uint64) {
	for i, value := range [...]*uint64{v.Min, v.Low, v.High, nodes} {
		f := &r.files[i]
		switch {
		case value != nil:
			f.wanted, f.restore, f.want = true, false, *value
		case i != mems && (f.ours || p.sent(r.cgroup, knobs[i])):
			f.wanted, f.restore, f.want = true, true, initial[i]
		case p.unrestored(r, i):
			f.wanted, f.restore, f.want, f.known, f.ours = true, true, initial[i], false, true
		default:
			f.wanted, f.restore = false, false
		}
	}
	r.watched = false
	if r.inner != nil {
		p.set(r.inner, v, nodes)
	}
}

// expect enters what the runtime is about to write in the journal: they are values of ours. What the files hold is not known
// until then.
func (p *Protector) expect(r *row) {
	for i := range r.files {
		f := &r.files[i]
		f.known = false
		if r.inner != nil {
			r.inner.files[i].known = false
		}
		if f.wanted && !f.isInitial(i) {
			f.ours = true
			p.note(Entry{Cgroup: r.cgroup, Knob: knobs[i], Unit: p.unit(r.cgroup, r.driver)})
		}
	}
}

// parts are the cgroups of a row: its own, and crun's inside, nil where there is none.
func (p *Protector) parts(r *row) [2]*row {
	if r.level != cgroup.LevelContainer || r.inner != nil {
		return [2]*row{r, r.inner}
	}
	leaves, err := p.tree.Leaves(r.cgroup)
	r.unclear = err != nil // looked for again as long as something is to be written
	if len(leaves) > 1 {
		r.inner = &row{cgroup: leaves[1], level: r.level, isInner: true, files: r.files, turn: r.turn}
		for i := range r.inner.files {
			f := &r.inner.files[i]
			f.known, f.series, f.overwritten, f.writes = false, series{}, 0, 0
		}
	}
	return [2]*row{r, r.inner}
}

// watch watches the files that other writers are known to write. Pods are looked at every period: a watch for each would cost
// more than it gives.
func (p *Protector) watch(r *row) error {
	if p.watcher == nil || r.isInner {
		return nil
	}
	var files []string
	switch r.level {
	case cgroup.LevelPod:
		return nil
	case cgroup.LevelContainer:
		for _, i := range []int{high, mems} {
			if r.files[i].wanted {
				files = append(files, string(knobs[i]))
			}
		}
	default:
		files = []string{string(cgroup.MemoryMin), string(cgroup.MemoryLow)}
	}
	return p.watcher.Watch(r.cgroup, files...)
}

// found watches a container whose cgroup has been seen.
func (p *Protector) found(r *row) {
	if r.watched || r.isInner || r.level != cgroup.LevelContainer {
		return
	}
	r.watched = true
	if err := p.watch(r); err != nil {
		p.log.WithError(err).WithField("cgroup", r.cgroup).Debug("writes to a container's files are found by the periodic check only")
	}
}

// Repairs returns how often containers were repaired.
func (p *Protector) Repairs() Repairs {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.repairs
}

// Overwrites counts by level how often another writer changed a file.
func (p *Protector) Overwrites() map[Overwrite]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.overwrites)
}

// Unconfirmed is how many units have values that systemd has not confirmed yet. The files of their cgroups hold them.
func (p *Protector) Unconfirmed() int {
	if p.systemd == nil {
		return 0
	}
	return p.systemd.length()
}

// Flush waits until systemd has confirmed all values, or ctx ends.
func (p *Protector) Flush(ctx context.Context) error {
	if p.systemd == nil {
		return nil
	}
	return p.systemd.flush(ctx)
}

// Close flushes within ctx, and waits as long for the writes that have begun; Run has ended. On return systemd receives nothing more
// from this Protector.
func (p *Protector) Close(ctx context.Context) error {
	var err error
	if p.systemd != nil {
		err = p.systemd.close(ctx)
	}
	return errors.Join(err, p.awaitWrites(ctx))
}

// unconfirmed reports whether systemd may still write an older value into the files of a cgroup.
func (p *Protector) unconfirmed(dir string) bool { return p.systemd != nil && p.systemd.waits(dir) }

// sent reports whether systemd may have received a value for a file that it has not confirmed.
func (p *Protector) sent(dir string, knob cgroup.Knob) bool {
	return p.systemd != nil && p.systemd.sent(dir, knob)
}

// unit is the systemd unit that is to hold the values of a cgroup; "" where there are files only.
func (p *Protector) unit(dir string, driver cgroup.Driver) string {
	if p.systemd == nil || driver != cgroup.Systemd {
		return ""
	}
	return cgroup.Unit(dir)
}

// note enters a knob in the journal, before it is written, and reports whether it was not there.
func (p *Protector) note(e Entry) bool { return p.journal != nil && p.journal.Note(e) }

// endIfGone removes a cgroup that is gone from the journal.
func (p *Protector) endIfGone(r *row) {
	if p.journal != nil && !r.isInner && p.tree.Ended(r.cgroup) {
		p.journal.End(r.cgroup)
	}
}

// forget removes a knob that is back at its default from the journal.
func (p *Protector) forget(dir string, knob cgroup.Knob) {
	if p.journal != nil {
		p.journal.AtDefault(dir, knob)
	}
}
