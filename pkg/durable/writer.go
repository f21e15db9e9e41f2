package durable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// After a failed write the next one comes by itself: after firstRetry, then after twice the time, at most after maxRetry.
const (
	firstRetry = time.Second
	maxRetry   = 30 * time.Second
)

// lazy is how long deferred content waits for a write that something else asks for, and Sync for more to be written.
const lazy = time.Second

// longestAwait bounds how long Await waits. A disk takes less, unless it hangs.
const longestAwait = 500 * time.Millisecond

// ErrClosed is the error of content that was submitted after Close.
var ErrClosed = errors.New("the writer is closed")

// Options are what a Writer is made of.
type Options struct {
	// Path is the file.
	Path string
	// Interval is the least time between two writes that nobody has asked for with Flush.
	Interval time.Duration
	// Write replaces the file; nil is WriteFile with mode 0600.
	Write func(data []byte) error
	// Sync is for a Write that leaves content in the kernel alone, and nil otherwise: it is called within a second of each Write that
	// went well, and by Close; nobody else waits for it. Where it fails, the content is written again.
	Sync func() error
}

// Content returns a file's newest content, appended to an empty buffer or in a slice of its own; it is the writer's then.
// The writer calls it without a lock of its own.
type Content func(buffer []byte) ([]byte, error)

// Writer replaces a file from one goroutine: what is submitted while a write is under way shares the next one. Its methods
// are safe for concurrent use, and none but Ticket.Wait, Await and Close waits for the disk.
type Writer struct {
	path     string
	write    func(data []byte) error
	sync     func() error
	interval time.Duration
	retry    time.Duration // after the first failure
	lazy     time.Duration

	start  sync.Once
	work   chan struct{} // has room for one: something is pending, or the writer is closed
	urgent chan struct{} // has room for one: do not wait for the interval
	ended  chan struct{} // closed when the goroutine has ended

	buffer []byte        // the goroutine's
	syncs  chan struct{} // holds one while a Sync is under way

	mu       sync.Mutex
	content  Content // the newest
	next     *round  // the write that will contain it; nil when all is written or in writing
	writing  *round  // the write under way, nil when there is none
	closed   bool
	last     error     // of the last write
	lost     error     // of the last Sync
	unsynced bool      // Sync follows
	syncing  time.Time // when the Sync under way has begun
	stats    Stats
}

// A round is one write; those whose content it has wait for it.
type round struct {
	path  string
	since time.Time // when the oldest change in it was submitted
	began time.Time // the write
	done  chan struct{}
	err   error // set before done is closed
}

func (w *Writer) newRound(since time.Time) *round {
	return &round{path: w.path, since: since, done: make(chan struct{})}
}

// NewWriter returns a writer. Its goroutine starts with the first Submit; the caller ends it with Close.
func NewWriter(o Options) *Writer {
	w := &Writer{
		path: o.Path, write: o.Write, sync: o.Sync, interval: o.Interval, retry: firstRetry, lazy: lazy,
		work: make(chan struct{}, 1), urgent: make(chan struct{}, 1), ended: make(chan struct{}),
		syncs: make(chan struct{}, 1),
	}
	if w.write == nil {
		w.write = func(data []byte) error { return WriteFile(o.Path, data, 0o600) }
	}
	return w
}

// Submit has newer content written. It replaces what was submitted before and is not written yet.
func (w *Writer) Submit(content Content) Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replace(content)
	return w.pending()
}

// Defer is Submit for content that nobody waits for: it is written along with what is submitted next, and after a second at the
// latest. A crash may lose it until then.
func (w *Writer) Defer(content Content) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.replace(content) {
		time.AfterFunc(w.lazy, func() { w.Flush() })
	}
}

// replace has newer content in the next write, and reports whether there was nothing for it before. The lock is held.
func (w *Writer) replace(content Content) (first bool) {
	w.content = content
	if first = w.next == nil; first {
		w.next = w.newRound(time.Now())
	}
	return first
}

// Flush has what is pending written without delay, after a failed write too. The ticket stands for all that was submitted.
func (w *Writer) Flush() Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil {
		poke(w.urgent)
	}
	return w.pending()
}

// pending returns the ticket of the newest content. The lock is held.
func (w *Writer) pending() Ticket {
	switch {
	case w.next == nil:
		return Ticket{w.writing}
	case w.closed:
		refused := w.newRound(w.next.since)
		refused.err = fmt.Errorf("write %s: %w", w.path, ErrClosed)
		close(refused.done)
		return Ticket{refused}
	}
	w.start.Do(func() { go w.run() })
	poke(w.work)
	return Ticket{w.next}
}

// poke wakes a goroutine that listens, now or when it next does.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *Writer) run() {
	defer close(w.ended)
	retry, pause := time.NewTimer(w.retry), w.retry
	retry.Stop()
	for {
		select {
		case <-w.work:
		case <-retry.C:
		}
		closed, err := w.writePending()
		switch {
		case closed:
			w.syncWritten()
			return
		case err != nil:
			retry.Reset(pause)
			pause = min(2*pause, maxRetry)
		default:
			pause = w.retry
		}
		if w.interval > 0 {
			select {
			case <-w.urgent:
			case <-time.After(w.interval):
			}
		}
	}
}

// writePending writes what is pending, if anything is. It reports whether the writer was closed before.
func (w *Writer) writePending() (closed bool, err error) {
	r, content, closed := w.begin()
	if r == nil {
		return closed, nil
	}
	data, err := content(w.buffer[:0])
	if err != nil {
		err = fmt.Errorf("encode %s: %w", w.path, err)
	} else {
		w.buffer = data
		err = w.write(data)
	}
	w.finish(r, err, len(data))
	return closed, err
}

// begin takes what is pending for a write; without a round nothing is.
func (w *Writer) begin() (r *round, content Content, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing, w.next = w.next, nil; w.writing != nil {
		w.writing.began = time.Now()
	}
	return w.writing, w.content, w.closed
}

// finish counts a write and answers everyone who waits for it.
func (w *Writer) finish(r *round, err error, size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Seconds += time.Since(r.began).Seconds()
	if err != nil {
		w.stats.Failures++
		if w.next == nil {
			w.next = w.newRound(r.since)
		}
		w.next.since = r.since
	} else {
		w.stats.Writes++
		w.stats.Size = size
		if w.sync != nil && !w.unsynced {
			w.unsynced = true
			time.AfterFunc(w.lazy, w.syncWritten)
		}
	}
	w.last, w.writing = err, nil
	r.err = err
	close(r.done)
}

// syncWritten calls Sync, if a write has ended well since the last one. No write waits for it.
func (w *Writer) syncWritten() {
	w.syncs <- struct{}{}
	defer func() { <-w.syncs }()
	if w.beginSync() {
		w.finishSync(w.sync())
	}
}

func (w *Writer) beginSync() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	due := w.unsynced
	w.unsynced = false
	if due {
		w.syncing = time.Now()
	}
	return due
}

// finishSync counts a Sync. The kernel keeps no content that the disk has refused (fsync(2)): another Sync would go well without it.
func (w *Writer) finishSync(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Seconds += time.Since(w.syncing).Seconds()
	w.lost, w.syncing = err, time.Time{}
	if err != nil {
		w.stats.Failures++
		w.replace(w.content)
		w.pending()
	}
}

// Close writes what is pending, tries once more what failed, and ends the writer. The error is the last write's, or the
// context's when the disk does not answer.
func (w *Writer) Close(ctx context.Context) error {
	w.refuse()
	select {
	case <-w.ended:
		w.mu.Lock()
		defer w.mu.Unlock()
		return cmp.Or(w.last, w.lost)
	case <-ctx.Done():
		return fmt.Errorf("write %s: %w", w.path, ctx.Err())
	}
}

// refuse lets nothing more be submitted, and has the goroutine end.
func (w *Writer) refuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.start.Do(func() { close(w.ended) }) // nothing was ever submitted
	poke(w.work)
	poke(w.urgent)
}

// Ticket stands for submitted content on its way to the disk. The zero Ticket is content that is there already.
type Ticket struct{ round *round }

// Wait returns when a write that has the content has ended, or has failed, or with the context's error. What a failed
// write had is part of the next one, which the writer tries by itself after a while.
func (t Ticket) Wait(ctx context.Context) error {
	if t.round == nil {
		return nil
	}
	select {
	case <-t.round.done:
	case <-ctx.Done():
		select {
		case <-t.round.done: // no less
		default:
			return fmt.Errorf("write %s: %w", t.round.path, ctx.Err())
		}
	}
	return t.round.err
}

// Await is Ticket.Wait for a caller that must not wait for a disk that hangs: it waits half a second, and not at all where a write has
// taken longer than that and has not ended.
func (w *Writer) Await(ctx context.Context, t Ticket) error {
	waiting, cancel := context.WithTimeout(ctx, w.patience())
	defer cancel()
	return t.Wait(waiting)
}

// patience is for how long Await waits.
func (w *Writer) patience() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing != nil && time.Since(w.writing.began) >= longestAwait {
		return 0
	}
	return longestAwait
}

// Stats are a Writer's counters since its start.
type Stats struct {
	// Writes and Failures are how many writes ended well and badly, Seconds the time spent in both.
	Writes, Failures uint64
	Seconds          float64
	// Size is the file's size in bytes, as last written.
	Size int
	// Pending is set while something submitted is not written, and during a Sync; PendingSince is since when.
	Pending      bool
	PendingSince time.Time
	// LastError is the text of the error of the last write, or of the last Sync; empty when they went well.
	LastError string
}

// Stats returns the counters.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	stats := w.stats
	stats.Pending, stats.PendingSince = !w.syncing.IsZero(), w.syncing
	for _, r := range []*round{w.next, w.writing} { // the older one last
		if r != nil {
			stats.Pending, stats.PendingSince = true, r.since
		}
	}
	if err := cmp.Or(w.last, w.lost); err != nil {
		stats.LastError = err.Error()
	}
	return stats
}
