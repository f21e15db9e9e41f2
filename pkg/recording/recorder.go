package recording

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// Options are what a Recorder is made of.
type Options struct {
	// Dir is the folder of the segments; it is made where it is missing.
	Dir string
	// Size is how many bytes the segments may have in all. They have more where a state has more than a sixteenth of it.
	Size int64
	// Version is the program's.
	Version string
	// Log gets problems; nil is logrus' standard logger.
	Log logrus.FieldLogger
}

const (
	// segments is how many full ones fit in.
	segments = 8
	// queueSize is how many events may wait to be written.
	queueSize = 1024
	// retryInterval is how long after a failed write the next segment is tried.
	retryInterval = time.Minute
)

// Recorder writes recordings. Begin and Record are called by the ledger's driver under its lock, and wait for nothing; Close
// may be called from any goroutine.
type Recorder struct {
	options Options
	log     logrus.FieldLogger
	queue   chan any // start or entry
	ended   chan struct{}

	mu     sync.Mutex
	closed bool
	number uint64 // of the last event
	gap    bool   // the last event is not in the queue
	renew  bool   // a new segment is to begin
}

type start struct {
	at    time.Time
	state ledger.State
	first uint64
}

type entry struct {
	number  uint64
	at      time.Time
	event   ledger.Event
	effects ledger.Effects
}

// New returns a recorder. Its goroutine runs until Close.
func New(o Options) (*Recorder, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	r := newRecorder(o)
	go r.run()
	return r, nil
}

func newRecorder(o Options) *Recorder {
	if o.Log == nil {
		o.Log = logrus.StandardLogger()
	}
	return &Recorder{options: o, log: o.Log.WithField("recording", o.Dir), queue: make(chan any, queueSize), ended: make(chan struct{})}
}

// Begin starts the recording with the state of a ledger.
func (r *Recorder) Begin(now time.Time, l *ledger.Ledger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beginSegment(now, l)
}

// Record takes an event, and the effects of the Step that has just applied it to the ledger. Neither may be changed
// afterwards.
func (r *Recorder) Record(now time.Time, l *ledger.Ledger, event ledger.Event, effects ledger.Effects) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.number++
	effects.Notes = nil
	r.gap = r.gap || !r.offer(entry{number: r.number, at: now, event: event, effects: effects})
	if r.gap || r.renew {
		r.beginSegment(now, l)
	}
}

// offer puts something into the queue, if there is room.
func (r *Recorder) offer(item any) bool {
	select {
	case r.queue <- item:
		return true
	default:
		return false
	}
}

// beginSegment begins a segment after the event that was applied last, once there is room for it.
func (r *Recorder) beginSegment(now time.Time, l *ledger.Ledger) {
	if r.closed || len(r.queue) > queueSize/2 {
		return
	}
	if r.offer(start{at: now, state: l.Snapshot(), first: r.number + 1}) {
		r.gap, r.renew = false, false
	}
}

// Close writes what is in the queue and ends the recording.
func (r *Recorder) Close(ctx context.Context) error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.queue)
	}
	r.mu.Unlock()
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("record: %w", ctx.Err())
	}
}

// writer is what the goroutine of a Recorder has.
type writer struct {
	*Recorder
	now   *segment  // nil when there is none
	asked time.Time // when the last segment began or was asked for
	full  bool      // another one was asked for
	fails bool      // in the log
}

// run writes the queue. What cannot be written is lost, and a later segment tries again.
func (r *Recorder) run() {
	defer close(r.ended)
	w := writer{Recorder: r}
	for item := range r.queue {
		switch item := item.(type) {
		case start:
			w.begin(item)
		case entry:
			w.add(item)
		}
	}
	w.end()
}

// begin begins a segment, and removes the oldest.
func (w *writer) begin(s start) {
	w.end()
	now, err := begin(w.options.Dir, w.options.Version, s)
	if w.problem(err); err == nil {
		w.now = now
		if err := w.makeRoom(); err != nil { // it can be written all the same
			w.log.WithError(err).Warn("old recordings cannot be removed: they take up more than they may")
		}
	}
	w.asked, w.full = s.at, false
}

// add writes an event, and asks for a new segment where this one is full, or there is none.
func (w *writer) add(e entry) {
	if w.now == nil {
		if e.at.Sub(w.asked) >= retryInterval {
			w.asked = e.at
			w.ask()
		}
		return
	}
	err := w.now.add(e)
	if w.problem(err); err != nil {
		w.end()
		return
	}
	if !w.full && w.now.size() > max(w.options.Size/(segments+1), 2*w.now.begins) { // one segment's place is for what is in the queue
		w.full = true
		w.ask()
	}
}

// ask has the next event begin a segment.
func (w *writer) ask() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.renew = true
}

func (w *writer) end() {
	if w.now == nil {
		return
	}
	if err := w.now.close(); err != nil {
		w.problem(err)
	}
	w.now = nil
}

// problem logs an error of the disk once, until the disk works again.
func (w *writer) problem(err error) {
	if err != nil && !w.fails {
		w.log.WithError(err).Error("the recording cannot be written: events are missing until it can")
	}
	if err == nil && w.fails {
		w.log.Info("the recording can be written again")
	}
	w.fails = err != nil
}

// makeRoom removes the oldest segments, so that a full one fits in beside the others.
func (w *writer) makeRoom() error {
	files, err := segmentsIn(w.options.Dir)
	at := slices.Index(files, w.now.file.Name())
	files = slices.Concat(files[at+1:], files[:at+1]) // those with later names are of a clock that was ahead
	room := w.options.Size - w.options.Size/segments
	for _, file := range slices.Backward(files) {
		if info, gone := os.Stat(file); gone == nil {
			room -= info.Size()
		}
		if room < 0 && file != w.now.file.Name() {
			err = errors.Join(err, os.Remove(file))
		}
	}
	return err
}
