package protect

import (
	"context"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Options are what a Protector works with.
type Options struct {
	Tree    *cgroup.Tree
	Units   Units           // nil: files only
	Journal *Journal        // nil: none is kept
	Watcher *cgroup.Watcher // nil: repairs happen at Reconcile only
	// Changed is told by Run of writes to other files that the watcher was asked to watch, such as the cpuset.mems of a
	// container; may be nil.
	Changed func(cgroup.Change)
	Log     logrus.FieldLogger
	// PageSize is what the kernel rounds down to; 0 is the tree's.
	PageSize int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Protector owns the values of kubepods, the QoS levels and the pods. It is safe for concurrent use.
type Protector struct {
	tree    *cgroup.Tree
	systemd *queue // nil: files only
	journal *Journal
	watcher *cgroup.Watcher
	changed func(cgroup.Change)
	log     logrus.FieldLogger
	page    uint64
	now     func() time.Time

	mu         sync.Mutex
	held       map[string]*held
	fighting   map[string]bool // cgroups with a repair held back
	generation int             // of Apply
	overwrites map[Overwrite]uint64
	lines      map[Overwrite]time.Time // when such an overwrite was last logged
	complaint  complaint
}

// held is what this protector knows of one cgroup.
type held struct {
	cgroup     string
	level      string
	driver     cgroup.Driver
	generation int
	files      [len(protected)]file
	fresh      bool // see Target
}

// protected are the files of a level, in the order of held.files.
var protected = [...]cgroup.Knob{cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh}

// initial is what a new cgroup has in them.
var initial = [...]uint64{0, 0, cgroup.Max}

// byDefault is what a new cgroup has in a file of bytes.
func byDefault(knob cgroup.Knob) uint64 {
	if knob == cgroup.MemoryHigh {
		return cgroup.Max
	}
	return 0
}

// file is what this protector knows of one file. What it wants is told by Apply alone.
type file struct {
	wanted bool // we care for it
	want   uint64
	known  bool // the file was seen to hold have
	have   uint64
	ours   bool // we wrote it and have not put it back
	fight  fight

	overwritten uint64 // foreign writes since it is held
}

// settled tells whether there is nothing to do.
func (f *file) settled() bool { return !f.wanted || f.known && f.have == f.want }

// New makes a Protector that wants nothing yet.
func New(o Options) *Protector {
	p := &Protector{
		tree: o.Tree, journal: o.Journal, watcher: o.Watcher, changed: o.Changed, log: o.Log, page: uint64(o.PageSize), now: o.Now,
		held: make(map[string]*held), fighting: make(map[string]bool), overwrites: make(map[Overwrite]uint64), lines: make(map[Overwrite]time.Time),
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

// want takes over the targets as the whole of what is wanted.
func (p *Protector) want(targets []Target) {
	p.generation++
	for _, t := range targets {
		p.take(t)
	}
	for _, h := range p.held {
		if h.generation != p.generation {
			p.set(h, memoryqos.Values{})
		}
	}
}

// take takes over one target.
func (p *Protector) take(t Target) *held {
	h := p.held[t.Cgroup]
	if h == nil {
		h = &held{cgroup: t.Cgroup, level: t.Level}
		p.held[t.Cgroup] = h
		if !t.Fresh {
			p.recall(h)
		}
		if err := p.watch(h); err != nil {
			p.log.WithError(err).Warn("until this cgroup can be watched, other writers are noticed by the periodic check only")
		}
	}
	h.level, h.driver, h.generation, h.fresh = t.Level, t.Driver, p.generation, t.Fresh
	p.set(h, t.Values)
	return h
}

// recall takes the files that an earlier run wrote for ours, so that those that are no longer wanted go back to their default:
// after an upgrade, or a change of the configuration while the plugin was stopped.
func (p *Protector) recall(h *held) {
	if p.journal == nil {
		return
	}
	for i := range h.files {
		h.files[i].ours = p.journal.Unrestored(h.cgroup, protected[i])
	}
}

// set takes over what a cgroup should hold. What is no longer set goes back to the kernel's default, if it was ours.
func (p *Protector) set(h *held, v memoryqos.Values) {
	for i, value := range [...]*uint64{v.Min, v.Low, v.High} {
		f := &h.files[i]
		switch {
		case value != nil:
			f.wanted, f.want = true, *value
		case f.ours, p.systemd != nil && p.systemd.sent(h.cgroup, protected[i]):
			f.wanted, f.want = true, initial[i]
		default:
			f.wanted = false
		}
	}
}

// watch asks for news of the levels that other writers are known to write. Pods are looked at every period: a watch for each
// would cost more than it tells.
func (p *Protector) watch(h *held) error {
	if p.watcher == nil || h.level == cgroup.LevelPod {
		return nil
	}
	return p.watcher.Watch(h.cgroup, string(cgroup.MemoryMin), string(cgroup.MemoryLow))
}

// drop forgets a cgroup.
func (p *Protector) drop(h *held) {
	delete(p.held, h.cgroup)
	if p.watcher != nil && h.level != cgroup.LevelPod {
		p.watcher.Unwatch(h.cgroup)
	}
}

// Overwrites counts the foreign writes found so far.
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

// Close flushes within ctx. On return systemd receives nothing more from this Protector.
func (p *Protector) Close(ctx context.Context) error {
	if p.systemd == nil {
		return nil
	}
	return p.systemd.close(ctx)
}

// unconfirmed reports whether systemd may still write an older value into the files of a cgroup.
func (p *Protector) unconfirmed(dir string) bool { return p.systemd != nil && p.systemd.waits(dir) }

// unit is the systemd unit to set beside a cgroup's files; "" when files are all there is.
func (p *Protector) unit(dir string, driver cgroup.Driver) string {
	if p.systemd == nil || driver != cgroup.Systemd {
		return ""
	}
	return cgroup.Unit(dir)
}

// note enters a knob in the journal, before it is written.
func (p *Protector) note(e Entry) {
	if p.journal != nil {
		p.journal.Note(e)
	}
}

// before is what a file held before our first write, where that is to be given back: a kubelet with MemoryQoS writes a pod's
// values when it makes the cgroup, and never again. Above the pods its sums move with every pod, and an old one would be
// wrong. When the journal was lost, a value of ours is found; it is the one that is wanted.
func (c change) before() string {
	if f := c.file(); c.level == cgroup.LevelPod && f.known && (c.fresh || f.have != f.want) {
		return cgroup.FormatLimit(f.have)
	}
	return ""
}

// forget takes a knob that is back at its default out of the journal.
func (p *Protector) forget(cgroup string, knob cgroup.Knob) {
	if p.journal != nil {
		p.journal.AtDefault(cgroup, knob)
	}
}
