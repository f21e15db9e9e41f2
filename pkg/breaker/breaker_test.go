package breaker

import (
	"errors"
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	const failures, first = 3, 5 * time.Second
	now := time.Unix(0, 0)
	b := New(failures, first, func() time.Time { return now })
	allowed := func(want bool) {
		t.Helper()
		if got := b.Allow(); got != want {
			t.Fatalf("allowed: %t, want %t", got, want)
		}
	}
	ended := func(err error, want bool) {
		t.Helper()
		if got := b.Ended(err); got != want {
			t.Errorf("news: %t, want %t", got, want)
		}
	}
	failure := errors.New("no answer")
	for i := range failures {
		allowed(true)
		ended(failure, i == failures-1)
	}
	pause := first
	for range 6 {
		allowed(false)
		now = now.Add(pause - 1)
		allowed(false)
		now = now.Add(1)
		allowed(true)
		allowed(false) // one question at a time
		b.Dropped()
		allowed(true)
		ended(failure, false)
		pause = min(2*pause, longest)
	}
	if pause != longest || !b.Open() {
		t.Errorf("got a pause of %s", pause)
	}
	now = now.Add(pause)
	allowed(true)
	ended(nil, true)
	allowed(true)
	allowed(true)
	ended(nil, false)
	if b.Open() {
		t.Error("still open")
	}
	b.Refused()
	allowed(false)
	now = now.Add(first)
	allowed(true)
}

// Questions that were under way when it opened, and fail with the one that opened it, are one failure of the server: the first pause follows.
func TestABurstThatFailsIsOneFailure(t *testing.T) {
	const failures, first, burst = 3, 5 * time.Second, 12
	now := time.Unix(0, 0)
	b := New(failures, first, func() time.Time { return now })
	for range burst {
		if !b.Allow() {
			t.Fatal("not allowed")
		}
	}
	for range burst {
		b.Ended(errors.New("no answer"))
	}
	from := now
	for !b.Allow() {
		now = now.Add(time.Second)
	}
	if pause := now.Sub(from); pause != first {
		t.Errorf("the server is not asked for %s, want %s", pause, first)
	}
}
