package recording

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// Options are what a Recorder is made of.
type Options struct {
	// Dir is the folder of the segments; it is made where it is missing.
	Dir string
	// Size is how many bytes the segments may have in all.
	Size uint64
	// Version is the program's.
	Version string
	// Log gets problems; nil is logrus' standard logger.
	Log logrus.FieldLogger
}

const (
	// segments is how many the ring has.
	segments = 8
	// queueSize is how many events may wait to be encoded.
	queueSize = 1024
)

// Recorder writes recordings. Begin and Record are called by the ledger's driver under its lock, and wait for nothing; the
// other methods may be called from any goroutine.
type Recorder struct {
	options Options
	log     logrus.FieldLogger
	queue   chan any // start or entry
	ended   chan struct{}

	mu      sync.Mutex
	closed  bool
	number  uint64 // of the last event
	lost    uint64 // events since the last that is in the queue
	renew   bool   // a new segment is to begin
	written []written
	decided map[subject]uint64
	found   uint64 // the event that last decided about all containers
	pruneAt int
}

// start is the beginning of a segment.
type start struct {
	at          time.Time
	state       []byte
	first, lost uint64
}

// entry is an event.
type entry struct {
	number  uint64
	at      time.Time
	event   ledger.Event
	effects ledger.Effects
}

// written is a segment on disk.
type written struct {
	name  string
	first uint64
	last  uint64 // 0 as long as it is being written
}

// subject is a container over its restarts.
type subject struct{ uid, container string }

// Place is where a decision is recorded.
type Place struct {
	File  string
	Event uint64
}

// New returns a recorder. Its goroutine runs until Close.
func New(o Options) (*Recorder, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	if _, _, err := segmentsIn(o.Dir); err != nil {
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
	return &Recorder{
		options: o, log: o.Log.WithField("recording", o.Dir), queue: make(chan any, queueSize), ended: make(chan struct{}),
		decided: map[subject]uint64{},
	}
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
	if r.lost > 0 || !r.offer(entry{number: r.number, at: now, event: event, effects: effects}) {
		r.lost++
		r.renew = true
	} else {
		r.decide(l, event, effects)
	}
	if r.renew {
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

// beginSegment begins a segment after the event that was applied last. The state is encoded only when there is room for it.
func (r *Recorder) beginSegment(now time.Time, l *ledger.Ledger) {
	if r.closed || len(r.queue) > queueSize/2 {
		return
	}
	state, err := encode(l, now, true)
	if err != nil {
		r.log.WithError(err).Error("the recording ends: the state of the ledger cannot be recorded")
		r.shut()
		return
	}
	if r.offer(start{at: now, state: state, first: r.number + 1, lost: r.lost}) {
		r.renew, r.lost = false, 0
	}
}

// decide keeps in mind which event decided about a container.
func (r *Recorder) decide(l *ledger.Ledger, event ledger.Event, effects ledger.Effects) {
	switch event.(type) {
	case ledger.Reconfigure:
		clear(r.decided)
		r.found = r.number
	case ledger.Synchronize:
		r.found = r.number
	}
	if d := effects.Decision; d != nil {
		r.decided[subject{d.UID, d.Container}] = r.number
	}
	if len(r.decided) > r.pruneAt {
		living := map[string]bool{}
		for _, ref := range l.Refs() {
			living[ref.UID] = true
		}
		maps.DeleteFunc(r.decided, func(s subject, _ uint64) bool { return !living[s.uid] })
		r.pruneAt = 2*len(r.decided) + 64
	}
}

// Place is where the last decision about a container of a pod is recorded; false when that segment is gone, or was never written.
func (r *Recorder) Place(uid, container string) (Place, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	number, known := r.decided[subject{uid, container}]
	if !known {
		number = r.found
	}
	for i := len(r.written) - 1; i >= 0 && number > 0; i-- {
		if w := r.written[i]; w.first <= number && (number <= w.last || i == len(r.written)-1) {
			return Place{File: filepath.Join(r.options.Dir, w.name), Event: number}, true
		}
	}
	return Place{}, false
}

// Close writes what is in the queue and ends the recording.
func (r *Recorder) Close(ctx context.Context) error {
	r.mu.Lock()
	r.shut()
	r.mu.Unlock()
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("record: %w", ctx.Err())
	}
}

// shut ends the recording; mu is held.
func (r *Recorder) shut() {
	if !r.closed {
		r.closed = true
		close(r.queue)
	}
}

// retryInterval is how long after a failed write the next segment is tried.
const retryInterval = time.Minute

// writer is what the goroutine of a Recorder has.
type writer struct {
	*Recorder
	now   *segment  // nil when there is none
	lost  uint64    // events since it ended
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

// begin begins a segment.
func (w *writer) begin(s start) {
	w.end()
	s.lost += w.lost
	now, err := w.next(s)
	if w.problem(err); err == nil {
		w.now, w.lost = now, 0
	}
	w.asked, w.full = s.at, false
}

// add writes an event, and asks for a new segment where this one is full, or there is none.
func (w *writer) add(e entry) {
	if w.now == nil {
		w.lost++
		if e.at.Sub(w.asked) >= retryInterval {
			w.asked = e.at
			w.ask()
		}
		return
	}
	err := w.now.add(e)
	if err == nil && len(w.queue) == 0 {
		err = w.now.flush()
	}
	if w.problem(err); err != nil {
		w.lost++
		w.end()
		return
	}
	if !w.full && w.now.full(w.options.Size) {
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

// end ends the segment.
func (w *writer) end() {
	if w.now == nil {
		return
	}
	err := w.now.close()
	w.mu.Lock()
	w.written[len(w.written)-1].last = w.now.last
	w.mu.Unlock()
	w.now = nil
	if err != nil {
		w.problem(err)
	}
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

// next begins a segment and removes the oldest ones that it leaves no room for.
func (r *Recorder) next(s start) (*segment, error) {
	g, err := begin(r.options.Dir, r.options.Version, s)
	if err != nil {
		return nil, err
	}
	gone, err := r.makeRoom(g)
	if err != nil { // it can be written all the same
		r.log.WithError(err).Warn("old recordings cannot be removed: they take up more than they may")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := r.written[:0]
	for _, w := range r.written {
		if !gone[w.name] {
			kept = append(kept, w)
		}
	}
	r.written = append(kept, written{name: g.name, first: s.first})
	return g, nil
}

// makeRoom removes the oldest segments, so that a full one fits in.
func (r *Recorder) makeRoom(current *segment) (gone map[string]bool, err error) {
	names, sizes, err := segmentsIn(r.options.Dir)
	if err != nil {
		return nil, err
	}
	total := current.size.bytes + int64(r.options.Size/segments)
	for _, name := range names {
		if name != current.name {
			total += sizes[name]
		}
	}
	gone = map[string]bool{}
	for _, name := range names {
		if total <= int64(r.options.Size) || name == current.name {
			break
		}
		if err := os.Remove(filepath.Join(r.options.Dir, name)); err != nil {
			return gone, err
		}
		gone[name] = true
		total -= sizes[name]
	}
	return gone, nil
}
