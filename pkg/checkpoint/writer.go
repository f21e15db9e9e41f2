package checkpoint

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// retryAfter is how long the writer waits after a failed write before it tries again by itself.
const retryAfter = 5 * time.Second

// ErrClosed is what Wait returns for a decision that was submitted after Close.
var ErrClosed = errors.New("the checkpoint writer is closed")

// Writer saves decisions in a Store from one goroutine of its own: decisions that arrive while a write is under way
// share the next one. Its methods are safe for concurrent use, and none but Ticket.Wait and Close waits for the disk.
type Writer struct {
	save  func(data []byte) error
	retry time.Duration
	wake  chan struct{} // has room for one: next is wanted, or closed is set
	ended chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	encoder *encoder  // what should be on disk
	begun   bool      // encoder has a state
	dirty   bool      // which has changed after the last write was begun, or that write failed
	since   time.Time // when it became dirty
	writing *round    // the write under way, nil when there is none
	next    *round    // the write after it
	closed  bool
	last    error // of the last write
	stats   Stats
}

// A round is one write; those whose decisions it contains wait for it.
type round struct {
	wanted bool      // by some decision
	since  time.Time // of the oldest decision in it
	done   chan struct{}
	err    error // set before done is closed
}

// NewWriter starts a writer. The caller stops it with Close. It takes the store's lock when that is free, so that Import
// does not write under it; a caller that must be alone calls Store.Lock before.
func NewWriter(store *Store) *Writer {
	_ = store.Lock()
	return startWriter(store.write, retryAfter)
}

func startWriter(save func([]byte) error, retry time.Duration) *Writer {
	w := &Writer{
		save: save, retry: retry, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		encoder: newEncoder(PolicyStatic), next: newRound(),
	}
	go w.run()
	return w
}

func newRound() *round { return &round{done: make(chan struct{})} }

// Submit hands over what one decision changed: the node map and all entries of the pod that it was about (none: the pod
// is gone). The slices are not kept. The caller holds its own lock, so that decisions arrive in their order.
// A decision that books more than a node has is for Replace, which writes where the bytes are.
func (w *Writer) Submit(nodes []memorymanager.NodeState, pod string, entries []memorymanager.Entry) Ticket {
	return w.change(func(e *encoder) bool { return e.decide(nodes, pod, entries) })
}

// Replace hands over a whole state, at the start and after a Synchronize. What has not changed costs no write.
func (w *Writer) Replace(s memorymanager.State) Ticket {
	return w.change(func(e *encoder) bool { return e.replace(s) })
}

func (w *Writer) change(apply func(*encoder) bool) Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Decisions++
	changed := apply(w.encoder) || !w.begun
	w.begun = true
	if changed && !w.dirty {
		w.dirty, w.since = true, time.Now()
	}
	if changed || w.dirty && w.writing == nil { // the latter after a failure
		w.next.wanted = true
	}
	switch {
	case w.closed && w.dirty:
		return Ticket{closedRound}
	case w.next.wanted:
		w.signal()
		return Ticket{w.next}
	}
	return Ticket{w.writing}
}

// closedRound is the answer after Close.
var closedRound = func() *round {
	r := newRound()
	r.err = ErrClosed
	close(r.done)
	return r
}()

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // it is awake already
	}
}

func (w *Writer) run() {
	defer close(w.ended)
	again := time.NewTimer(w.retry)
	again.Stop()
	var buffer []byte
	for {
		select {
		case <-w.wake:
		case <-again.C:
		}
		w.mu.Lock()
		closed := w.closed
		if !w.dirty {
			w.mu.Unlock()
			if closed {
				return
			}
			continue
		}
		r := w.next
		r.since = w.since
		w.writing, w.next, w.dirty = r, newRound(), false
		buffer = w.encoder.appendTo(buffer[:0])
		w.mu.Unlock()

		start := time.Now()
		err := w.save(buffer)
		w.finish(r, err, len(buffer), time.Since(start))
		switch {
		case closed:
			return
		case err != nil:
			again.Reset(w.retry)
		}
	}
}

// finish counts a write and answers everyone who waits for it.
func (w *Writer) finish(r *round, err error, size int, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Seconds += took.Seconds()
	if err != nil {
		w.stats.Failures++
		w.dirty, w.since = true, r.since
	} else {
		w.stats.Writes++
		w.stats.Bytes += uint64(size)
		w.stats.Size = size
	}
	w.last, w.writing = err, nil
	r.err = err
	close(r.done)
}

// Close writes what is pending, tries once more what failed, and ends the writer. The error is the last write's, or the
// context's when the disk does not answer.
func (w *Writer) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
	select {
	case <-w.ended:
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.last
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ticket stands for one decision on its way to the disk. The zero Ticket is one that is there already.
type Ticket struct{ round *round }

// Wait returns when a write that contains the decision is durable or has failed, or with the context's error. The
// decision of a failed write is part of the next write, which the writer tries by itself after a while.
func (t Ticket) Wait(ctx context.Context) error {
	if t.round == nil {
		return nil
	}
	select {
	case <-t.round.done:
		return t.round.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
