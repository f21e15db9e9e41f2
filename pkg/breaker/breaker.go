// Package breaker keeps a server that does not answer from costing every create its wait: after several failures in a row it is not
// asked for a while, which grows; then one question tries it again.
package breaker

import (
	"sync"
	"time"
)

// longest is the longest pause.
const longest = time.Minute

// Breaker says when a server may be asked. It is safe for concurrent use.
type Breaker struct {
	most  int // failures in a row
	first time.Duration
	now   func() time.Time

	mu       sync.Mutex
	failures int
	pause    time.Duration
	until    time.Time // not asked before; zero while closed
	trying   bool      // the one question after a pause is under way
}

// New returns a breaker that opens at so many failures in a row, at first for this long.
func New(failures int, pause time.Duration, now func() time.Time) *Breaker {
	return &Breaker{most: failures, first: pause, now: now}
}

// Allow reports whether the server may be asked. Every question that is allowed must end in one of the calls below.
func (b *Breaker) Allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.IsZero() {
		return true
	}
	if b.trying || b.now().Before(b.until) {
		return false
	}
	b.trying = true
	return true
}

// Ended records an answer, or with an error a question without one. It reports whether that opened or closed the breaker.
func (b *Breaker) Ended(err error) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.until
	if err != nil {
		b.fail(1)
	} else {
		b.failures, b.pause, b.until, b.trying = 0, 0, time.Time{}, false
	}
	return was.IsZero() != b.until.IsZero()
}

// Refused records that the server answers that it is asked too often: it is not asked for a while.
func (b *Breaker) Refused() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail(b.most)
}

func (b *Breaker) fail(failures int) {
	if b.now().Before(b.until) { // it was asked before this pause began
		return
	}
	b.failures += failures
	b.trying = false
	if b.failures >= b.most {
		b.pause = min(max(2*b.pause, b.first), longest)
		b.until = b.now().Add(b.pause)
	}
}

// Dropped records a question that ended before the server could answer.
func (b *Breaker) Dropped() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trying = false
}

// Open reports whether the server is not asked.
func (b *Breaker) Open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.until.IsZero()
}
