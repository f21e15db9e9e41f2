package progress

import (
	"testing"
	"time"
)

func TestWorkThatStandsIsNamed(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var b board
	want := func(after time.Duration, want string) {
		t.Helper()
		got := ""
		if err := b.check(noon.Add(after)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("after %s: %q, want %q", after, got, want)
		}
	}
	want(time.Hour, "")
	first := b.begin("an event", noon)
	second := b.begin("an event", noon.Add(time.Second))
	lock := b.begin("a lock", noon.Add(time.Second))
	want(Bound, "")
	want(Bound+time.Second, "an event has not moved for 6s")
	want(time.Minute, "a lock has not moved for 59s; an event has not moved for 1m0s; an event has not moved for 59s")
	first()
	first() // says no more
	lock()
	want(time.Minute, "an event has not moved for 59s")
	second()
	want(time.Hour, "")
}
