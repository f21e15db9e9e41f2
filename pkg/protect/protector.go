package protect

import (
	"fmt"
	"io"
	"iter"
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
//
// A pass (pass.go) looks at cgroups and plans under mu, stores the journal's lines, writes without mu, and enters what came of it.
type Protector struct {
	tree    *cgroupfs.Tree
	systemd queue
	journal *Journal
	watcher *cgroupfs.Watcher
	log     logrus.FieldLogger
	page    uint64
	now     func() time.Time

	writing sync.Mutex // its holder writes files of protection; taken before mu, and held for no other wait

	mu         sync.Mutex // held for reads of files, and for no wait
	rows       map[string]*row
	containers []*row          // those of rows, in the order in which Reconcile looks at them
	next       int             // of containers, at the next Reconcile
	round      int             // of DesireAll
	unsettled  map[*row]bool   // what Settle has to look at
	delayed    map[string]bool // cgroups with a repair that waits
	lanes      [2]*lane
	migration  uint64 // most bytes of a running container that a write may move
	repairs    Repairs
	overwrites map[Overwrite]uint64
	lines      map[Overwrite]time.Time // when such an overwrite was last logged
	complaint  complaint
	unwritable complaint // of containers

	wake chan struct{} // Run has late writes to make
	slow sync.Map      // channels that are closed when a slow write has returned
}

// Repairs count how often the files of a container were found to hold something else than the runtime was to write or had
// written: those that were written instead, and the failures to read or write them.
type Repairs struct{ Containers, Failures uint64 }

// row is one cgroup of the table.
type row struct {
	cgroup    string
	level     string
	driver    cgroup.Driver
	fresh     bool // see Target
	state     rowState
	round     int       // the DesireAll that named it last
	watched   [2]bool   // memory.high and cpuset.mems of a container
	place     int       // of a container among Protector.containers
	parts     []*part   // its own cgroup, and the one that crun makes inside a container's, for the same values
	unclear   bool      // whether there is one inside could not be read
	turn      turn      // of the slow writes
	migration Migration // of a container
}

// part is a cgroup with the values of a row.
type part struct {
	*row
	dir   string
	files [len(knobs)]file
}

// isInner reports whether it is the one inside.
func (t *part) isInner() bool { return t != t.parts[0] }

// knobs are the files of a part, in the order of part.files.
var knobs = [...]cgroup.Knob{cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, cgroup.CpusetMems}

// The indices of the files that take long to write; those before hold protection.
const (
	high = 2
	mems = 3
)

// initial is what a new cgroup has in the files of bytes. cpuset.mems has no such value that would be right to write.
var initial = [...]uint64{cgroup.MemoryMin.Default(), cgroup.MemoryLow.Default(), cgroup.MemoryHigh.Default()}

// same is the event of a file that was read to hold what is desired. A container's was written by its runtime, through systemd.
func (r *row) same() event {
	if r.level == cgroup.LevelContainer {
		return readHeld
	}
	return readUntold
}

// all goes through the files of a row.
func (r *row) all() iter.Seq2[int, *file] {
	return func(yield func(int, *file) bool) {
		for _, t := range r.parts {
			for i := range t.files {
				if !yield(i, &t.files[i]) {
					return
				}
			}
		}
	}
}

// any reports whether a file is in such a state.
func (r *row) any(is func(state) bool) bool {
	for _, f := range r.all() {
		if is(f.state) {
			return true
		}
	}
	return false
}

// settled reports whether there is nothing to do for any file.
func (r *row) settled() bool { return !r.any(func(s state) bool { return !s.settled() }) }

// on makes a transition.
func (r *row) on(e rowEvent) { r.state = rowTransitions[r.state][e] }

// New makes a Protector with an empty table.
func New(o Options) *Protector {
	p := &Protector{
		tree: o.Tree, journal: o.Journal, watcher: o.Watcher, log: o.Log, page: uint64(o.PageSize), now: o.Now,
		migration: o.Migration,
		rows:      make(map[string]*row), delayed: make(map[string]bool), wake: make(chan struct{}, 1),
		unsettled: make(map[*row]bool), lanes: [2]*lane{newLane(onlyRaises, 0), newLane(everything, slowWrites)},
		overwrites: make(map[Overwrite]uint64), lines: make(map[Overwrite]time.Time),
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
		p.startQueue(o.Units)
	}
	return p
}

// take makes a target the desired state of its cgroup.
func (p *Protector) take(t cgroup.Target) (*row, error) {
	var nodes *uint64
	if t.Mems != "" {
		var err error
		if nodes, err = nodeBits(&t.Mems); err != nil {
			return nil, fmt.Errorf("cgroup %s: cpuset.mems: %w", t.Cgroup, err)
		}
	}
	r := p.rows[t.Cgroup]
	if r == nil {
		r = p.add(t.Cgroup, t.Level)
	} else {
		t.Seen = nil // the table has seen more since
	}
	r.level, r.driver, r.fresh, r.round = t.Level, t.Driver, t.Fresh, p.round
	r.on(named)
	p.set(r, t.Values, nodes)
	if t.ByRuntime {
		p.announce(r)
		return r, nil
	}
	r.compare(false)
	if t.Seen != nil {
		p.saw(r, *t.Seen)
	}
	return r, nil
}

// nodeBits are the nodes of a cpuset.mems; nil for nil.
func nodeBits(list *string) (*uint64, error) {
	if list == nil {
		return nil, nil
	}
	set, err := nodeset.Parse(*list)
	nodes := uint64(set)
	return &nodes, err
}

// saw enters what a container's files were read to hold.
func (p *Protector) saw(r *row, seen cgroup.Seen) {
	nodes, err := nodeBits(seen.Mems)
	if err != nil {
		nodes = nil
	}
	for i, value := range [...]*uint64{seen.Values.Min, seen.Values.Low, seen.Values.High, nodes} {
		f := &r.parts[0].files[i]
		if value != nil && f.state.looked() && !f.state.back() { // systemd may not hold what goes back
			f.is(p.rounded(f, i, *value), r.same())
			p.watchFound(r)
		}
	}
}

// rounded is a value that was read. The kernel rounds bytes down to a page.
func (p *Protector) rounded(f *file, index int, value uint64) uint64 {
	if index != mems && memoryqos.Holds(value, f.want, p.page) {
		return f.want
	}
	return value
}

// add enters a row.
func (p *Protector) add(dir, level string) *row {
	r := &row{cgroup: dir, level: level, turn: make(turn, 1)}
	own := &part{row: r, dir: dir}
	for i := range own.files {
		own.files[i].state = alone
	}
	r.parts = []*part{own}
	p.rows[dir] = r
	if level == cgroup.LevelContainer {
		r.place = len(p.containers)
		p.containers = append(p.containers, r)
		return r // its cgroup may be yet to come: see watchFound
	}
	if err := p.watch(r); err != nil {
		p.log.WithError(err).Warn("until this cgroup can be watched, other writers are noticed by the periodic check only")
	}
	return r
}

// drop removes a row. What is still heard of it changes nothing.
func (p *Protector) drop(r *row) {
	r.on(dropped)
	for _, f := range r.all() {
		f.on(end)
	}
	delete(p.rows, r.cgroup)
	delete(p.unsettled, r)
	p.systemd.take(r)
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
	return p.journal != nil && !r.fresh && p.journal.Unrestored(r.cgroup, knobs[index])
}

// set makes values the desired ones. What is no longer set goes back to the kernel's default, if it was ours.
func (p *Protector) set(r *row, v memoryqos.Values, nodes *uint64) {
	values := [...]*uint64{v.Min, v.Low, v.High, nodes}
	r.watched = [2]bool{} // others may be desired now
	for i, f := range r.all() {
		switch value := values[i]; {
		case value != nil:
			f.desire(*value, r.same())
		case i == mems:
			f.on(leave)
		default:
			if f.undesire(initial[i]); f.state == alone && p.unrestored(r, i) {
				f.on(orphan)
			}
		}
	}
}

// announce has the files left to the runtime, which is about to write them. What it writes are values of ours: the journal has them.
func (p *Protector) announce(r *row) {
	for i, f := range r.all() {
		if f.on(announce); f.state == announced && (i == mems || f.want != initial[i]) {
			p.note(Entry{Cgroup: r.cgroup, Knob: knobs[i], Unit: p.unit(r)})
		}
	}
}

// compare has the files compared that were left to the runtime, or memory.high alone.
func (r *row) compare(onlyHigh bool) {
	for i, f := range r.all() {
		if !onlyHigh || i == high {
			f.on(compare)
		}
	}
}

// findInner looks for crun's cgroup inside a container's.
func (p *Protector) findInner(r *row) {
	if r.level != cgroup.LevelContainer || len(r.parts) > 1 {
		return
	}
	leaves, err := p.tree.Leaves(r.cgroup)
	r.unclear = err != nil // looked for again as long as there is something to look at
	for _, dir := range leaves[1:] {
		inner := &part{row: r, dir: dir}
		for i := range inner.files {
			outer := &r.parts[0].files[i]
			inner.files[i] = file{state: outer.state, want: outer.want}
			inner.files[i].on(unknown)
		}
		r.parts = append(r.parts, inner)
	}
}

// watch watches the files that other writers are known to write. Pods are looked at every period: a watch for each would cost
// more than it gives.
func (p *Protector) watch(r *row) error {
	if p.watcher == nil || r.level == cgroup.LevelPod || r.level == cgroup.LevelContainer {
		return nil
	}
	return p.watcher.Watch(r.cgroup, string(cgroup.MemoryMin), string(cgroup.MemoryLow))
}

// watchFound watches a container whose cgroup has been seen.
func (p *Protector) watchFound(r *row) {
	if p.watcher == nil || r.level != cgroup.LevelContainer {
		return
	}
	for i, knob := range knobs[high:] {
		if r.watched[i] || r.parts[0].files[high+i].state == alone {
			continue
		}
		r.watched[i] = true
		if err := p.watcher.Watch(r.cgroup, string(knob)); err != nil {
			p.log.WithError(err).WithField("cgroup", r.cgroup).Debug("writes to a container's files are found by the periodic check only")
		}
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

// note enters a knob in the journal, before it is written, and reports whether it was not there.
func (p *Protector) note(e Entry) bool { return p.journal != nil && p.journal.Note(e) }

// endIfGone removes a cgroup that is gone from the journal.
func (p *Protector) endIfGone(r *row) {
	if p.journal != nil && p.tree.Ended(r.cgroup) {
		p.journal.End(r.cgroup)
	}
}
