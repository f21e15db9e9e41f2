package protect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// queue sends the properties of units to systemd: one call at a time, each with a deadline, in a goroutine of its own, so that
// whoever sets a value waits for the cgroup file only. The values of a unit that wait are merged, and the latest one wins.
// systemd may have received a value without answering, and writes it into the file at any later time: a unit stays in the
// queue until systemd has confirmed its latest values.
type queue struct {
	units Units
	tree  *cgroupfs.Tree
	log   logrus.FieldLogger
	// confirmed receives the values that systemd has confirmed; for a cgroup that is gone, those that no longer matter.
	confirmed func(dir string, values map[cgroup.Knob]uint64)

	wake  chan struct{}
	stop  context.CancelFunc
	ended chan struct{}

	mu       sync.Mutex
	waiting  map[string]*queued // by cgroup
	failures int                // calls that failed since one was confirmed
	err      error              // of the last call; nil where it was confirmed
	flushing int                // callers that wait for the queue to be empty
	changed  chan struct{}      // closed and renewed after each call, and when a unit is taken out
	logged   complaint
}

// queued is what systemd is to hold for one unit.
type queued struct {
	unit     string
	values   map[cgroup.Knob]uint64
	version  int // grows with every change
	failures int
}

const (
	// batch is how many units are chosen at a time, those nearest to the root first.
	batch = 64
	// callTimeout bounds one call: a daemon-reload of a busy node takes seconds.
	callTimeout = 10 * time.Second
	// firstRetry is the retry interval after one failure; it doubles up to lastRetry.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// flushRetry is the retry interval while a caller waits for the queue to be empty.
	flushRetry = 100 * time.Millisecond
)

// newQueue starts the goroutine, which close ends.
func newQueue(units Units, tree *cgroupfs.Tree, log logrus.FieldLogger, confirmed func(string, map[cgroup.Knob]uint64)) *queue {
	ctx, cancel := context.WithCancel(context.Background())
	q := &queue{
		units: units, tree: tree, log: log, confirmed: confirmed, wake: make(chan struct{}, 1), stop: cancel,
		ended: make(chan struct{}), waiting: make(map[string]*queued), changed: make(chan struct{}),
	}
	go q.run(ctx)
	return q
}

// set adds values of a unit. It does not wait for systemd.
func (q *queue) set(dir, unit string, values map[cgroup.Knob]uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.waiting[dir]
	if p == nil {
		p = &queued{values: make(map[cgroup.Knob]uint64, len(values))}
		q.waiting[dir] = p
	}
	p.unit, p.version = unit, p.version+1
	maps.Copy(p.values, values)
	poke(q.wake)
}

// waits reports whether systemd has yet to confirm a value of a cgroup.
func (q *queue) waits(dir string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting[dir] != nil
}

// length is how many units systemd has yet to confirm.
func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// run sends whatever waits until ctx ends. After a failure everything waits for the retry interval: a systemd that does not
// answer one call does not answer the next.
func (q *queue) run(ctx context.Context) {
	defer close(q.ended)
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		case <-q.wake:
			if q.failing() {
				continue // the timer is running
			}
		}
		for q.sendBatch(ctx) {
		}
		if q.length() > 0 {
			q.prune()
			retry.Reset(q.interval())
		}
	}
}

// prune takes out the units whose cgroups are gone, which a systemd that answers nothing would otherwise keep.
func (q *queue) prune() {
	q.mu.Lock()
	dirs := slices.Collect(maps.Keys(q.waiting))
	q.mu.Unlock()
	for _, dir := range dirs {
		if there, err := q.tree.Exists(dir); there || err != nil {
			continue
		}
		q.mu.Lock()
		p := q.waiting[dir]
		delete(q.waiting, dir)
		q.hasChanged()
		q.mu.Unlock()
		if p != nil {
			q.confirmed(dir, p.values)
		}
	}
}

func (q *queue) failing() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failures > 0 && q.flushing == 0
}

// interval is how long to wait before the next try where nothing new comes.
func (q *queue) interval() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flushing > 0 {
		return flushRetry
	}
	return retryInterval(q.failures)
}

// retryInterval is the wait after so many failures.
func retryInterval(failures int) time.Duration {
	if failures > 5 {
		return lastRetry
	}
	return min(firstRetry<<max(failures-1, 0), lastRetry)
}

// sendBatch sends a bounded number of units, and reports whether there are more that can be sent now.
func (q *queue) sendBatch(ctx context.Context) (more bool) {
	dirs, more := q.next()
	for _, dir := range dirs {
		if ctx.Err() != nil || q.send(ctx, dir) != nil {
			return false
		}
	}
	return more
}

// next chooses the units to send: those that failed come last, so that one that systemd refuses keeps no other waiting; and a
// parent comes before its children, for systemd writes the values of a parent again when it changes a child.
func (q *queue) next() (dirs []string, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	dirs = slices.SortedFunc(maps.Keys(q.waiting), func(a, b string) int {
		return cmp.Or(cmp.Compare(q.waiting[a].failures, q.waiting[b].failures), cmp.Compare(depth(a), depth(b)), cmp.Compare(a, b))
	})
	more = len(dirs) > batch
	return dirs[:min(len(dirs), batch)], more
}

// send sends the values of one unit.
func (q *queue) send(ctx context.Context, dir string) error {
	q.mu.Lock()
	p := q.waiting[dir]
	if p == nil {
		q.mu.Unlock()
		return nil
	}
	unit, values, version := p.unit, maps.Clone(p.values), p.version
	q.mu.Unlock()
	err := q.call(ctx, dir, unit, values)
	q.mu.Lock()
	q.err = err
	if err != nil {
		q.failures++
		p.failures++
	} else {
		q.failures, p.failures = 0, 0
		if p.version == version {
			delete(q.waiting, dir)
		}
	}
	q.hasChanged()
	waiting, worth := len(q.waiting), err != nil && ctx.Err() == nil && q.logged.new(err, time.Now())
	q.mu.Unlock()
	if err == nil {
		q.confirmed(dir, values)
	}
	if worth {
		q.log.WithError(err).WithField("units", waiting).Warn("systemd has not confirmed properties of units: the cgroup files hold the values, and the call is repeated")
	}
	return err
}

// hasChanged has those look again that flush. The caller holds the lock.
func (q *queue) hasChanged() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// call makes one call. A unit whose cgroup is gone receives nothing: systemd would load a slice of any name and keep a drop-in
// for it. Where systemd does not know the unit, nothing can overwrite the file. A systemd that is not there may be executing
// itself again, and then writes what it held before.
func (q *queue) call(ctx context.Context, dir, unit string, values map[cgroup.Knob]uint64) error {
	there, err := q.tree.Exists(dir)
	if err != nil || !there {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err = q.units.SetMemory(ctx, unit, values); errors.Is(err, ErrNoUnit) {
		return nil
	}
	return err
}

// flush waits until systemd has confirmed everything, or ctx ends. It does not wait for a systemd that is not there.
func (q *queue) flush(ctx context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushing++
	defer func() { q.flushing-- }()
	poke(q.wake)
	for len(q.waiting) > 0 {
		changed := q.changed
		q.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-q.ended:
			err = fs.ErrClosed
		case <-ctx.Done():
			err = ctx.Err()
		}
		q.mu.Lock()
		if err == nil && errors.Is(q.err, ErrNoSystemd) {
			err = q.err
		}
		if err != nil && len(q.waiting) > 0 {
			return fmt.Errorf("%d units have properties that systemd has not confirmed: %w", len(q.waiting), cmp.Or(q.err, err))
		}
	}
	return nil
}

// close flushes within ctx and ends the goroutine. On return nothing is sent any more.
func (q *queue) close(ctx context.Context) error {
	err := q.flush(ctx)
	q.stop()
	<-q.ended
	return err
}

// poke has the receiver of a channel look for work.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will
	}
}
