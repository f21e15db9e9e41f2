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

// queue holds the unit properties that systemd has not confirmed. Its own goroutine sends them one call at a time, so that callers wait
// only for the cgroup files. Waiting values of a unit are merged, and the latest one wins. systemd may have received a value without
// answering and may write it to the file later, so a unit stays in the queue until systemd has confirmed its latest values.
type queue struct {
	units Units // nil: files only
	wake  chan struct{}
	stop  context.CancelFunc
	ended chan struct{}

	flushing atomic.Int32 // callers that wait for the queue to be empty

	// Protector.mu guards the following.
	waiting   map[*row]*unitValues
	comparing bool          // the files of a unit that systemd has just confirmed are being compared
	failures  int           // consecutive failed calls
	err       error         // of the last call
	changed   chan struct{} // closed and replaced after each call, and when a unit is removed
	logged    complaint
}

// unitValues are the desired values of one unit. They are immutable: newer values make a new unitValues.
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

// startQueue starts the goroutine; Close ends it.
func (p *Protector) startQueue(units Units) {
	ctx, cancel := context.WithCancel(context.Background())
	p.systemd = queue{
		units: units, wake: make(chan struct{}, 1), stop: cancel, ended: make(chan struct{}),
		waiting: make(map[*row]*unitValues), changed: make(chan struct{}),
	}
	go p.sendLoop(ctx)
}

// unit returns the systemd unit of a cgroup; "" if values are only in files.
func (p *Protector) unit(r *row) string {
	if p.systemd.units == nil || r.driver != cgroup.Systemd {
		return ""
	}
	return cgroup.Unit(r.cgroup)
}

// enqueue queues the value of a file for systemd. The caller holds the lock.
func (p *Protector) enqueue(c change) {
	unit := p.unit(c.row)
	if c.isInner() || unit == "" || property[c.knob()] == "" {
		return
	}
	next := &unitValues{unit: unit, values: map[cgroup.Knob]uint64{}}
	if before := p.systemd.waiting[c.row]; before != nil {
		if value, queued := before.values[c.knob()]; queued && value == c.file().want { // perhaps its call is under way
			return
		}
		maps.Copy(next.values, before.values)
		next.failures = before.failures
	}
	next.values[c.knob()] = c.file().want
	p.systemd.waiting[c.row] = next
	signal(p.systemd.wake)
}

// remove removes a unit. The caller holds Protector.mu.
func (q *queue) remove(r *row) {
	if q.waiting[r] != nil {
		delete(q.waiting, r)
		q.broadcast()
	}
}

// broadcast wakes callers of Flush.
func (q *queue) broadcast() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// sendLoop sends queued values until ctx ends. After a failure the whole queue waits for the retry interval: a systemd that does not
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

// retryDelay returns the time until the next try; 0 if the queue is empty. It removes units whose cgroups are gone, which a systemd that
// does not answer would keep in the queue.
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

func retryInterval(failures int) time.Duration {
	return min(firstRetry<<min(max(failures-1, 0), 5), lastRetry)
}

// sendNext sends the values of one unit and reports whether the next one may follow. systemd then writes all values of the unit to the
// files, so they are compared.
func (p *Protector) sendNext(ctx context.Context) bool {
	r, values := p.nextUnit()
	if r == nil || ctx.Err() != nil {
		return false
	}
	err := p.call(ctx, r, values)
	p.recordCall(ctx, r, values, err)
	if err == nil {
		p.compareConfirmed(r)
	}
	return err == nil
}

// nextUnit chooses the next unit. Units that failed come last, so that one that systemd refuses delays no other. A parent comes before its
// children, because systemd writes the values of a parent again when it changes a child.
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

// call makes one call, unless the cgroup is gone: systemd would load a slice of any name and keep a drop-in for it. If systemd does not know
// the unit, it cannot overwrite the file, so that is no error. ErrNoSystemd is one: a systemd that re-executes itself writes its old values
// afterwards.
func (p *Protector) call(ctx context.Context, r *row, to *unitValues) error {
	there, err := p.tree.Exists(r.cgroup)
	if err != nil || !there {
		return err
	}
	if err = setMemory(ctx, p.systemd.units, p.tree, r.cgroup, to.unit, to.values, &r.overwritten); errors.Is(err, ErrNoUnit) {
		return nil
	}
	return err
}

// recordCall records the result of a call.
func (p *Protector) recordCall(ctx context.Context, r *row, values *unitValues, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &p.systemd
	q.err, q.comparing = err, err == nil
	if q.failures++; err == nil {
		q.failures = 0
	}
	switch newest := q.waiting[r]; {
	case newest == nil: // its cgroup is gone
	case err != nil:
		newest.failures++
	case newest == values:
		delete(q.waiting, r)
	default:
		newest.failures = 0
	}
	q.broadcast()
	if err != nil && ctx.Err() == nil && q.logged.new(err, p.now()) {
		p.log.WithError(err).WithField("units", len(q.waiting)).Warn("systemd has not confirmed properties of units: the cgroup files hold the values, and the call will be repeated")
	}
}

// compareConfirmed compares the files that systemd has written, unless newer values are queued.
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

// unconfirmed reports whether systemd may still write an older value to the files of a cgroup. The caller holds the lock.
func (p *Protector) unconfirmed(r *row) bool { return p.systemd.waiting[r] != nil }

// pending returns the number of unconfirmed units, including the one whose files are being compared; a channel that is closed when the number
// may have changed; and the error of the last call.
func (p *Protector) pending() (units int, changed <-chan struct{}, last error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if units = len(p.systemd.waiting); p.systemd.comparing {
		units++
	}
	return units, p.systemd.changed, p.systemd.err
}

// Unconfirmed returns the number of units whose values systemd has not confirmed. Their cgroup files hold the values.
func (p *Protector) Unconfirmed() int {
	units, _, _ := p.pending()
	return units
}

// Flush waits until systemd has confirmed all values and the files were compared, or until ctx ends. It does not wait if there is no
// systemd.
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

// Close flushes, and waits for writes that have begun, until ctx ends. Call it after Run has ended. On return systemd receives nothing more
// from this Protector, unless ctx ended first.
func (p *Protector) Close(ctx context.Context) error {
	err := p.Flush(ctx)
	if p.systemd.units != nil {
		p.systemd.stop()
		select {
		case <-p.systemd.ended:
		case <-ctx.Done(): // a call waits for a cgroup
		}
	}
	return errors.Join(err, p.awaitSlow(ctx))
}

// signal wakes the receiver of a channel.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is awake already
	}
}
