package devices

import (
	"sync"
	"time"
)

// turns say when an API may be asked: one that does not answer is left alone for a while, so that it does not cost every create its
// wait.
type turns struct {
	now func() time.Time

	mu     sync.Mutex
	lost   bool // the last question was not answered
	pause  time.Duration
	until  time.Time // not asked before
	trying bool      // the one question after a pause is under way
}

const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// allowed reports whether the API may be asked now. Each question that is allowed has to end.
func (t *turns) allowed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pause == 0 {
		return true
	}
	if t.trying || t.now().Before(t.until) {
		return false
	}
	t.trying = true
	return true
}

// ended notes how a question ended, and reports whether that is news.
func (t *turns) ended(err error) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	news = t.lost != (err != nil)
	t.lost, t.trying = err != nil, false
	if err == nil {
		t.pause = 0
	} else {
		t.pause = min(max(2*t.pause, firstPause), longestPause)
		t.until = t.now().Add(t.pause)
	}
	return news
}
