package podinfo

import (
	"sync"
	"time"
)

// breaker keeps a source that does not answer from costing every create its wait: after several failures in a row the
// source is not asked for a while, which grows; then one question tries it again.
type breaker struct {
	now func() time.Time

	mu       sync.Mutex
	failures int
	pause    time.Duration
	until    time.Time // not asked before; zero while closed
	trying   bool      // the one question after a pause is under way
}

const (
	breakerFailures = 3
	breakerPause    = 5 * time.Second
	breakerLongest  = time.Minute
)

// allow reports whether the source may be asked. Every question that is allowed must end in one of the calls below.
func (b *breaker) allow() bool {
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

// succeeded records an answer of the source.
func (b *breaker) succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures, b.pause, b.until, b.trying = 0, 0, time.Time{}, false
}

// failed records a question without an answer.
func (b *breaker) failed() { b.fail(1) }

// refused records that the source answers that it is asked too often: it is not asked for a while.
func (b *breaker) refused() { b.fail(breakerFailures) }

func (b *breaker) fail(failures int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures += failures
	b.trying = false
	if b.failures >= breakerFailures {
		b.pause = min(max(2*b.pause, breakerPause), breakerLongest)
		b.until = b.now().Add(b.pause)
	}
}

// dropped records a question that ended before the source could answer.
func (b *breaker) dropped() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trying = false
}

func (b *breaker) suspended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.until.IsZero()
}
