package protect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// queue has the properties of units that systemd has yet to confirm. They are sent one call at a time by a
// goroutine of their own, so that whoever sets a value waits for the cgroup file only. The values of a unit that wait are merged,
// and the latest one wins. systemd may have received a value without answering, and writes it into the file at any later time: a
// unit stays in the queue until systemd has confirmed its latest values.
type queue struct {
	units Units // nil: files only
	wake  chan struct{}
	stop  context.CancelFunc
	ended chan struct{}

	flushing atomic.Int32 // callers that wait for the queue to be empty

	// Protector.mu is held for these.
	waiting   map[*row]*unitValues
	comparing bool          // the files of a unit that systemd has just confirmed
	failures  int           // calls that failed since one was confirmed
	err       error         // of the last call; nil where it was confirmed
	changed   chan struct{} // closed and renewed after each call, and when a unit is taken out
	logged    complaint
}

// unitValues is what systemd is to hold for one unit. Its values are not changed: newer ones are another queued.
type unitValues struct {
	unit     string
	values   map[cgroup.Knob]uint64
	failures int
}

const (
	// firstRetry is the retry interval after one failure; it doubles up to lastRetry.
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// flushRetry is the retry interval while a caller waits for the queue to be empty.
	flushRetry = 100 * time.Millisecond
)

// startQueue starts the goroutine, which Close ends.
func (p *Protector) startQueue(units Units) {
	ctx, cancel := context.WithCancel(context.Background())
	p.systemd = queue{
		units: units, wake: make(chan struct{}, 1), stop: cancel, ended: make(chan struct{}),
		waiting: make(map[*row]*unitValues), changed: make(chan struct{}),
	}
	go p.sendLoop(ctx)
}

// unit is the systemd unit that is to hold the values of a cgroup; "" where there are files only.
func (p *Protector) unit(r *row) string {
	if p.systemd.units == nil || r.driver != cgroup.Systemd {
		return ""
	}
	return cgroup.Unit(r.cgroup)
}

// enqueue has systemd receive the value of a file. The lock is held.
func (p *Protector) enqueue(c change) {
	unit := p.unit(c.row)
	if c.isInner() || unit == "" || property[c.knob()] == "" {
		return
	}
	next := &unitValues{unit: unit, values: map[cgroup.Knob]uint64{}}
	if before := p.systemd.waiting[c.row]; before != nil {
		maps.Copy(next.values, before.values)
		next.failures = before.failures
	}
	next.values[c.knob()] = c.file().want
	p.systemd.waiting[c.row] = next
	signal(p.systemd.wake)
}

// remove takes a unit out. Protector.mu is held.
func (q *queue) remove(r *row) {
	if q.waiting[r] != nil {
		delete(q.waiting, r)
		q.broadcast()
	}
}

// broadcast has those look again that flush.
func (q *queue) broadcast() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// sendLoop sends whatever waits until ctx ends. After a failure everything waits for the retry interval: a systemd that does not
// answer one call does not answer the next.
func (p *Protector) sendLoop(ctx context.Context) {
	defer close(p.systemd.ended)
	retry := time.NewTimer(0)
	defer retry.Stop()
	var pause time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		case <-p.systemd.wake:
			if pause > 0 && p.systemd.failures > 0 && p.systemd.flushing.Load() == 0 {
				continue // the timer is running
			}
		}
		for p.sendNext(ctx) {
		}
		if pause = p.retryDelay(); pause > 0 {
			retry.Reset(pause)
		}
	}
}

// retryDelay is how long to wait before the next try where nothing new comes; 0 where nothing waits. Units whose cgroups are gone, which
// a systemd that answers nothing would otherwise keep, are taken out.
func (p *Protector) retryDelay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &p.systemd
	for _, r := range slices.Collect(maps.Keys(q.waiting)) {
		if p.ended(r.cgroup) {
			q.remove(r)
		}
	}
	switch {
	case len(q.waiting) == 0:
		return 0
	case q.flushing.Load() > 0:
		return flushRetry
	}
	return retryInterval(q.failures)
}

// retryInterval is the wait after so many failures.
func retryInterval(failures int) time.Duration {
	return min(firstRetry<<min(max(failures-1, 0), 5), lastRetry)
}

// sendNext sends the values of one unit, and reports whether another may follow. systemd then writes all values of the unit into the
// files, so that they are compared.
func (p *Protector) sendNext(ctx context.Context) bool {
	r, values := p.nextUnit()
	if r == nil || ctx.Err() != nil {
		return false
	}
	err := p.call(ctx, r.cgroup, values)
	p.recordCall(ctx, r, values, err)
	if err == nil {
		p.compareConfirmed(r)
	}
	return err == nil
}

// nextUnit chooses the unit to send: those that failed come last, so that one that systemd refuses keeps no other waiting; and a
// parent comes before its children, for systemd writes the values of a parent again when it changes a child.
func (p *Protector) nextUnit() (next *row, values *unitValues) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r, q := range p.systemd.waiting {
		if next == nil || cmp.Or(q.failures-values.failures, r.depth-next.depth, cmp.Compare(r.cgroup, next.cgroup)) < 0 {
			next, values = r, q
		}
	}
	return next, values
}

// call makes one call. A unit whose cgroup is gone receives nothing: systemd would load a slice of any name and keep a drop-in
// for it. Where systemd does not know the unit, nothing can overwrite the file. A systemd that is not there may be executing
// itself again, and then writes what it held before.
func (p *Protector) call(ctx context.Context, dir string, to *unitValues) error {
	there, err := p.tree.Exists(dir)
	if err != nil || !there {
		return err
	}
	if err = setMemory(ctx, p.systemd.units, p.tree, dir, to.unit, to.values); errors.Is(err, ErrNoUnit) {
		return nil
	}
	return err
}

// recordCall enters what came of a call.
func (p *Protector) recordCall(ctx context.Context, r *row, values *unitValues, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &p.systemd
	q.err, q.comparing = err, err == nil
	if q.failures++; err == nil {
		q.failures = 0
	}
	switch newest := q.waiting[r]; {
	case newest == nil: // its cgroup is gone meanwhile
	case err != nil:
		newest.failures++
	case newest == values:
		delete(q.waiting, r)
	default:
		newest.failures = 0
	}
	q.broadcast()
	if err != nil && ctx.Err() == nil && q.logged.new(err, p.now()) {
		p.log.WithError(err).WithField("units", len(q.waiting)).Warn("systemd has not confirmed properties of units: the cgroup files hold the values, and the call is repeated")
	}
}

// compareConfirmed compares the files that systemd has written, where it has no newer values to write.
func (p *Protector) compareConfirmed(r *row) {
	_, err := p.reconcile(context.Background(), periodic, func() []*row {
		if p.unconfirmed(r) {
			return nil
		}
		return []*row{r}
	})
	if err != nil {
		p.complain(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.systemd.comparing = false
	p.systemd.broadcast()
}

// unconfirmed reports whether systemd may still write an older value into the files of a cgroup. The lock is held.
func (p *Protector) unconfirmed(r *row) bool { return p.systemd.waiting[r] != nil }

// pending is how many units systemd has yet to confirm, with the one whose files are being compared; a channel that is closed when
// that may have changed; and the error of the last call.
func (p *Protector) pending() (units int, changed <-chan struct{}, last error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if units = len(p.systemd.waiting); p.systemd.comparing {
		units++
	}
	return units, p.systemd.changed, p.systemd.err
}

// Unconfirmed is how many units have values that systemd has not confirmed yet, with the one whose files are being compared. The files
// of their cgroups hold the values.
func (p *Protector) Unconfirmed() int {
	units, _, _ := p.pending()
	return units
}

// Flush waits until systemd has confirmed all values and the files were compared, or ctx ends. It does not wait for a systemd that is
// not there.
func (p *Protector) Flush(ctx context.Context) error {
	q := &p.systemd
	q.flushing.Add(1)
	defer q.flushing.Add(-1)
	units, changed, _ := p.pending()
	if units > 0 {
		signal(q.wake)
	}
	for units > 0 {
		var err error
		select {
		case <-changed:
		case <-q.ended:
			err = fs.ErrClosed
		case <-ctx.Done():
			err = ctx.Err()
		}
		var last error
		units, changed, last = p.pending()
		if err == nil && errors.Is(last, ErrNoSystemd) {
			err = last
		}
		if err != nil && units > 0 {
			return fmt.Errorf("%d units have properties that systemd has not confirmed: %w", units, cmp.Or(last, err))
		}
	}
	return nil
}

// Close flushes within ctx, and waits as long for the writes that have begun; Run has ended. On return systemd receives nothing more
// from this Protector, unless ctx ended first.
func (p *Protector) Close(ctx context.Context) error {
	err := p.Flush(ctx)
	if p.systemd.units != nil {
		p.systemd.stop()
		select {
		case <-p.systemd.ended:
		case <-ctx.Done(): // it waits for a cgroup
		}
	}
	return errors.Join(err, p.awaitSlow(ctx))
}

// signal has the receiver of a channel look for work.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will
	}
}
