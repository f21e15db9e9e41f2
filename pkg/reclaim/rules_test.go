package reclaim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

func TestReclaimBeginsAboveTheThreshold(t *testing.T) {
	for _, c := range []struct {
		name   string
		signal Signal
		begin  uint64
		left   int64
		next   time.Duration
	}{
		{"a small node", Signal{Capacity: 2 * gib, Available: 300 * mib, Threshold: 100 * mib}, 356 * mib, -56 * mib, 250 * time.Millisecond},
		{"a node", Signal{Capacity: 40 * gib, Available: 2 * gib, Threshold: gib}, 3 * gib, -gib, 250 * time.Millisecond},
		{"a large node", Signal{Capacity: 1024 * gib, Available: 5 * gib, Threshold: gib}, 5 * gib, 0, 250 * time.Millisecond},
		{"enough for some seconds", Signal{Capacity: 40 * gib, Available: 6 * gib, Threshold: gib}, 3 * gib, 3 * gib, 3250 * time.Millisecond},
		{"enough", Signal{Capacity: 1024 * gib, Available: 500 * gib, Threshold: gib}, 5 * gib, 495 * gib, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			next := c.signal.next().Round(50 * time.Millisecond)
			if begin, left := c.signal.Begin(), c.signal.left(); begin != c.begin || left != c.left || next != c.next {
				t.Errorf("begins below %d, %d left, looks in %v; want %d, %d, %v", begin, left, next, c.begin, c.left, c.next)
			}
		})
	}
}

func TestWhatAContainerCanSpare(t *testing.T) {
	for _, c := range []struct {
		name  string
		usage Usage
		keeps uint64
		want  uint64
	}{
		{"no request", Usage{Current: 100, Active: 60, Inactive: 20}, 0, 60},
		{"below its request", Usage{Current: 100, Active: 60, Inactive: 20}, 80, 0},
		{"above its request by less than its page cache", Usage{Current: 100, Active: 60, Inactive: 20}, 50, 30},
		{"above its request by anonymous memory, too", Usage{Current: 200, Active: 60, Inactive: 20}, 50, 60},
		{"page cache that the disk has not taken", Usage{Current: 100, Active: 60, Inactive: 20, Unwritten: 50}, 0, 10},
		{"inactive page cache is available already", Usage{Current: 100, Inactive: 100}, 0, 0},
		{"counters of different moments", Usage{Current: 10, Active: 60, Inactive: 20, Unwritten: 70}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.usage.spare(c.keeps); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

func TestWhoHasTheMostIsAskedFirst(t *testing.T) {
	pod := &podSpare{2 * smallest}
	little, some, much := &candidate{spare: smallest - 1, pod: pod}, &candidate{spare: smallest, pod: pod}, &candidate{spare: smallest + 1, pod: pod}
	if got := most([]*candidate{little, some, much}); got != much {
		t.Errorf("got %+v", got)
	}
	if got := most([]*candidate{{spare: 3 * smallest, pod: &podSpare{smallest}}, much}); got != much {
		t.Errorf("got %+v, whose pod keeps most of it", got)
	}
	if got := most([]*candidate{little}); got != nil {
		t.Errorf("got %+v of what is not worth a call", got)
	}
}

// TestBrake plays readings: what a container has read again, what a call took after it, and whether the container may be asked.
func TestBrake(t *testing.T) {
	type reading struct {
		at        time.Duration
		refaulted uint64
		taken     uint64 // by a call for 32Mi, if the container may be asked
		want      bool
		evicts    bool // the kubelet would
	}
	for _, c := range []struct {
		name     string
		readings []reading
	}{
		{"nothing comes back", []reading{{0, 5 * gib, 80 * mib, true, false}, {time.Second, 5 * gib, 80 * mib, true, false}, {time.Minute, 5 * gib, 80 * mib, true, false}}},
		{"a little comes back", []reading{{0, 0, 80 * mib, true, false}, {time.Second, 39 * mib, 80 * mib, true, false}, {2 * time.Second, 79 * mib, 0, true, false}}},
		{"too little to tell", []reading{{0, 0, 60 * mib, true, false}, {time.Second, 60 * mib, 0, true, false}}},
		{"half comes back: it rests, longer each time", []reading{
			{0, 0, 80 * mib, true, false}, {time.Second, 40 * mib, 0, false, false}, {2 * time.Second, 40 * mib, 0, false, false},
			{3 * time.Second, 40 * mib, 80 * mib, true, false}, {4 * time.Second, 80 * mib, 0, false, false}, {7 * time.Second, 80 * mib, 0, false, false},
			{8 * time.Second, 80 * mib, 80 * mib, true, false}}},
		{"what comes back during a rest does not count", []reading{
			{0, 0, 80 * mib, true, false}, {time.Second, 40 * mib, 0, false, false}, {3 * time.Second, 90 * mib, 80 * mib, true, false}, {4 * time.Second, 129 * mib, 0, true, false}}},
		{"what comes back late is another window's", []reading{
			{0, 0, 80 * mib, true, false}, {30 * time.Second, 0, 80 * mib, true, false}, {31 * time.Second, 39 * mib, 0, true, false}}},
		{"a call that gives nothing", []reading{{0, 0, 3 * mib, true, false}, {time.Second, 0, 0, false, false}, {2 * time.Second, 0, 0, true, false}}},
		{"half comes back: it is asked while pods would be evicted", []reading{
			{0, 0, 80 * mib, true, true}, {time.Second, 40 * mib, 80 * mib, true, true}, {1500 * time.Millisecond, 120 * mib, 80 * mib, true, true},
			{2 * time.Second, 200 * mib, 0, false, false}, {3 * time.Second, 200 * mib, 0, true, false}}},
		{"a call that gives nothing, while pods would be evicted", []reading{{0, 0, 3 * mib, true, true}, {time.Second, 0, 0, false, true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b brake
			begin := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
			var got, want []bool
			for _, r := range c.readings {
				now := begin.Add(r.at)
				allowed := b.allows(r.refaulted, now, r.evicts)
				if got, want = append(got, allowed), append(want, r.want); allowed && r.taken > 0 {
					b.gave(batch, r.taken, r.taken, now)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
