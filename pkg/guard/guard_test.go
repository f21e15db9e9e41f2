package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// The folders here have no memory.pressure, as on a kernel without PSI: what the trigger does only a kernel can show.

type host struct {
	mu    sync.Mutex
	highs map[string][]uint64
	err   error
	set   chan struct{}
	gate  chan struct{} // a write of c1 waits until it is closed; nil waits for nothing
}

func (h *host) SetHigh(_ context.Context, id string, bytes uint64) error {
	h.mu.Lock()
	h.highs[id] = append(h.highs[id], bytes)
	err := h.err
	h.mu.Unlock()
	h.set <- struct{}{}
	if h.gate != nil && id == "c1" {
		<-h.gate
	}
	return err
}

type fixture struct {
	t        *testing.T
	root     string
	guard    *Guard
	host     *host
	logged   *test.Hook
	episodes chan Episode
}

const cgroupPath = "kubepods/burstable/pod1/c1"

func newFixture(t *testing.T, settings Settings) *fixture { return newFixtureOn(t, "7.0.0", settings) }

// newFixtureOn has a release of the kernel.
func newFixtureOn(t *testing.T, release string, settings Settings) *fixture {
	t.Helper()
	f := &fixture{t: t, root: t.TempDir(), host: &host{highs: map[string][]uint64{}, set: make(chan struct{}, 100)}, episodes: make(chan Episode, 10)}
	if err := os.MkdirAll(filepath.Join(f.root, "cg", cgroupPath), 0o755); err != nil {
		t.Fatal(err)
	}
	f.write("proc/vmstat", "nr_free_pages 12\nallocstall_dma 1\nallocstall_normal 2\n")
	f.write("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
	f.write("proc/sys/kernel/osrelease", release+"\n")
	f.state(32*mib, 0)
	tree, err := cgroupfs.Open(filepath.Join(f.root, "cg"), cgroupfs.Plain())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	log, hook := test.NewNullLogger()
	f.logged = hook
	f.guard, err = New(Options{Tree: tree, Node: Node{Proc: filepath.Join(f.root, "proc"), Tree: tree}, Host: f.host,
		Log: log, Settings: settings, OnEpisode: func(e Episode) { f.episodes <- e }})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// write replaces a file in one step, so that no reader meets a half of it.
func (f *fixture) write(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) state(current uint64, highEvents int) {
	f.write("cg/"+cgroupPath+"/memory.current", fmt.Sprintf("%d\n", current))
	f.write("cg/"+cgroupPath+"/memory.events", fmt.Sprintf("low 0\nhigh %d\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n", highEvents))
	f.write("cg/"+cgroupPath+"/memory.stat", "anon 1000\nfile 0\nactive_file 0\ninactive_file 0\n")
}

func (f *fixture) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.guard.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("the guard ended with: %v", err)
		}
	})
}

func (f *fixture) put(high uint64) {
	f.t.Helper()
	f.set(containerC1(max(high, 32*mib)))
}

func (f *fixture) set(containers ...Container) {
	f.t.Helper()
	f.guard.Set(f.t.Context(), containers)
}

func containerC1(high uint64) Container {
	return Container{ID: "c1", Pod: "default/p", Name: "c", Cgroup: cgroupPath, Bounds: Bounds{Computed: 32 * mib, Limit: 64 * mib}, High: high}
}

func (f *fixture) await(what string, signal <-chan struct{}, meanwhile func()) {
	f.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case <-signal:
			return
		case <-deadline:
			f.t.Fatalf("no %s within a minute", what)
		case <-time.After(5 * time.Millisecond):
			meanwhile()
		}
	}
}

var quick = Settings{Stall: 50 * time.Millisecond, Window: 200 * time.Millisecond, Step: 0.25, RestoreAfter: 100 * time.Millisecond}

func TestStoppedContainerIsRaisedAndLoweredWithoutPressureFiles(t *testing.T) {
	f := newFixture(t, quick)
	f.put(0)
	f.run()
	events := 0
	stall := func() { events++; f.state(32*mib, events) } // it stands at memory.high, which counts on
	f.await("raise", f.host.set, stall)
	f.state(8*mib, events) // it moves, and shrinks
	for f.last() != 32*mib {
		f.await("restore", f.host.set, func() {})
	}
	select {
	case e := <-f.episodes:
		if e.From != 32*mib || e.Raises == 0 || e.To <= e.From {
			t.Errorf("episode from %d to %d in %d raises, want from 32 MiB upwards", e.From, e.To, e.Raises)
		}
	case <-time.After(time.Minute):
		t.Fatal("the episode was not told")
	}
	totals := f.guard.Totals()
	if totals.Episodes == 0 || totals.Raises == 0 || totals.Restores == 0 || totals.Raised == 0 {
		t.Errorf("totals %+v, want all counted", totals)
	}
	if status := f.guard.Statuses()["c1"]; status.Raised || status.High != 32*mib {
		t.Errorf("status %+v, want the computed value", status)
	}
	if !f.warned("without pressure from the kernel") {
		t.Error("nobody was told that the kernel keeps no pressure")
	}
}

func (f *fixture) last() uint64 {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	return f.host.highs["c1"][len(f.host.highs["c1"])-1]
}

func TestRaiseOfAnEarlierRunIsTakenOver(t *testing.T) {
	f := newFixture(t, quick)
	f.put(48 * mib)
	if status := f.guard.Statuses()["c1"]; !status.Raised || status.High != 48*mib {
		t.Fatalf("status %+v, want raised to 48 MiB", status)
	}
	f.state(8*mib, 0)
	f.run()
	f.await("restore", f.host.set, func() {})
}

func TestARaiseOfAnEarlierRunIsLoweredAfterOneQuietTime(t *testing.T) {
	f := newFixture(t, Defaults())
	began := time.Now()
	f.put(48 * mib)
	for _, at := range []time.Duration{Defaults().RestoreAfter + time.Second, Defaults().RestoreAfter + 4*time.Second} {
		f.guard.handle(t.Context(), nil, began.Add(at))
	}
	f.await("step back", f.host.set, func() {})
	if high := f.last(); high != 40*mib {
		t.Errorf("memory.high is %d, want a step back to %d", high, 40*mib)
	}
}

func TestEndedContainerIsDropped(t *testing.T) {
	f := newFixture(t, quick)
	f.put(0)
	if err := os.RemoveAll(filepath.Join(f.root, "cg", cgroupPath)); err != nil {
		t.Fatal(err)
	}
	f.run()
	deadline := time.Now().Add(time.Minute)
	for len(f.guard.Statuses()) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("a container whose cgroup is gone is still watched after a minute")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestContainerThatEndsDuringARaiseIsDropped(t *testing.T) {
	f := newFixture(t, quick)
	f.host.err = fmt.Errorf("write memory.high: %w", fs.ErrNotExist)
	f.put(0)
	f.run()
	events := 0
	f.await("attempt", f.host.set, func() { events++; f.state(32*mib, events) })
	if err := os.RemoveAll(filepath.Join(f.root, "cg", cgroupPath)); err != nil {
		t.Fatal(err)
	}
	f.until("the container is no longer watched", func() bool { return len(f.guard.Statuses()) == 0 })
	f.set()
}

// until waits for a condition.
func (f *fixture) until(what string, condition func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("not within a minute: %s", what)
		}
	}
}

const tryingAgain = "cannot be watched or given room: trying again"

func TestAFailedRaiseIsTriedAgain(t *testing.T) {
	f := newFixture(t, quick)
	f.host.err = errors.New("interrupted for a moment")
	f.put(0)
	f.run()
	events := 0
	stall := func() { events++; f.state(32*mib, events) }
	f.await("raise", f.host.set, stall)
	f.await("second try", f.host.set, stall)
	f.host.mu.Lock()
	tried := slices.Clone(f.host.highs["c1"])
	f.host.err = nil
	f.host.mu.Unlock()
	if tried[1] != tried[0] || tried[0] <= 32*mib {
		t.Errorf("memory.high was set to %v, want the same raise twice", tried)
	}
	f.await("third try", f.host.set, stall)
	f.state(8*mib, events)
	for f.last() != 32*mib {
		f.await("restore", f.host.set, func() {})
	}
	if warnings := f.warnings(tryingAgain); warnings != 1 {
		t.Errorf("%d warnings, want one", warnings)
	}
}

func TestAFailedReadIsTriedAgain(t *testing.T) {
	vmstat, meminfo, events := "proc/vmstat", "proc/meminfo", "cg/"+cgroupPath+"/memory.events"
	for file, text := range map[string]string{vmstat: "allocstall_dma 1\n", meminfo: "MemAvailable: 2097152 kB\n", events: ""} {
		t.Run(file, func(t *testing.T) {
			f := newFixture(t, quick)
			f.put(0)
			f.write(file, "high many\n")
			f.run()
			f.until("the failure is logged", func() bool { return f.warned(tryingAgain) })
			if file != events {
				f.write(file, text)
			}
			high := 0
			f.await("raise", f.host.set, func() { high++; f.state(32*mib, high) })
			if warnings := f.warnings(tryingAgain); warnings != 1 {
				t.Errorf("%d warnings, want one", warnings)
			}
		})
	}
}

func TestRetriesWaitLongerAndLonger(t *testing.T) {
	f := newFixture(t, defaults)
	f.put(0)
	f.write("proc/vmstat", "allocstall_dma many\n")
	w := f.guard.watched["c1"]
	for i, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
		at := w.look
		f.guard.handle(t.Context(), nil, at)
		if wait := w.look.Sub(at); wait != want*time.Second {
			t.Errorf("after failure %d: again in %s, want %ds", i+1, wait, want)
		}
	}
	f.write("proc/vmstat", "allocstall_dma 1\n")
	f.guard.handle(t.Context(), nil, w.look)
	f.write("proc/vmstat", "allocstall_dma many\n")
	at := w.look
	f.guard.handle(t.Context(), nil, at)
	if wait := w.look.Sub(at); wait != 2*time.Second || f.warnings(tryingAgain) != 2 {
		t.Errorf("after a success: again in %s with %d warnings, want 2s and the second warning", wait, f.warnings(tryingAgain))
	}
}

// A shortage of descriptors or memory says nothing about a cgroup. A file in its place does the same here.
func TestAContainerThatCannotBeLookedAtIsNotGone(t *testing.T) {
	f := newFixture(t, defaults)
	f.put(0)
	dir := filepath.Join(f.root, "cg", cgroupPath)
	if err := errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	f.guard.handle(t.Context(), nil, f.guard.watched["c1"].look)
	if len(f.guard.Statuses()) != 1 || !f.warned(tryingAgain) {
		t.Error("the container is no longer watched, or the failure was not logged")
	}
}

func TestNewBoundsReachAWatchedContainer(t *testing.T) {
	f := newFixture(t, defaults)
	f.put(48 * mib)
	resized := containerC1(48 * mib)
	resized.Bounds.Computed = 50 * mib
	f.run()
	f.set(resized)
	<-f.host.set
	if f.last() != 50*mib {
		t.Errorf("after a resize: memory.high %d, want the computed 50 MiB", f.last())
	}
}

// One goroutine tells the guard of all containers: a write that does not return, of one whose raise is cut or taken back, keeps it from
// none that starts later.
func TestASlowWriteKeepsTheGuardFromNoOtherContainer(t *testing.T) {
	other := Container{ID: "c2", Pod: "default/q", Name: "c", Cgroup: "kubepods/burstable/pod2/c2", Bounds: Bounds{Computed: 32 * mib, Limit: 64 * mib}, High: 32 * mib}
	cut, off := containerC1(48*mib), containerC1(48*mib)
	cut.Bounds.Computed, off.Off = 50*mib, true
	for name, c := range map[string]Container{"cut": cut, "taken back": off} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, defaults)
			f.host.gate = make(chan struct{})
			if err := os.MkdirAll(filepath.Join(f.root, "cg", other.Cgroup), 0o755); err != nil {
				t.Fatal(err)
			}
			f.run()
			f.put(48 * mib)
			done := make(chan struct{})
			go func() {
				defer close(done)
				f.set(c)
				<-f.host.set
				f.set(c, other)
			}()
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Error("Set has not returned within half a minute")
			}
			if _, watched := f.guard.Statuses()["c2"]; !watched {
				t.Error("the other container is not watched")
			}
			close(f.host.gate)
			<-done
		})
	}
}

// A raise that is cut while page cache is reclaimed, or while an older value is written, is written afterwards.
func TestWhatIsDecidedDuringAWriteIsWrittenAfterIt(t *testing.T) {
	f := newFixture(t, defaults)
	f.host.gate = make(chan struct{})
	f.put(48 * mib)
	cut := containerC1(48 * mib)
	f.run()
	for _, computed := range []uint64{50 * mib, 54 * mib} {
		cut.Bounds.Computed = computed
		f.set(cut)
		if computed == 50*mib {
			<-f.host.set // it is being written
		}
	}
	close(f.host.gate)
	<-f.host.set
	if f.last() != 54*mib {
		t.Errorf("memory.high is %d, want the newest 54 MiB", f.last())
	}
}

// The agent records a raise before it is written, so that new bounds may come with a value that is not in memory.high yet.
func TestARaiseThatFailsAfterItWasRecordedIsTriedAgain(t *testing.T) {
	f := newFixture(t, defaults)
	f.put(0)
	f.host.gate, f.host.err = make(chan struct{}), errors.New("interrupted for a moment")
	wider := containerC1(32 * mib)
	wider.Bounds.Computed = 40 * mib
	f.set(wider)
	f.guard.handle(t.Context(), nil, time.Now())
	<-f.host.set // it is being written
	wider.High = 40 * mib
	f.set(wider)
	close(f.host.gate)
	f.idle()
	f.guard.handle(t.Context(), nil, time.Now().Add(time.Hour))
	f.idle()
	if tries := f.host.highs["c1"]; !slices.Equal(tries, []uint64{40 * mib, 40 * mib}) {
		t.Errorf("memory.high was set to %d, want 40 MiB twice, because the first write failed", tries)
	}
}

func TestOnlyTheContainersOfTheLastSetAreWatched(t *testing.T) {
	f := newFixture(t, defaults)
	f.put(48 * mib)
	f.put(48 * mib)
	if writes := len(f.host.highs["c1"]); writes != 0 || len(f.guard.Statuses()) != 1 {
		t.Errorf("%d writes for a container whose raise stands, want none", writes)
	}
	f.set()
	if len(f.guard.Statuses()) != 0 || len(f.guard.byTrigger) != 0 || len(f.host.highs) != 0 {
		t.Error("a container that is not among them is watched, or written")
	}
	if raised := f.guard.Totals().Raised; raised <= 0 {
		t.Errorf("it had a raised memory.high for %s, want more than nothing", raised)
	}
}

func TestTheTriggerOfAContainerThatIsNotWatchedAnyMoreIsRemoved(t *testing.T) {
	f := newFixture(t, defaults)
	kernel := &asked{called: func(string) {}}
	var err error
	if f.guard, err = New(Options{Tree: cgroupfs.New("/sys/fs/cgroup", kernel), Node: f.guard.node, Host: f.host, Log: f.guard.log, Settings: defaults}); err != nil {
		t.Fatal(err)
	}
	f.put(0)
	f.set()
	if !slices.Equal(kernel.removed, []int32{7}) {
		t.Errorf("the triggers %d were removed, want the container's, 7", kernel.removed)
	}
}

func TestTheRaiseOfAContainerThatIsToBeLeftAloneEnds(t *testing.T) {
	f := newFixture(t, defaults)
	f.put(48 * mib)
	off := containerC1(48 * mib)
	off.Off = true
	f.set(off)
	<-f.host.set
	off.High = f.last()
	f.set(off)
	if writes := f.host.highs["c1"]; len(writes) != 1 || writes[0] != 32*mib || len(f.guard.Statuses()) != 0 {
		t.Errorf("memory.high was set to %v, want the computed 32 MiB once", writes)
	}
}

func TestNodeReadsTheKernelsFiles(t *testing.T) {
	f := newFixture(t, defaults)
	if got, err := f.guard.node.reclaims(); err != nil || got != 3 {
		t.Errorf("reclaims %d, %v; want 3", got, err)
	}
	node := f.guard.node
	node.Reserve = func() uint64 { return 1 << 30 }
	if got, err := node.available(); err != nil || got != 1<<30 {
		t.Errorf("available %d, %v; want 2 GiB without the reserve", got, err)
	}
	f.write("cg/kubepods/memory.max", "1073741824\n")
	f.write("cg/kubepods/memory.current", "1072693248\n")
	f.write("cg/kubepods/memory.stat", "inactive_file 1048576\nactive_file 7000000\n")
	node.Kubepods = func() string { return "kubepods" }
	if got, err := node.available(); err != nil || got != 2<<20 {
		t.Errorf("available %d, %v; want the MiB that kubepods may still take, and the one of old page cache", got, err)
	}
	for file, text := range map[string]string{"meminfo": "MemTotal: 1 kB\n", "vmstat": "allocstall_dma many\n"} {
		f.write("proc/"+file, text)
	}
	if _, err := node.available(); err == nil || !strings.Contains(err.Error(), "meminfo: the expected lines are missing") {
		t.Errorf("error %v, want one that names meminfo", err)
	}
	if _, err := node.reclaims(); err == nil || !strings.Contains(err.Error(), `vmstat: line "allocstall_dma many": the value is no number`) {
		t.Errorf("error %v, want one that names the line", err)
	}
}

// pressured gives the container a memory.pressure that takes a trigger, and puts it under the guard. The trigger never
// fires by itself: the returned function says that it has, at this reading of the container's files.
func (f *fixture) pressured() (fire func(at time.Time, current, file uint64, events int, stall time.Duration)) {
	f.t.Helper()
	dir := filepath.Join(f.root, "cg", cgroupPath)
	if err := unix.Mkfifo(filepath.Join(dir, "memory.pressure"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.put(0)
	if err := os.Remove(filepath.Join(dir, "memory.pressure")); err != nil {
		f.t.Fatal(err)
	}
	return func(at time.Time, current, file uint64, events int, stall time.Duration) {
		f.t.Helper()
		f.state(current, events)
		f.write("cg/"+cgroupPath+"/memory.stat", fmt.Sprintf("inactive_file %d\npgsteal %d\n", file, 0))
		f.write("cg/"+cgroupPath+"/memory.pressure", fmt.Sprintf("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n", stall.Microseconds()))
		f.guard.mu.Lock()
		id := f.guard.watched["c1"].trigger
		f.guard.mu.Unlock()
		f.guard.handle(f.t.Context(), []int32{id}, at)
		f.idle()
	}
}

// idle waits until the guard has written what it wanted to.
func (f *fixture) idle() {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		f.guard.mu.Lock()
		w := f.guard.watched["c1"]
		idle := w == nil || !w.busy
		f.guard.mu.Unlock()
		if idle {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatal("a write does not end within a minute")
		}
	}
}

func TestTriggerLeadsToReclaimThenToARaise(t *testing.T) {
	f := newFixture(t, defaults)
	f.write("cg/"+cgroupPath+"/memory.reclaim", "")
	f.write("cg/"+cgroupPath+"/memory.swap.max", "0\n")
	fire := f.pressured()
	at := time.Now().Add(-time.Minute)
	later := func(d time.Duration) time.Time { return at.Add(d) }
	fire(at, 32*mib, 4*mib, 1, 500*time.Millisecond)
	fire(later(300*time.Millisecond), 32*mib, 4*mib, 2, 800*time.Millisecond)
	if asked, _ := os.ReadFile(filepath.Join(f.root, "cg", cgroupPath, "memory.reclaim")); string(asked) != fmt.Sprint(4*mib) {
		t.Errorf("memory.reclaim was asked for %q, want the 4 MiB of page cache", asked)
	}
	fire(later(310*time.Millisecond), 32*mib, 4*mib, 2, 810*time.Millisecond)
	fire(later(610*time.Millisecond), 32*mib, 4*mib, 3, 1110*time.Millisecond)
	if got := f.last(); got != 40*mib {
		t.Fatalf("memory.high was set to %d, want 40 MiB", got)
	}
	if status := f.guard.Statuses()["c1"]; !status.Stopped || !status.Raised || status.Since.IsZero() {
		t.Errorf("status %+v, want stopped and raised", status)
	}
	fire(later(3*time.Second), 34*mib, 4*mib, 3, 1120*time.Millisecond)
	e := <-f.episodes
	if e.Stalled != 820*time.Millisecond || e.Raises != 1 || e.To != 40*mib {
		t.Errorf("episode %+v, want one raise to 40 MiB and 820 ms of stall: 500 ms before the trigger fired", e)
	}
	if totals := f.guard.Totals(); totals.Raised <= 0 || totals.Stalled != e.Stalled {
		t.Errorf("totals %+v", totals)
	}
	// An hour later it has given all but page cache back.
	fire(later(time.Hour), 36*mib, 30*mib, 3, 1120*time.Millisecond)
	fire(later(time.Hour+3*time.Second), 36*mib, 30*mib, 3, 1120*time.Millisecond)
	if asked, _ := os.ReadFile(filepath.Join(f.root, "cg", cgroupPath, "memory.reclaim")); string(asked) != fmt.Sprint(4*mib) || f.last() != 32*mib {
		t.Errorf("memory.high was set to %d after asking to reclaim %q, want 32 MiB after the 4 MiB beyond", f.last(), asked)
	}
	f.write("cg/"+cgroupPath+"/memory.pressure", "full total=much\n")
	f.guard.handle(t.Context(), []int32{f.guard.watched["c1"].trigger}, later(2*time.Hour))
	if len(f.guard.Statuses()) != 1 || !f.warned(tryingAgain) {
		t.Error("a container that cannot be read is no longer watched, or the failure was not logged")
	}
}

func (f *fixture) warned(text string) bool { return f.warnings(text) > 0 }

func (f *fixture) warnings(text string) (count int) {
	for _, entry := range f.logged.AllEntries() {
		if entry.Level == logrus.WarnLevel && strings.Contains(entry.Message, text) {
			count++
		}
	}
	return count
}

func TestContainerThatSwapsIsGivenAWindow(t *testing.T) {
	f := newFixture(t, defaults)
	f.write("cg/"+cgroupPath+"/memory.swap.max", "max\n")
	f.write("cg/"+cgroupPath+"/memory.swap.current", "4096\n")
	f.write("proc/meminfo", "MemAvailable: 2097152 kB\nSwapFree: 1048576 kB\n")
	fire := f.pressured()
	at := time.Now()
	fire(at, 32*mib, 0, 1, 500*time.Millisecond)
	fire(at.Add(1900*time.Millisecond), 32*mib, 0, 2, 2*time.Second)
	if len(f.host.highs["c1"]) > 0 {
		t.Error("raised within the window")
	}
	fire(at.Add(2100*time.Millisecond), 32*mib, 0, 3, 2200*time.Millisecond)
	if len(f.host.highs["c1"]) != 1 {
		t.Error("not raised although it got nothing in a whole window")
	}
}

func TestContainerThatHasEndedIsNotWatched(t *testing.T) {
	f := newFixture(t, quick)
	gone := containerC1(48 * mib)
	gone.Cgroup = "kubepods/burstable/pod1/gone"
	f.set(gone)
	if len(f.guard.Statuses()) > 0 || len(f.host.highs) > 0 || f.warned("without pressure") {
		t.Error("it is watched or written, or the kernel is blamed")
	}
	f.put(0)
	if len(f.guard.Statuses()) != 1 {
		t.Error("a container that runs is not watched")
	}
}

func TestATriggerThatCannotBeSetIsTriedAgain(t *testing.T) {
	f := newFixture(t, defaults)
	pressure := filepath.Join(f.root, "cg", cgroupPath, "memory.pressure")
	f.write("cg/"+cgroupPath+"/memory.pressure", "") // nothing to wait on
	f.put(0)
	w := f.guard.watched["c1"]
	if len(f.guard.byTrigger) > 0 || !f.warned(tryingAgain) {
		t.Fatal("the trigger was set, or the failure was not logged")
	}
	if err := errors.Join(os.Remove(pressure), unix.Mkfifo(pressure, 0o600)); err != nil {
		t.Fatal(err)
	}
	f.guard.handle(t.Context(), nil, w.look)
	if len(f.guard.byTrigger) != 1 {
		t.Error("the trigger was not set the second time")
	}
}

func FuzzNodeFiles(f *testing.F) {
	f.Add("nr_free_pages 12\nallocstall_dma 1\n")
	f.Add("allocstall\nallocstall_dma 1")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = sumReclaims(text)
	})
}

// The kernel's notice has a heap in the room for page cache looked at, and no writer of files.
func TestANoticeIsForHeapsInTheRoomForPageCache(t *testing.T) {
	for name, test := range map[string]struct {
		room  bool
		files uint64
		pod   string
		want  bool
	}{
		"a heap fills it":        {true, 0, "kubepods/burstable/pod1", true},
		"a writer of files":      {true, 16 * mib, "kubepods/burstable/pod1", false},
		"another pod":            {true, 0, "kubepods/burstable/pod", false},
		"memory.high of another": {false, 0, "kubepods/burstable/pod1", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Defaults())
			c := containerC1(32 * mib)
			c.Bounds.CacheRoom = test.room
			f.set(c)
			f.write("cg/"+cgroupPath+"/memory.stat", fmt.Sprintf("anon 1000\nactive_file 0\ninactive_file %d\n", test.files))
			f.guard.watched["c1"].look = time.Time{} // as with the kernel's pressure
			f.guard.Notice(test.pod)
			if got := !f.guard.watched["c1"].look.IsZero(); got != test.want {
				t.Errorf("looked at: %v, want %v", got, test.want)
			}
		})
	}
}
