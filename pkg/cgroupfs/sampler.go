package cgroupfs

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// FreshTime is how long a sample is reused for display, so that many readers cost no more than one.
	FreshTime = time.Second
	// keepTime is how long a sample is kept that nobody renews. It is longer than any scrape interval: a dropped sample loses its place in
	// the order.
	keepTime = 10 * time.Minute
	// mostReads bounds the reads that the kernel delays beyond a deadline: each occupies a thread.
	mostReads = 4
)

// Counters are the kernel's counters of a cgroup and all below it.
type Counters struct {
	Current     uint64 // bytes
	Events      Events
	Pressure    Pressure
	HasPressure bool // false if the kernel has no memory.pressure
}

// Counters reads memory.current, memory.events and memory.pressure.
func (t *Tree) Counters(cgroup string) (Counters, error) {
	current, err := t.Current(cgroup)
	events, err2 := t.Events(cgroup)
	pressure, has, err3 := t.Pressure(cgroup)
	if err = cmp.Or(err, err2, err3); err != nil {
		return Counters{}, err
	}
	return Counters{current, events, pressure, has}, nil
}

// Sampler reads many cgroups one after the other, until each caller's deadline. Concurrent callers share one reading. It is safe for concurrent
// use.
type Sampler[T any] struct {
	read  func(cgroup string) (T, error)
	fresh time.Duration
	turn  chan struct{} // held by the caller that is reading

	mu      sync.Mutex
	samples map[string]Sample[T]
	reading map[string]bool // cgroups that are being read, including delayed reads
}

// Sample is a reading of a cgroup, or its error.
type Sample[T any] struct {
	Value T
	Err   error
	At    time.Time // zero before the first reading
	Late  bool      // the deadline came first: the sample is an old one
}

// NewSampler returns a Sampler that calls read. It reads a cgroup again if the last sample is older than fresh.
func NewSampler[T any](fresh time.Duration, read func(cgroup string) (T, error)) *Sampler[T] {
	return &Sampler[T]{read: read, fresh: fresh, turn: make(chan struct{}, 1),
		samples: map[string]Sample[T]{}, reading: map[string]bool{}}
}

// Read returns the samples of cgroups, in their order, until ctx ends. The oldest samples are renewed first, so that every cgroup has its turn
// if the time is too short for all.
func (s *Sampler[T]) Read(ctx context.Context, cgroups []string) []Sample[T] {
	oldest := time.Now().Add(-s.fresh)
	select {
	case s.turn <- struct{}{}:
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.readOlder(ctx, cgroups, oldest)
		}()
		select {
		case <-done:
		case <-ctx.Done(): // a read that the kernel delays goes on; the next caller reads the other cgroups
		}
		<-s.turn
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	samples := make([]Sample[T], len(cgroups))
	for i, cgroup := range cgroups {
		samples[i] = s.samples[cgroup]
		samples[i].Late = samples[i].At.Before(oldest)
	}
	return samples
}

// readOlder reads the cgroups with older samples until ctx ends.
func (s *Sampler[T]) readOlder(ctx context.Context, cgroups []string, than time.Time) {
	for _, cgroup := range s.older(cgroups, than) {
		if ctx.Err() != nil {
			return
		}
		if !s.begin(cgroup) {
			continue
		}
		value, err := s.read(cgroup)
		s.end(cgroup, Sample[T]{Value: value, Err: err, At: time.Now()})
	}
}

// older returns the cgroups with older samples, the oldest first, and drops samples older than keepTime.
func (s *Sampler[T]) older(cgroups []string, than time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := time.Now().Add(-keepTime)
	maps.DeleteFunc(s.samples, func(_ string, sample Sample[T]) bool { return sample.At.Before(kept) })
	older := slices.DeleteFunc(slices.Clone(cgroups), func(cgroup string) bool { return !s.samples[cgroup].At.Before(than) })
	slices.SortStableFunc(older, func(a, b string) int { return s.samples[a].At.Compare(s.samples[b].At) })
	return older
}

// begin starts a reading, unless the cgroup is being read or too many reads are delayed.
func (s *Sampler[T]) begin(cgroup string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading[cgroup] || len(s.reading) >= mostReads {
		return false
	}
	s.reading[cgroup] = true
	return true
}

func (s *Sampler[T]) end(cgroup string, sample Sample[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reading, cgroup)
	s.samples[cgroup] = sample
}
