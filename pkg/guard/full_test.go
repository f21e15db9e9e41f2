package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestWhereFullMayBeBroken(t *testing.T) {
	for release, want := range map[string]bool{
		"6.11.11": false, "6.12.0-55.9.1.el10_0.x86_64": true, "6.12.12-amd64": true, "6.12.13": false, "6.12.117+deb13-cloud-amd64": false,
		"6.13.1-arch1-1": true, "6.13.2": false, "6.14.0-27-generic": false, "5.12.3": false, "6.12": false, "": false,
	} {
		if got := fullDoubtful(release); got != want {
			t.Errorf("%q: %v, want %v", release, got, want)
		}
	}
}

func TestFullBroken(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	before := times{some: 5 * s, full: 3 * s, user: s}
	for name, test := range map[string]struct {
		after times
		moves bool
		want  bool
	}{
		"all wait, and full does not advance":               {after: times{7 * s, 3 * s, s}, want: true},
		"all wait half of the time":                         {after: times{5*s + 500*ms, 3 * s, s + 19*ms}, want: true},
		"all wait, and full runs":                           {after: times{7 * s, 5 * s, s}},
		"full runs a little":                                {after: times{7 * s, 3*s + ms, s}},
		"one waits, another computes":                       {after: times{7 * s, 3 * s, 3 * s}},
		"one waits, another has a CPU limit of a hundredth": {after: times{7 * s, 3 * s, s + 20*ms}},
		"nobody waits":                                      {after: times{5 * s, 3 * s, s}},
		"little is waited for":                              {after: times{5*s + 499*ms, 3 * s, s}},
		"it gets on, by memory.events":                      {after: times{7 * s, 3 * s, s}, moves: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fullBroken(before, test.after, !test.moves, Defaults()); got != test.want {
				t.Errorf("broken: %v, want %v", got, test.want)
			}
		})
	}
}

// The farther a heap is above memory.high, the longer each of its allocations sleeps (mm/memcontrol.c, mem_cgroup_handle_over_high): it grows, and
// is stopped all the same.
func TestAHeapAboveMemoryHighCreeps(t *testing.T) {
	for name, test := range map[string]struct {
		file  uint64 // page cache, bytes
		some  time.Duration
		grown uint64 // bytes
		want  bool
	}{
		"it sleeps and grows":                      {some: time.Second, grown: 8 * mib, want: true},
		"it sleeps seldom and grows":               {some: time.Second - 1, grown: 8 * mib},
		"it sleeps seldom and hardly grows":        {some: time.Millisecond, grown: mib - 1, want: true},
		"its page cache goes, and it sleeps":       {file: 32 * mib, some: 2 * time.Second, grown: 8 * mib},
		"its page cache goes, and it hardly grows": {file: 32 * mib, some: 2 * time.Second, grown: mib - 1, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			at := Sample{At: time.Now(), Current: 70 * mib, File: test.file, SomeStall: time.Minute}
			var b blind
			b.stall(at, 64*mib, 0)
			at.At, at.Current, at.SomeStall, at.HighEvents = at.At.Add(2*time.Second), at.Current+test.grown, at.SomeStall+test.some, 1
			if b.stall(at, 64*mib, 0); b.stuck != test.want {
				t.Errorf("stuck: %v, want %v", b.stuck, test.want)
			}
		})
	}
}

// A container whose full does not advance gets no trigger. The kernel's count of its memory.high has it compared, and then it is given room as
// on a kernel without pressure.
func TestAContainerWithoutFullIsGivenRoom(t *testing.T) {
	const fullBefore = time.Minute
	for name, test := range map[string]struct {
		release, pod string
		full, raised bool
	}{
		"full is broken":         {"6.12.9", "kubepods/burstable/pod1", false, true},
		"full runs":              {"6.12.9", "kubepods/burstable/pod1", true, false},
		"another pod is noticed": {"6.12.9", "kubepods/burstable/pod", false, false},
		"a kernel of after":      {"6.12.13", "kubepods/burstable/pod1", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureOn(t, test.release, Defaults())
			pressure := filepath.Join(f.root, "cg", cgroupPath, "memory.pressure")
			if err := unix.Mkfifo(pressure, 0o600); err != nil { // takes a trigger, which does not come
				t.Fatal(err)
			}
			f.put(0)
			if err := os.Remove(pressure); err != nil {
				t.Fatal(err)
			}
			f.write("cg/"+cgroupPath+"/cpu.stat", "usage_usec 9000\nuser_usec 1000\nsystem_usec 8000\n")
			began := time.Now().Add(-time.Hour)
			w := f.guard.watched["c1"]
			for i := range 80 { // notices, ten times a second
				waited := time.Duration(i) * 100 * time.Millisecond
				f.state(32*mib, i)
				full := fullBefore
				if test.full {
					full += waited
				}
				f.write("cg/"+cgroupPath+"/memory.pressure", fmt.Sprintf("some avg10=0.00 total=%d\nfull avg10=0.00 total=%d\n",
					(fullBefore+waited).Microseconds(), full.Microseconds()))
				f.guard.notice(test.pod, began.Add(waited))
				f.guard.handle(t.Context(), nil, began.Add(waited))
				f.idle()
			}
			_, raised := f.host.highs["c1"]
			if test.raised && w.stall < fullBefore {
				t.Errorf("%v of full stall, less than before", w.stall)
			}
			if raised != test.raised || w.noFull != test.raised || f.guard.Statuses()["c1"].FullBroken != test.raised {
				t.Errorf("raised: %v, full is broken: %v", raised, w.noFull)
			}
			if said := f.warnings("full of memory.pressure does not advance on this kernel"); said > 1 || said > 0 != test.raised {
				t.Errorf("it was said %d times", said)
			}
		})
	}
}
