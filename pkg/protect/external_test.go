package protect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

func TestAForeignWriteIsRepairedAtOnceAndCounted(t *testing.T) {
	n := newNode(t, nil)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100), podB: low(20)})
	for minute := range 5 { // as a kubelet's tick does
		n.overwrite(t, "kubepods/memory.min", "0")
		n.overwrite(t, "kubepods/burstable/memory.low", "0")
		writes, wait := n.reconcile(t)
		wantWrites(t, writes, "kubepods/min=120", "kubepods/burstable/low=20")
		if wait != 0 {
			t.Errorf("minute %d: waits %s", minute, wait)
		}
		n.clock = n.clock.Add(time.Minute)
	}
	want := map[Overwrite]uint64{{"kubepods", "memory.min"}: 5, {"burstable", "memory.low"}: 5}
	if diff := cmp.Diff(want, n.Overwrites()); diff != "" {
		t.Error(diff)
	}
	lines := n.log.AllEntries()
	if len(lines) != 2 || !strings.Contains(lines[0].Message, "another writer changes this file repeatedly: likely a kubelet with the feature gate MemoryQoS and memoryReservationPolicy None") {
		t.Errorf("%d lines, %v", len(lines), lines)
	}
}

func TestOnlyTheNamedCgroupsAreLookedAt(t *testing.T) {
	n := newNode(t, nil)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100)})
	n.overwrite(t, "kubepods/memory.min", "0")
	n.overwrite(t, podG+"/memory.min", "0")
	wantWrites(t, first(n.reconcile(t, podG, "kubepods/unknown")), podG+"/min=100")
	wantWrites(t, first(n.reconcile(t, "kubepods")), "kubepods/min=100")
}

// TestAWriterEverySecondIsAnsweredWithinTheSecond goes through two minutes on a clock of its own.
func TestAWriterEverySecondIsAnsweredWithinTheSecond(t *testing.T) {
	n := newNode(t, nil)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100), podB: low(20)})
	for second := range 120 {
		n.overwrite(t, "kubepods/memory.min", "0")
		began := n.clock
		_, wait := n.reconcile(t, "kubepods")
		for wait > 0 {
			if n.clock = n.clock.Add(wait); n.clock.Sub(began) >= time.Second {
				t.Fatalf("second %d: not repaired after %s", second, n.clock.Sub(began))
			}
			wait, _ = n.repair(t.Context(), nil)
		}
		if got := content(t, n.Tree, "kubepods/memory.min"); got != "120" {
			t.Fatalf("second %d: memory.min is %s", second, got)
		}
		n.clock = began.Add(time.Second)
	}
	if got := n.Overwrites()[Overwrite{"kubepods", "memory.min"}]; got != 120 {
		t.Errorf("%d overwrites counted", got)
	}
	if lines := len(n.log.AllEntries()); lines != 1 {
		t.Errorf("%d lines", lines)
	}
}

func TestAnEndlessSeriesOfChangesIsLeftToThePeriodicCheck(t *testing.T) {
	n := newNode(t, nil)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100)})
	var longestWait time.Duration
	repairs := 0
	for began := n.clock; n.clock.Sub(began) < 20*time.Minute; n.clock = n.clock.Add(100 * time.Millisecond) {
		n.overwrite(t, "kubepods/memory.min", "0")
		writes, wait := n.reconcile(t, "kubepods")
		if n.clock.Sub(began) > longSeries+longDelay {
			repairs += len(writes)
		}
		longestWait = max(longestWait, wait)
		if wait > 0 {
			n.clock = n.clock.Add(wait - 100*time.Millisecond)
		}
	}
	if longestWait > longDelay || repairs < 50 || repairs > 65 {
		t.Errorf("waited up to %s, %d repairs in the last ten minutes", longestWait, repairs)
	}
	// When the writer is gone for a while, the next one is met at once again.
	n.reconcile(t)
	n.clock = n.clock.Add(longDelay)
	n.reconcile(t)
	n.clock = n.clock.Add(time.Minute)
	n.overwrite(t, "kubepods/memory.min", "0")
	wantWrites(t, first(n.reconcile(t)), "kubepods/min=100")
}

func TestARepairThatIsHeldBackIsNotCountedTwice(t *testing.T) {
	n := newNode(t, nil)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100)})
	for range 2 {
		n.overwrite(t, "kubepods/memory.min", "0")
		n.reconcile(t)
	}
	for range 3 {
		if writes, wait := n.reconcile(t); len(writes) > 0 || wait != firstDelay {
			t.Errorf("wrote %v, waits %s", writes, wait)
		}
	}
	// An event of another cgroup does not make it forgotten.
	if _, wait := n.reconcile(t, podG); wait != firstDelay {
		t.Errorf("waits %s", wait)
	}
	if got := n.Overwrites()[Overwrite{"kubepods", "memory.min"}]; got != 2 {
		t.Errorf("%d overwrites counted", got)
	}
	// A new value need not wait, and the writer may put ours back itself.
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podG: minimum(200)}), "kubepods/min=200", podG+"/min=200")
	if writes, wait := n.reconcile(t); len(writes) > 0 || wait != 0 {
		t.Errorf("wrote %v, waits %s", writes, wait)
	}
}

func TestTheLikelyWriterIsNamed(t *testing.T) {
	tests := map[string]struct {
		h     row
		knob  cgroup.Knob
		found uint64
		want  string
	}{
		"kubelet, None":            {row{level: cgroup.LevelKubepods}, cgroup.MemoryMin, 0, "memoryReservationPolicy None"},
		"kubelet, tiered":          {row{level: cgroup.LevelBurstable}, cgroup.MemoryLow, 5, "TieredReservation"},
		"systemd or kubelet":       {row{level: cgroup.LevelKubepods, driver: cgroup.Systemd}, cgroup.MemoryMin, 0, "systemd at a reload, or a kubelet"},
		"systemd":                  {row{level: cgroup.LevelPod, driver: cgroup.Systemd}, cgroup.MemoryMin, 0, "systemd at a reload or a change of the slice"},
		"resize":                   {row{level: cgroup.LevelPod}, cgroup.MemoryMin, 0, "resize of the pod"},
		"nobody that we know of":   {row{level: cgroup.LevelKubepods}, cgroup.MemoryLow, 0, "another agent"},
		"nobody that we know of 2": {row{level: cgroup.LevelBurstable}, cgroup.MemoryMin, 0, "another agent"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := likelyWriter(&test.h, test.knob, test.found); !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestProtectionComesBackWhileSomebodyZeroesIt runs the real loop with inotify against a real writer. CGROUP_OVERWRITE_SECONDS
// makes it longer; what it took is logged.
func TestProtectionComesBackWhileSomebodyZeroesIt(t *testing.T) {
	seconds := 2
	if s, err := strconv.Atoi(os.Getenv("CGROUP_OVERWRITE_SECONDS")); err == nil {
		seconds = s
	}
	n := newNode(t, nil)
	watcher, err := cgroupfs.NewWatcher(n.Tree)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	n.Protector.watcher, n.Protector.now = watcher, time.Now
	files := []string{"kubepods/memory.min", "kubepods/memory.low", "kubepods/burstable/memory.low"}
	for _, file := range append(files, "kubepods/burstable/memory.min") {
		n.overwrite(t, file, "0") // a cgroup has its files
	}
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100), podB: low(20)})
	wants := []string{"120", "20", "20"}

	ctx, cancel := context.WithCancel(t.Context())
	used := make(chan time.Duration)
	go func() {
		runtime.LockOSThread() // so that what it uses can be told
		defer runtime.UnlockOSThread()
		n.Run(ctx, time.Minute) // inotify does it
		used <- cpu(unix.RUSAGE_THREAD)
	}()
	start := time.Now()
	var slowest time.Duration
	for range seconds {
		began := time.Now()
		for _, file := range files {
			n.overwrite(t, file, "0")
		}
		for i, file := range files {
			for content(t, n.Tree, file) != wants[i] {
				if time.Since(began) > time.Minute {
					t.Fatalf("%s was not restored", file)
				}
				<-time.After(time.Millisecond)
			}
		}
		slowest = max(slowest, time.Since(began))
		if rest := time.Second - time.Since(began); rest > 0 && seconds > 2 {
			<-time.After(rest)
		}
	}
	took := time.Since(start)
	cancel()
	t.Logf("%d rounds: slowest repair after %s, %.2f %% of a core (%.2f %% with writer and test), %d log lines, %v", seconds, slowest,
		percent(<-used, took), percent(cpu(unix.RUSAGE_SELF), took), len(n.log.AllEntries()), n.Overwrites())
	if len(n.log.AllEntries()) > 3 {
		t.Errorf("%d lines", len(n.log.AllEntries()))
	}
}

// cpu is the time that this process or thread has used.
func cpu(who int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		return -1
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func percent(used, of time.Duration) float64 { return 100 * float64(used) / float64(of) }

func TestWhatCameLateIsWatchedAndRunFinishesContainers(t *testing.T) {
	n := newNode(t, nil)
	watcher := newWatcher(t, n.Tree)
	n.Protector.watcher, n.now = watcher, time.Now
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100)})
	n.overwrite(t, "kubepods/memory.low", "0")
	n.overwriteAll(t, map[string]string{runcA + "/cpuset.mems": "0-1"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Run(ctx, 10*time.Millisecond)
	}()
	target := cgroup.Target{Cgroup: runcA, Level: cgroup.LevelContainer, Mems: "1"}
	if err := n.applyPart(t.Context(), []cgroup.Target{target}, nil); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return content(t, n.Tree, runcA+"/cpuset.mems") == "1" && watcher.Watches() == 3 }) // kubepods, the pod and the container
	n.overwrite(t, runcA+"/cpuset.mems", "0-1")
	waitFor(t, func() bool { return content(t, n.Tree, runcA+"/cpuset.mems") == "1" })
	cancel()
	<-ended
}

// Where the kernel refuses to watch, as beyond fs.inotify.max_user_watches, the periodic check finds what others write.
func TestRunRepairsWhatCannotBeWatched(t *testing.T) {
	n := newNode(t, nil)
	watcher, err := cgroupfs.NewWatcher(n.Tree)
	if err != nil {
		t.Fatal(err)
	}
	n.Protector.watcher = watcher
	watcher.Close() // what is asked of it is an error from now on
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100), podB: low(20)})
	if lines := n.log.AllEntries(); len(lines) != 1 || !strings.Contains(lines[0].Message, "noticed by the periodic check only") {
		t.Errorf("%v", lines)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Run(ctx, 10*time.Millisecond)
	}()
	if err := os.WriteFile(filepath.Join(n.Root(), podG, "memory.min"), []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return content(t, n.Tree, podG+"/memory.min") == "100" })
	cancel()
	<-ended
}

// Until systemd has confirmed a value it may write an older one of ours, of which the kernel tells as of any other write.
func TestAnOlderValueOfSystemdsIsNoExternalChange(t *testing.T) {
	u := &units{hangs: make(chan struct{})}
	n := newNode(t, u, sliceG)
	n.apply(t, map[string]memoryqos.Values{sliceG: minimum(100)})
	n.overwrite(t, sliceG+"/memory.min", "50")
	wantWrites(t, first(n.reconcile(t, sliceG)), sliceG+"/min=100")
	if counted := n.Overwrites(); len(counted) > 0 {
		t.Errorf("counted %v", counted)
	}
	close(u.hangs)
	n.flush(t)
	n.overwrite(t, sliceG+"/memory.min", "50")
	n.reconcile(t, sliceG)
	if diff := cmp.Diff(map[Overwrite]uint64{{cgroup.LevelPod, "memory.min"}: 1}, n.Overwrites()); diff != "" {
		t.Error(diff)
	}
}

// running is a node whose Run is told by the kernel alone: its period is an hour.
func running(t *testing.T, dirs ...string) *node {
	t.Helper()
	n := newNode(t, nil, dirs...)
	n.Protector.watcher, n.Protector.now = newWatcher(t, n.Tree), time.Now
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Run(ctx, time.Hour)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return n
}

func (n *node) holds(t *testing.T, file, want string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		data, err := os.ReadFile(filepath.Join(n.Root(), file)) // it may not be there until it is written
		if got := strings.TrimSpace(string(data)); got == want {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("%s holds %q, %v, for a minute, want %q", file, got, err, want)
		}
	}
}

// levels is a node with values of ours at each level, and what the files hold.
func levels(t *testing.T) (*node, map[string]string) {
	t.Helper()
	n := running(t, runcA, crunB+"/container")
	one, high := uint64(1), uint64(8192)
	values := minimum(100)
	values.High, values.OOMGroup = &high, &one
	if err := errors.Join(n.DesireAll(containers(t, Container{Values: values, Mems: "1"}, Container{Values: low(20)})), n.Apply(t.Context())); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"kubepods/memory.min": "120", "kubepods/memory.low": "20", "kubepods/burstable/memory.low": "20", podG + "/memory.min": "100",
		path.Dir(crunB) + "/memory.low": "20", runcA + "/memory.min": "100", runcA + "/memory.high": "8192", runcA + "/cpuset.mems": "1",
		runcA + "/memory.oom.group": "1", crunB + "/memory.low": "20", crunB + "/container/memory.low": "20",
	}
	for file, text := range want {
		n.holds(t, file, text)
	}
	return n, want
}

// Whatever somebody writes to a file of ours is repaired because the kernel tells of it, at each level.
func TestTheKernelTellsOfEachLevel(t *testing.T) {
	n, want := levels(t)
	for file, text := range want {
		n.overwrite(t, file, "0")
		n.holds(t, file, text)
	}
}

// On a node with 2,000 cgroups no repair waits for a round.
func TestTheKernelTellsOfThousands(t *testing.T) {
	const pods = 2000
	values, dirs := map[string]memoryqos.Values{}, make([]string, pods)
	for i := range pods {
		dirs[i] = fmt.Sprintf("kubepods/podof-%d", i)
		values[dirs[i]] = minimum(100)
	}
	n := running(t, dirs...)
	n.apply(t, values)
	for _, dir := range []string{dirs[0], dirs[pods/2], dirs[pods-1], "kubepods"} {
		n.overwrite(t, dir+"/memory.min", "0")
	}
	n.holds(t, "kubepods/memory.min", fmt.Sprint(100*pods))
	for _, dir := range []string{dirs[0], dirs[pods/2], dirs[pods-1]} {
		n.holds(t, dir+"/memory.min", "100")
	}
}

// A controller that is disabled and enabled again resets the files of the cgroups below, which nobody has written then.
func TestAControllerThatComesBack(t *testing.T) {
	n, want := levels(t)
	for _, parent := range []string{"kubepods", "kubepods/burstable", podG, crunB} {
		var below []string
		for file := range want {
			if path.Dir(path.Dir(file)) == parent {
				below = append(below, file)
				resetFile(t, n, file)
			}
		}
		n.overwrite(t, parent+"/cgroup.subtree_control", "+memory +cpuset")
		for _, file := range below {
			n.holds(t, file, want[file])
		}
	}
	// A runtime writes it with each container that it makes: one that holds its value says for all that none was reset.
	n.mu.Lock()
	defer n.mu.Unlock()
	if rows := n.reset("kubepods"); len(rows) > 0 {
		t.Errorf("%d rows would be compared", len(rows))
	}
}

// resetFile has a file hold something else without a write that the kernel tells of.
func resetFile(t *testing.T, n *node, file string) {
	t.Helper()
	kept := filepath.Join(n.Root(), "reset")
	if err := errors.Join(os.WriteFile(kept, []byte("0"), 0o644), os.Rename(kept, filepath.Join(n.Root(), file))); err != nil {
		t.Fatal(err)
	}
}

// A cgroup that is made again under its name gets its values, and is watched.
func TestACgroupThatIsMadeAgain(t *testing.T) {
	n, want := levels(t)
	for i, dir := range []string{runcA, crunB + "/container", podG} {
		at, away := filepath.Join(n.Root(), dir), filepath.Join(n.Root(), fmt.Sprint("away", i))
		if err := errors.Join(os.Rename(at, away), os.Mkdir(at, 0o755)); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"the new one's", "0"} {
			for file, want := range want {
				if path.Dir(file) != dir {
					continue
				}
				if text == "0" {
					n.overwrite(t, file, text)
				}
				n.holds(t, file, want)
			}
		}
	}
}

// A cgroup that is removed and made again before the kernel tells of it holds the kernel's defaults, which are no external change.
func TestACgroupThatIsMadeAgainAtOnceIsNoExternalChange(t *testing.T) {
	n := newNode(t, nil)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100)})
	n.overwrite(t, podG+"/memory.min", "0")
	wantWrites(t, n.do(t, func() error {
		_, err := n.repair(t.Context(), map[cgroupfs.Change]bool{{Cgroup: podG}: true})
		return err
	}), podG+"/min=100")
	if got := n.Overwrites(); len(got) > 0 {
		t.Errorf("%v overwrites counted", got)
	}
}

// A read may begin in the old cgroup and end after the kernel has told of the new one, also the read after a cgroup was made again before.
func TestAReadThatOverlapsTheEndOfItsCgroup(t *testing.T) {
	for _, before := range []int{0, 1} {
		n := newNode(t, nil)
		n.apply(t, map[string]memoryqos.Values{podG: minimum(100)})
		made := func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.markChanged(cgroupfs.Change{Cgroup: podG})
		}
		for range before {
			made()
		}
		opened := 0
		n.onOpen = func(dir, file string) {
			if dir != podG || file != "memory.min" {
				return
			}
			switch opened++; opened {
			case 1: // of the old one
				made()
			case 2:
				n.overwrite(t, podG+"/memory.min", "0")
			}
		}
		for range 2 {
			n.reconcile(t)
		}
		if got := n.Overwrites(); len(got) > 0 {
			t.Errorf("made again %d times before: %v overwrites counted", before, got)
		}
	}
}

// Another pass may read a container's files while its pod is watched: it then watches the container first.
func TestAPassBesideOneThatWatches(t *testing.T) {
	n := newNode(t, nil, runcA)
	n.Protector.watcher = newWatcher(t, n.Tree)
	met := false
	n.Protector.onChange = func(told map[cgroupfs.Change]bool) {
		if told[cgroupfs.Change{Cgroup: podG}] && n.rows[runcA] != nil && !met {
			met = true
			n.reconcile(t)
			n.overwrite(t, runcA+"/memory.min", "0")
		}
	}
	target := cgroup.Target{Cgroup: runcA, Level: cgroup.LevelContainer, Values: minimum(100)}
	n.do(t, func() error { return n.applyPart(t.Context(), []cgroup.Target{target}, nil) })
	for want := (cgroupfs.Change{Cgroup: runcA, File: "memory.min"}); met; {
		select {
		case told := <-n.Protector.watcher.Changes():
			if _, err := n.repair(t.Context(), told); err != nil {
				t.Fatal(err)
			}
			met = !told[want]
		case <-time.After(time.Minute):
			t.Fatal("no event reports the write")
		}
	}
	if got := content(t, n.Tree, runcA+"/memory.min"); got != "100" {
		t.Errorf("memory.min is %s", got)
	}
}

// What is written before a cgroup is watched is found, too: what was seen of a container may be old by then.
func TestAWriteBeforeTheWatch(t *testing.T) {
	n := running(t, runcA)
	n.overwrite(t, runcA+"/memory.min", "7")
	seen := cgroup.Seen{Values: minimum(100)}
	target := cgroup.Target{Cgroup: runcA, Level: cgroup.LevelContainer, Values: minimum(100), Seen: &seen}
	if err := errors.Join(n.DesireAll([]cgroup.Target{target}), n.Apply(t.Context())); err != nil {
		t.Fatal(err)
	}
	n.holds(t, runcA+"/memory.min", "100")
}

// Files of which the kernel tells are compared each half hour.
func TestWatchedFilesAreComparedSeldom(t *testing.T) {
	n := newNode(t, nil)
	n.Protector.watcher = newWatcher(t, n.Tree)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100)})
	n.reconcile(t)
	resetFile(t, n, podG+"/memory.min")
	n.clock = n.clock.Add(comparePeriod - time.Second)
	wantWrites(t, first(n.reconcile(t)))
	n.clock = n.clock.Add(time.Second)
	wantWrites(t, first(n.reconcile(t)), podG+"/min=100")
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited for a minute")
		}
	}
}

// Nobody watches the cgroup above kubepods, and so nobody tells that kubepods is made again.
func TestKubepodsMadeAgainIsFollowed(t *testing.T) {
	n := newNode(t, nil)
	n.Protector.watcher = newWatcher(t, n.Tree)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100), podB: low(20)})
	n.reconcile(t)
	if err := os.Rename(filepath.Join(n.Root(), "kubepods"), filepath.Join(n.Root(), "away")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{podG, podB, podC} {
		if err := os.MkdirAll(filepath.Join(n.Root(), dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.overwrite(t, "kubepods/memory.min", "0")
	n.clock = n.clock.Add(time.Minute)
	wantWrites(t, first(n.reconcile(t)), "kubepods/min=120", "kubepods/low=20", "kubepods/burstable/low=20")
	if got := n.Overwrites(); len(got) > 0 {
		t.Errorf("%v overwrites counted", got)
	}
	n.overwrite(t, "kubepods/memory.min", "0")
	for limit := time.After(time.Minute); ; {
		select {
		case told := <-n.Protector.watcher.Changes():
			if told[cgroupfs.Change{Cgroup: "kubepods", File: "memory.min"}] {
				return
			}
		case <-limit:
			t.Fatal("the kernel does not tell of kubepods")
		}
	}
}

// The pod of a BestEffort container has no values, and its controllers are watched all the same until its last container has ended.
func TestAControllerOfAPodWithoutValues(t *testing.T) {
	const pod = "kubepods/besteffort/podb"
	n := running(t, pod+"/one", pod+"/two")
	high := uint64(8192)
	target := func(name string) cgroup.Target {
		return cgroup.Target{Cgroup: pod + "/" + name, Level: cgroup.LevelContainer, Values: memoryqos.Values{High: &high}}
	}
	if err := errors.Join(n.DesireAll([]cgroup.Target{target("one"), target("two")}), n.Apply(t.Context())); err != nil {
		t.Fatal(err)
	}
	comesBack := func(file string) {
		t.Helper()
		n.holds(t, file, "8192")
		resetFile(t, n, file)
		n.overwrite(t, pod+"/cgroup.subtree_control", "+memory")
		n.holds(t, file, "8192")
	}
	comesBack(pod + "/one/memory.high")
	ends := func(names ...string) {
		t.Helper()
		err := os.RemoveAll(filepath.Join(n.Root(), names[0]))
		if err = errors.Join(err, n.Desire(nil, names), n.Apply(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	ends(pod + "/one")
	comesBack(pod + "/two/memory.high")
	if told := n.Watched(); !told[pod] || !told[pod+"/two"] || told[pod+"/one"] {
		t.Errorf("the kernel tells of %v", told)
	}
	ends(pod, pod+"/two")
	if count := n.watcher.Watches(); count > 0 {
		t.Errorf("%d watches are left", count)
	}
}

// The kernel does not tell that a cgroup is gone whose parent is not watched: kubepods has no watch while nothing above the pods has values.
func TestAPodWithoutValuesIsMadeAgain(t *testing.T) {
	const pod = "kubepods/podb"
	n := running(t, pod+"/one")
	high := uint64(8192)
	target := func(name string) []cgroup.Target {
		return []cgroup.Target{{Cgroup: pod + "/" + name, Level: cgroup.LevelContainer, Values: memoryqos.Values{High: &high}}}
	}
	err := errors.Join(n.Desire(target("one"), nil), n.Apply(t.Context()))
	err = errors.Join(err, os.Rename(filepath.Join(n.Root(), pod), filepath.Join(n.Root(), "away")), os.MkdirAll(filepath.Join(n.Root(), pod, "two"), 0o755))
	if err = errors.Join(err, n.Desire(target("two"), nil), n.Apply(t.Context())); err != nil {
		t.Fatal(err)
	}
	n.holds(t, pod+"/two/memory.high", "8192")
	resetFile(t, n, pod+"/two/memory.high")
	n.overwrite(t, pod+"/cgroup.subtree_control", "+memory")
	n.holds(t, pod+"/two/memory.high", "8192")
}

// Where the kernel's events cannot be read any more, files are compared by the periodic check again.
func TestWhatTheKernelNoLongerTellsIsComparedAgain(t *testing.T) {
	n := running(t, podG+"/one")
	high := uint64(8192)
	target := cgroup.Target{Cgroup: podG + "/one", Level: cgroup.LevelContainer, Values: memoryqos.Values{High: &high}}
	if err := errors.Join(n.DesireAll([]cgroup.Target{target}), n.Apply(t.Context())); err != nil {
		t.Fatal(err)
	}
	n.holds(t, podG+"/one/memory.high", "8192")
	if !n.Watched()[podG+"/one"] {
		t.Fatal("the container is not watched")
	}
	if err := n.watcher.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return !n.Watched()[podG] && !n.Watched()[podG+"/one"] })
	n.overwrite(t, podG+"/one/memory.high", "max")
	if _, err := n.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.holds(t, podG+"/one/memory.high", "8192")
}

// The lock is given up while a watch is made: the kernel's events may end then.
func TestTheKernelsEventsEndWhileAWatchIsMade(t *testing.T) {
	n := newNode(t, nil, podG+"/one")
	n.Protector.watcher = newWatcher(t, n.Tree)
	n.Protector.onChange = func(told map[cgroupfs.Change]bool) {
		if told[cgroupfs.Change{Cgroup: podG}] {
			n.stopWatching()
		}
	}
	high := uint64(8192)
	target := cgroup.Target{Cgroup: podG + "/one", Level: cgroup.LevelContainer, Values: memoryqos.Values{High: &high}}
	if err := errors.Join(n.Desire([]cgroup.Target{target}, nil), n.Apply(t.Context())); err != nil {
		t.Fatal(err)
	}
	if told := n.Watched(); told[podG] {
		t.Errorf("the kernel tells of %v", told)
	}
}

// A pod without values is watched as long as it has a container: it ends and comes back at once, and a refused watch is made again.
func TestAPodWithoutValuesIsWatched(t *testing.T) {
	const pod = "kubepods/besteffort/podb"
	n := running(t, pod+"/one", pod+"/two")
	high := uint64(8192)
	target := func(name string) cgroup.Target {
		return cgroup.Target{Cgroup: pod + "/" + name, Level: cgroup.LevelContainer, Values: memoryqos.Values{High: &high}}
	}
	if err := errors.Join(n.Desire([]cgroup.Target{target("one")}, nil), n.Apply(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(n.Root(), pod+"/one")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.Desire([]cgroup.Target{target("two")}, []string{pod + "/one", pod}), n.Apply(t.Context())); err != nil {
		t.Fatal(err)
	}
	resetFile(t, n, pod+"/two/memory.high")
	n.overwrite(t, pod+"/cgroup.subtree_control", "+memory")
	n.holds(t, pod+"/two/memory.high", "8192")

	n.Protector.mu.Lock()
	n.rows[pod].parts[0].watched = false // as after ENOSPC
	n.Protector.mu.Unlock()
	if _, err := n.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if told := n.Watched(); !told[pod] {
		t.Errorf("the kernel does not tell of the pod: %v", told)
	}
}
