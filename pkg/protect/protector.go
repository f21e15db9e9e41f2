package protect

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// Options are the inputs of New.
type Options struct {
	Tree    *cgroupfs.Tree
	Units   Units             // nil: files only
	Journal *Journal          // nil: no journal
	Watcher *cgroupfs.Watcher // nil: repairs happen at Reconcile only
	// Changed, if set, receives the watcher's changes. It must not block.
	Changed func(map[cgroupfs.Change]bool)
	Log     logrus.FieldLogger
	// Migration is the initial bound of BoundMigration.
	Migration uint64
	// PageSize in bytes, to which the kernel rounds values down; 0 takes the tree's.
	PageSize int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Protector has a table of the desired and last known values of cgroups. It is safe for concurrent use.
type Protector struct {
	tree     *cgroupfs.Tree
	systemd  queue
	journal  *Journal
	onChange func(map[cgroupfs.Change]bool) // Options.Changed
	log      logrus.FieldLogger
	page     uint64
	now      func() time.Time

	writeSlot  chan bool     // full during fast writes; taken before mu
	writeLimit time.Duration // WriteLimit
	late       atomic.Int32  // fast writes that have not returned within it

	mu          sync.Mutex        // not held during waits and system calls on cgroups: see outside
	watcher     *cgroupfs.Watcher // nil if nothing is watched
	rows        map[string]*row
	dirty       map[*row]bool  // for the next Apply
	unwritten   map[*row]bool  // protection for the next pass, whatever it compares
	notes       uint64         // in the journal, new ones
	delayed     map[*row]files // files that inotify reported or whose repair is delayed
	watchFailed bool           // logged: a cgroup could not be watched
	lanes       [2]*lane
	migration   uint64 // bytes of a running container that one write may move at most
	repairs     Repairs
	overwrites  map[Overwrite]uint64
	lastLogged  map[Overwrite]time.Time // last log line of each
	complaint   complaint
	unwritable  complaint // about containers

	lateDue   chan struct{} // wakes Run for late writes
	repairDue chan struct{} // wakes Run for delayed files
	slow      sync.Map      // channels that are closed when a slow write has returned
}

// outside makes a system call on a cgroup without mu, because the runtime's events wait for mu. The caller holds mu; afterwards rows and files
// may have changed or ended.
func (p *Protector) outside(call func()) {
	p.mu.Unlock()
	defer p.mu.Lock()
	call()
}

// ended is Tree.Ended for callers that hold mu.
func (p *Protector) ended(dir string) (ended bool) {
	p.outside(func() { ended = p.tree.Ended(dir) })
	return ended
}

// New returns a Protector with an empty table.
func New(o Options) *Protector {
	p := &Protector{
		tree: o.Tree, journal: o.Journal, watcher: o.Watcher, onChange: o.Changed, log: o.Log, page: uint64(o.PageSize), now: o.Now,
		migration: o.Migration, notes: 1,
		rows: make(map[string]*row), delayed: make(map[*row]files), lateDue: make(chan struct{}, 1), repairDue: make(chan struct{}, 1), writeSlot: make(chan bool, 1), writeLimit: WriteLimit,
		dirty: make(map[*row]bool), unwritten: make(map[*row]bool), lanes: [2]*lane{newLane(raising, 0), newLane(checking, slowWrites)},
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
