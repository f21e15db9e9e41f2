package cgroupfs

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// slowKernel counts how often each cgroup is read. A read takes as long as set for that cgroup.
type slowKernel struct {
	takes map[string]time.Duration
	mu    sync.Mutex
	reads map[string]int
}

func (k *slowKernel) sampler(fresh time.Duration) *Sampler[int] {
	k.reads = map[string]int{}
	return NewSampler(fresh, func(cgroup string) (int, error) {
		time.Sleep(k.takes[cgroup])
		k.mu.Lock()
		defer k.mu.Unlock()
		k.reads[cgroup]++
		return k.reads[cgroup], nil
	})
}

// readWithin returns the values read, by cgroup: the names of late ones end in an asterisk.
func readWithin(s *Sampler[int], within time.Duration, cgroups string) map[string]int {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	names, values := strings.Fields(cgroups), map[string]int{}
	for i, sample := range s.Read(ctx, names) {
		if sample.Late {
			names[i] += "*"
		}
		values[names[i]] = sample.Value
	}
	return values
}

func wantSamples(t *testing.T, what string, got, want map[string]int) {
	t.Helper()
	if difference := cmp.Diff(want, got); difference != "" {
		t.Errorf("%s (-want +got):\n%s", what, difference)
	}
}

func TestAskersAtTheSameTimeShareOneReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &slowKernel{takes: map[string]time.Duration{"a": time.Millisecond, "b": time.Millisecond}}
		s := kernel.sampler(0)
		var askers sync.WaitGroup
		for range 5 {
			askers.Go(func() {
				wantSamples(t, "each asker", readWithin(s, time.Second, "a b"), map[string]int{"a": 1, "b": 1})
			})
		}
		askers.Wait()
		wantSamples(t, "reads", kernel.reads, map[string]int{"a": 1, "b": 1})
	})
}

func TestAFreshSampleIsNotReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := (&slowKernel{}).sampler(time.Second)
		began := time.Now()
		wantSamples(t, "a first reading", readWithin(s, time.Second, "a"), map[string]int{"a": 1})
		time.Sleep(time.Second)
		wantSamples(t, "only the other one is due", readWithin(s, time.Second, "a b"), map[string]int{"a": 1, "b": 1})
		time.Sleep(time.Nanosecond)
		wantSamples(t, "no longer fresh", readWithin(s, time.Second, "a b"), map[string]int{"a": 2, "b": 1})
		samples := s.Read(t.Context(), []string{"b", "a"})
		if b, a := samples[0].At.Sub(began), samples[1].At.Sub(began); b != time.Second || a != time.Second+1 {
			t.Errorf("read after %v and %v, want 1s and 1.000000001s", b, a)
		}
		time.Sleep(keepTime + time.Second)
		readWithin(s, time.Second, "b")
		if len(s.samples) != 1 {
			t.Errorf("%d samples are kept of the one cgroup that is asked for", len(s.samples))
		}
	})
}

func TestEveryCgroupHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &slowKernel{takes: map[string]time.Duration{"a": 2, "b": 2, "c": 2, "d": 2}}
		s := kernel.sampler(0)
		wantSamples(t, "time for two", readWithin(s, 5, "a b c d"), map[string]int{"a": 1, "b": 1, "c*": 0, "d*": 0})
		time.Sleep(time.Second) // in which the reading of c has ended
		wantSamples(t, "the others first", readWithin(s, 5, "a b c d"), map[string]int{"a": 2, "b*": 1, "c*": 1, "d": 1})
		time.Sleep(time.Second)
		wantSamples(t, "and again", readWithin(s, 7, "a b c d"), map[string]int{"a": 3, "b*": 2, "c": 2, "d": 2})
		time.Sleep(time.Second)
	})
}

func TestADelayedReadHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &slowKernel{takes: map[string]time.Duration{"slow": time.Hour}}
		s := kernel.sampler(time.Second)
		began := time.Now()
		wantSamples(t, "what comes after it", readWithin(s, time.Second, "a slow b"), map[string]int{"a": 1, "slow*": 0, "b*": 0})
		if took := time.Since(began); took != time.Second {
			t.Errorf("the asker waited for %v, its deadline was 1s", took)
		}
		time.Sleep(time.Minute)
		wantSamples(t, "the next asker", readWithin(s, time.Second, "a slow b"), map[string]int{"a": 2, "slow*": 0, "b": 1})
		if took := time.Since(began); took != time.Minute+time.Second {
			t.Errorf("the next asker waited for %v", took-time.Minute-time.Second)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		kernel.takes["slow"] = 0
		wantSamples(t, "once it has been read", readWithin(s, time.Second, "slow"), map[string]int{"slow": 2})
	})
}

func TestDelayedReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel, delayed := &slowKernel{takes: map[string]time.Duration{}}, strings.Fields("1 2 3 4 5 6")
		for _, cgroup := range delayed {
			kernel.takes[cgroup] = time.Hour
		}
		s := kernel.sampler(0)
		for _, cgroup := range delayed {
			readWithin(s, time.Second, cgroup)
		}
		if len(s.reading) != mostReads {
			t.Errorf("%d reads are under way, want at most %d", len(s.reading), mostReads)
		}
		wantSamples(t, "while they are", readWithin(s, time.Second, "a"), map[string]int{"a*": 0})
		time.Sleep(time.Hour)
		wantSamples(t, "after them", readWithin(s, time.Second, "a"), map[string]int{"a": 1})
	})
}

func TestACgroupThatEndsHasAnErrorAndTheOthersHaveNone(t *testing.T) {
	const ended, running = "kubepods/pod1/ended", "kubepods/pod1"
	tree := makeTree(t, map[string]string{
		running + "/memory.current": "4096", running + "/memory.events": "high 7", ended + "/memory.events": "high 1",
	})
	samples := NewSampler(0, tree.Counters).Read(t.Context(), []string{ended, running, "system.slice"})
	if s := samples[0]; !errors.Is(s.Err, fs.ErrNotExist) || s.Late || s.Value != (Counters{}) {
		t.Errorf("the one that is ending: %+v", s)
	}
	if s := samples[1]; s.Err != nil || s.Late || s.Value != (Counters{Current: 4096, Events: Events{High: 7}}) {
		t.Errorf("the one that runs: %+v", s)
	}
	if s := samples[2]; s.Err == nil || s.Err.Error() != `read `+tree.Root()+`/system.slice/memory.current: cgroup "system.slice" is not below kubepods` {
		t.Errorf("one that is none of ours: %+v", s)
	}
}

func TestCountersAreThoseOfTheKernel(t *testing.T) {
	files := libraryFiles()
	tree := makeTree(t, files)
	const name = "kubepods/pod1"
	got, err := tree.Counters(name)
	want := Counters{Current: 1 << 20, Events: Events{Low: 1, High: 309, Max: 2, OOM: 3, OOMKill: 4, OOMGroupKill: 5}, HasPressure: true,
		Pressure: Pressure{Some: PressureLine{Avg10: 53.1, Avg60: 12, Avg300: 1.5, Total: 123456},
			Full: PressureLine{Avg10: 50, Avg60: 11, Avg300: 1.25, Total: 120000}}}
	if difference := cmp.Diff(want, got); difference != "" || err != nil {
		t.Error(err, difference)
	}
}
