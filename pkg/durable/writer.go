package durable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A failed write is retried after firstRetry, then after twice the time, at most after maxRetry.
const (
	firstRetry = time.Second
	maxRetry   = 30 * time.Second
)

// deferDelay is how long deferred content waits for another write, and how long Sync waits for further writes.
const deferDelay = time.Second

// maxAwait bounds how long Await waits. A disk takes less, unless it hangs.
const maxAwait = 500 * time.Millisecond

// ErrClosed is the error of content that is submitted after Close.
var ErrClosed = errors.New("the writer is closed")

// Options are the inputs of NewWriter.
type Options struct {
	// Path is the file.
	Path string
	// Interval is the least time between two writes, unless Flush is called.
	Interval time.Duration
	// Write replaces the file; nil is WriteFile with mode 0600.
	Write func(data []byte) error
	// Sync writes to disk what Write has left in the kernel; nil if Write does that itself. It is called within a second of each
	// successful Write, and by Close; no write waits for it. If it fails, the content is written again.
	Sync func() error
}

// Content appends a file's newest content to an empty buffer, or returns its own slice; the writer owns the result. The writer calls it
// without holding its lock.
type Content func(buffer []byte) ([]byte, error)

// Writer replaces a file from one goroutine. Content that is submitted during a write shares the next write. Its methods are safe for
// concurrent use. Only Ticket.Wait, Await and Close wait for the disk.
type Writer struct {
	path     string
	write    func(data []byte) error
	sync     func() error
	interval time.Duration
	retry    time.Duration // after the first failure
	delay    time.Duration

	start  sync.Once
	work   chan struct{} // buffered: something is pending, or the writer is closed
	urgent chan struct{} // buffered: do not wait for the interval
	ended  chan struct{} // closed when the goroutine has ended

	buffer []byte        // the goroutine's
	syncs  chan struct{} // a semaphore: one Sync at a time

	mu        sync.Mutex
	content   Content // the newest
	next      *round  // the write that will contain it; nil if none is due
	writing   *round  // the current write; nil if there is none
	closed    bool
	writeErr  error     // of the last write
	syncErr   error     // of the last Sync
	unsynced  bool      // a Sync is due
	syncBegan time.Time // start of the current Sync
	stats     Stats
}

// round is one write. The tickets of the content that it writes wait for it.
type round struct {
	path  string
	since time.Time // when its oldest change was submitted
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
		path: o.Path, write: o.Write, sync: o.Sync, interval: o.Interval, retry: firstRetry, delay: deferDelay,
		work: make(chan struct{}, 1), urgent: make(chan struct{}, 1), ended: make(chan struct{}),
		syncs: make(chan struct{}, 1),
	}
	if w.write == nil {
		w.write = func(data []byte) error { return WriteFile(o.Path, data, 0o600) }
	}
	return w
}

// Submit starts a write of newer content. It replaces submitted content that is not written yet.
func (w *Writer) Submit(content Content) Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replace(content)
	return w.pending()
}

// Defer is Submit for content that can wait: it is written with the next submitted content, or after a second. Until then a crash may lose
// it.
func (w *Writer) Defer(content Content) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.replace(content) {
		time.AfterFunc(w.delay, func() { w.Flush() })
	}
}

// replace puts newer content into the next write, and reports whether that write is new. The caller holds the lock.
func (w *Writer) replace(content Content) (first bool) {
	w.content = content
	if first = w.next == nil; first {
		w.next = w.newRound(time.Now())
	}
	return first
}

// Flush writes pending content without delay, even after a failed write. The ticket stands for everything that was submitted.
func (w *Writer) Flush() Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil {
		wake(w.urgent)
	}
	return w.pending()
}

// pending returns the ticket of the newest content. The caller holds the lock.
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
	wake(w.work)
	return Ticket{w.next}
}

// wake wakes the goroutine that receives from c, now or when it receives next.
func wake(c chan struct{}) {
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

// writePending writes pending content, if any. It reports whether the writer was closed before.
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

// begin starts a write of pending content; r is nil if there is none.
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
			time.AfterFunc(w.delay, w.syncWritten)
		}
	}
	w.writeErr, w.writing = err, nil
	r.err = err
	close(r.done)
}

// syncWritten calls Sync, if a write has succeeded since the last one. No write waits for it.
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
		w.syncBegan = time.Now()
	}
	return due
}

// finishSync counts a Sync. If it failed, the content is written again: the kernel drops content that the disk has refused (fsync(2)), so
// another Sync would succeed without it.
func (w *Writer) finishSync(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Seconds += time.Since(w.syncBegan).Seconds()
	w.syncErr, w.syncBegan = err, time.Time{}
	if err != nil {
		w.stats.Failures++
		w.replace(w.content)
		w.pending()
	}
}

// Close writes pending content, retries a failed write once, and ends the writer. The error is the last write's, or the context's if the
// disk does not answer.
func (w *Writer) Close(ctx context.Context) error {
	w.refuse()
	select {
	case <-w.ended:
		w.mu.Lock()
		defer w.mu.Unlock()
		return cmp.Or(w.writeErr, w.syncErr)
	case <-ctx.Done():
		return fmt.Errorf("write %s: %w", w.path, ctx.Err())
	}
}

// refuse makes further submits fail and ends the goroutine.
func (w *Writer) refuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.start.Do(func() { close(w.ended) }) // nothing was ever submitted
	wake(w.work)
	wake(w.urgent)
}

// Ticket stands for submitted content that is being written. The zero Ticket is content that is written already.
type Ticket struct{ round *round }

// Wait returns when a write of the content has ended or failed, or the context has. After a failure the content is part of the next write,
// which the writer retries by itself.
func (t Ticket) Wait(ctx context.Context) error {
	if t.round == nil {
		return nil
	}
	select {
	case <-t.round.done:
	case <-ctx.Done():
		select {
		case <-t.round.done: // both were ready
		default:
			return fmt.Errorf("write %s: %w", t.round.path, ctx.Err())
		}
	}
	return t.round.err
}

// Await is Ticket.Wait for a caller that must not wait for a hanging disk. It waits at most half a second, and not at all while a write has
// already taken longer than that.
func (w *Writer) Await(ctx context.Context, t Ticket) error {
	waiting, cancel := context.WithTimeout(ctx, w.awaitTimeout())
	defer cancel()
	return t.Wait(waiting)
}

func (w *Writer) awaitTimeout() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing != nil && time.Since(w.writing.began) >= maxAwait {
		return 0
	}
	return maxAwait
}

// Stats are a Writer's counters since its start.
type Stats struct {
	// Writes and Failures count successful and failed writes. Seconds is the time spent in both.
	Writes, Failures uint64
	Seconds          float64
	// Size is the size of the file in bytes, as last written.
	Size int
	// Pending is set while submitted content is not written, and during a Sync. PendingSince is when that began.
	Pending      bool
	PendingSince time.Time
	// LastError is the error of the last write or Sync; empty if it succeeded.
	LastError string
}

// Stats returns the counters.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	stats := w.stats
	stats.Pending, stats.PendingSince = !w.syncBegan.IsZero(), w.syncBegan
	for _, r := range []*round{w.next, w.writing} { // the older round last
		if r != nil {
			stats.Pending, stats.PendingSince = true, r.since
		}
	}
	if err := cmp.Or(w.writeErr, w.syncErr); err != nil {
		stats.LastError = err.Error()
	}
	return stats
}
