package protect

import (
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// Options are what a Protector works with.
type Options struct {
	Tree    *cgroupfs.Tree
	Units   Units             // nil: files only
	Journal *Journal          // nil: none is kept
	Watcher *cgroupfs.Watcher // nil: repairs happen at Reconcile only
	// Changed, if set, receives what the watcher tells Run. It must not wait.
	Changed func(map[cgroupfs.Change]bool)
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
	tree     *cgroupfs.Tree
	systemd  queue
	journal  *Journal
	onChange func(map[cgroupfs.Change]bool) // Options.Changed
	log      logrus.FieldLogger
	page     uint64
	now      func() time.Time

	writeSlot  chan bool     // is full while somebody writes files of protection; taken before mu
	writeLimit time.Duration // WriteLimit

	mu          sync.Mutex        // held for no wait and no system call on a cgroup: see outside
	watcher     *cgroupfs.Watcher // nil where the kernel tells of nothing
	rows        map[string]*row
	dirty       map[*row]bool  // what Apply has to look at
	delayed     map[*row]files // those of which the kernel told, or with a repair that waits
	watchFailed bool           // a cgroup could not be watched, in the log
	lanes       [2]*lane
	migration   uint64 // most bytes of a running container that a write may move
	repairs     Repairs
	overwrites  map[Overwrite]uint64
	lastLogged  map[Overwrite]time.Time // when such an overwrite was last logged
	complaint   complaint
	unwritable  complaint // of containers

	lateDue   chan struct{} // Run has late writes to make
	repairDue chan struct{} // it has delayed files to look at
	slow      sync.Map      // channels that are closed when a slow write has returned
}

// outside makes a system call on a cgroup without mu, which the runtime's events wait for. Its caller holds mu; rows and files may have
// changed or ended afterwards.
func (p *Protector) outside(call func()) {
	p.mu.Unlock()
	defer p.mu.Lock()
	call()
}

// ended is Tree.Ended for a caller that holds mu.
func (p *Protector) ended(dir string) (ended bool) {
	p.outside(func() { ended = p.tree.Ended(dir) })
	return ended
}

// New makes a Protector with an empty table.
func New(o Options) *Protector {
	p := &Protector{
		tree: o.Tree, journal: o.Journal, watcher: o.Watcher, onChange: o.Changed, log: o.Log, page: uint64(o.PageSize), now: o.Now,
		migration: o.Migration,
		rows:      make(map[string]*row), delayed: make(map[*row]files), lateDue: make(chan struct{}, 1), repairDue: make(chan struct{}, 1), writeSlot: make(chan bool, 1), writeLimit: WriteLimit,
		dirty: make(map[*row]bool), lanes: [2]*lane{newLane(raising, 0), newLane(checking, slowWrites)},
		overwrites: make(map[Overwrite]uint64), lastLogged: make(map[Overwrite]time.Time),
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
