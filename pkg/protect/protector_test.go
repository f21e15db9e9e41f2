package protect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// node is a small tree with a Protector and the writes that it made.
type node struct {
	*cgroupfs.Tree
	*Protector
	journal  *Journal
	log      *logtest.Hook
	clock    time.Time
	unopened string // the file that cannot be opened, in any cgroup
	onOpen   func(dir, file string)

	recording sync.Mutex // systemd's confirmations have files written as well
	writes    []string
}

const (
	podG = "kubepods/podg"
	podB = "kubepods/burstable/podb"
	podC = "kubepods/burstable/podc"
)

func newNode(t testing.TB, units Units, dirs ...string) *node {
	t.Helper()
	files := map[string]string{podG + "/": "", podB + "/": "", podC + "/": ""}
	for _, dir := range dirs {
		files[dir+"/"] = ""
	}
	n := &node{clock: time.Unix(1e9, 0)}
	n.Tree = makeTree(t, files, cgroupfs.Plain(), cgroupfs.OnWrite(func(w cgroupfs.Write) {
		n.recording.Lock()
		defer n.recording.Unlock()
		n.writes = append(n.writes, w.Cgroup+"/"+strings.TrimPrefix(string(w.Knob), "memory.")+"="+w.Text)
	}), cgroupfs.OnOpen(func(dir, file string) error {
		if n.onOpen != nil {
			n.onOpen(dir, file)
		}
		if n.unopened == file && file != "" {
			return unix.EMFILE
		}
		return nil
	}))
	logger, hook := logtest.NewNullLogger()
	n.log = hook
	n.journal = openJournal(t, t.TempDir())
	n.Protector = New(Options{
		Tree: n.Tree, Units: units, Journal: n.journal, Log: logger, Now: func() time.Time { return n.clock },
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		n.Protector.Close(ctx)
	})
	return n
}

func (n *node) clearWrites() {
	n.recording.Lock()
	defer n.recording.Unlock()
	n.writes = nil
}

func (n *node) allWrites() []string {
	n.recording.Lock()
	defer n.recording.Unlock()
	return n.writes
}

// apply makes these pods the living ones and returns the writes.
func (n *node) apply(t testing.TB, pods map[string]memoryqos.Values) []string {
	t.Helper()
	var living []Pod
	for parent, v := range pods {
		living = append(living, Pod{Path: mustPod(t, parent), Values: v})
	}
	n.clearWrites()
	if err := n.applyAll(t.Context(), Targets(living)); err != nil {
		t.Fatal(err)
	}
	return n.allWrites()
}

// reconcile returns the writes and the wait.
func (n *node) reconcile(t testing.TB, cgroups ...string) ([]string, time.Duration) {
	t.Helper()
	n.clearWrites()
	check := n.Reconcile
	if len(cgroups) > 0 {
		told := map[cgroupfs.Change]bool{}
		for _, dir := range cgroups {
			for _, knob := range knobs {
				told[cgroupfs.Change{Cgroup: dir, File: string(knob)}] = true
			}
		}
		check = func(ctx context.Context) (time.Duration, error) { return n.repair(ctx, told) }
	}
	wait, err := check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n.allWrites(), wait
}

func (n *node) overwrite(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.Root(), file), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantWrites(t testing.TB, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestApplyLowersFromBelowAndRaisesFromAbove(t *testing.T) {
	n := newNode(t, nil)
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podG: minimum(100), podB: low(20)}),
		"kubepods/min=120", "kubepods/low=20", "kubepods/burstable/low=20", podG+"/min=100", podB+"/low=20")
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podG: minimum(100), podB: low(20)}))
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podG: minimum(40), podB: low(80)}),
		podG+"/min=40", "kubepods/low=80", "kubepods/burstable/low=80", podB+"/low=80")
	// What one pod gives up, another gets: no moment in which both have it.
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podG: minimum(40), podB: low(30), podC: low(50)}),
		podB+"/low=30", podC+"/low=50")
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podG: minimum(40)}),
		podB+"/low=0", podC+"/low=0", "kubepods/burstable/low=0", "kubepods/min=40", "kubepods/low=0")
	wantWrites(t, n.apply(t, nil), podG+"/min=0", "kubepods/min=0")
	if entries := n.journal.Entries(); len(entries) > 0 {
		t.Errorf("all is restored, but the journal has %v", entries)
	}
	if len(n.rows) > 0 {
		t.Errorf("still held: %v", n.rows)
	}
}

func TestUpdateLeavesTheRestAsItIs(t *testing.T) {
	n := newNode(t, nil)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(100), podB: low(20)})
	update := func(gone []string, targets ...cgroup.Target) []string {
		t.Helper()
		n.clearWrites()
		if err := n.applyPart(t.Context(), targets, gone); err != nil {
			t.Fatal(err)
		}
		return n.allWrites()
	}
	top := func(min, low uint64) cgroup.Target {
		return cgroup.Target{Cgroup: "kubepods", Level: cgroup.LevelKubepods, Driver: cgroup.Cgroupfs, Values: both(min, low)}
	}
	burstable := func(v uint64) cgroup.Target {
		return cgroup.Target{Cgroup: "kubepods/burstable", Level: cgroup.LevelBurstable, Driver: cgroup.Cgroupfs, Values: low(v)}
	}
	pod := func(dir string, v uint64) cgroup.Target {
		return cgroup.Target{Cgroup: dir, Level: cgroup.LevelPod, Driver: cgroup.Cgroupfs, Values: low(v)}
	}
	wantWrites(t, update(nil, top(125, 25), burstable(25), pod(podC, 5)),
		"kubepods/min=125", "kubepods/low=25", "kubepods/burstable/low=25", podC+"/low=5")
	// One goes as another grows.
	wantWrites(t, update([]string{podB, "kubepods/unknown"}, top(115, 15), burstable(15), pod(podC, 15)),
		podB+"/low=0", "kubepods/burstable/low=15", "kubepods/min=115", "kubepods/low=15", podC+"/low=15")
	if n.rows[podB] != nil || n.rows[podG] == nil {
		t.Errorf("holds %v", n.rows)
	}
	n.overwrite(t, podG+"/memory.min", "0")
	wantWrites(t, first(n.reconcile(t)), podG+"/min=100")
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podG: minimum(100), podC: low(15)}))
	wantWrites(t, n.apply(t, nil), podC+"/low=0", "kubepods/burstable/low=0", podG+"/min=0", "kubepods/min=0", "kubepods/low=0")
}

func TestApplyLeavesAloneWhatItNeverSet(t *testing.T) {
	n := newNode(t, nil)
	n.overwrite(t, "kubepods/burstable/memory.low", "777")
	n.overwrite(t, "kubepods/memory.high", "888")
	n.apply(t, map[string]memoryqos.Values{podB: minimum(4096)}) // HardReservation
	n.reconcile(t)
	n.apply(t, nil)
	if got := content(t, n.Tree, "kubepods/burstable/memory.low"); got != "777" {
		t.Errorf("memory.low of burstable is %s", got)
	}
	if got := content(t, n.Tree, "kubepods/memory.high"); got != "888" {
		t.Errorf("memory.high of kubepods is %s", got)
	}
}

func TestChangeOfPolicyTakesTheOldFileBack(t *testing.T) {
	n := newNode(t, nil)
	n.apply(t, map[string]memoryqos.Values{podB: low(100)})
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podB: minimum(100)}),
		podB+"/low=0", "kubepods/burstable/low=0", "kubepods/low=0", "kubepods/burstable/min=100", podB+"/min=100")
	high := uint64(4096)
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podB: {Min: ptr(uint64(100)), High: &high}}), podB+"/high=4096")
	want := []Entry{
		{"kubepods", cgroup.MemoryMin, "", ""}, {"kubepods/burstable", cgroup.MemoryMin, "", ""}, {podB, cgroup.MemoryHigh, "", ""}, {podB, cgroup.MemoryMin, "", ""},
	}
	if diff := cmp.Diff(want, n.journal.Entries()); diff != "" {
		t.Error(diff)
	}
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podB: minimum(100)}), podB+"/high=max")
}

func ptr[T any](v T) *T { return &v }

// What an earlier run wrote goes back to its default where it is not wanted any more: an older release set memory.high of pods
// with a limit of their own, and the policy may have changed while the plugin was stopped.
func TestARestartTakesBackWhatAnEarlierRunWrote(t *testing.T) {
	entries := []Entry{{podB, cgroup.MemoryHigh, "", ""}, {podB, cgroup.MemoryMin, "", ""}}
	known := []Entry{{podB, cgroup.MemoryMin, "", "4096"}}
	for name, test := range map[string]struct {
		fresh   bool
		entries []Entry
		writes  []string
		left    []Entry
	}{
		"written by an earlier run":          {entries: entries, writes: []string{podB + "/min=0", podB + "/high=max"}},
		"written by another":                 {},
		"the kubelet's value is known":       {entries: known, left: known},
		"a new pod in a cgroup of that name": {fresh: true, entries: entries, left: entries},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			put(t, n.Root(), map[string]string{podB + "/memory.min": "4096", podB + "/memory.high": "8192"})
			for _, e := range test.entries {
				n.journal.Note(e)
			}
			if err := n.applyAll(t.Context(), Targets([]Pod{{Path: mustPod(t, podB), Fresh: test.fresh}})); err != nil {
				t.Fatal(err)
			}
			wantWrites(t, n.allWrites(), test.writes...)
			if diff := cmp.Diff(test.left, n.journal.Entries()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestACgroupThatIsGoneIsNoError(t *testing.T) {
	n := newNode(t, nil)
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{"kubepods/podlater": minimum(10)}), "kubepods/min=10")
	wantWrites(t, first(n.reconcile(t)))
	put(t, n.Root(), map[string]string{"kubepods/podlater/": ""})
	wantWrites(t, first(n.reconcile(t)), "kubepods/podlater/min=10")
	if err := os.RemoveAll(filepath.Join(n.Root(), "kubepods/podlater")); err != nil {
		t.Fatal(err)
	}
	wantWrites(t, n.apply(t, nil), "kubepods/min=0")
	if len(n.rows) > 0 {
		t.Errorf("still held: %v", n.rows)
	}
	if len(n.Overwrites()) > 0 {
		t.Errorf("nobody wrote, but %v", n.Overwrites())
	}
}

// What a kubelet wrote into a new pod's files is given back; the sums above it move with every pod.
func TestTheJournalKnowsWhatAPodsFilesHeldBefore(t *testing.T) {
	for name, test := range map[string]struct {
		fresh  bool
		before string
		want   string
	}{
		"a new pod":                            {true, "8192", "8192"},
		"a new pod with the same value":        {true, "4096", "4096"},
		"a new pod without":                    {true, "0", ""},
		"a pod that was there":                 {false, "8192", "8192"},
		"a pod that was there, the same value": {false, "4096", ""}, // which is ours where the journal was lost
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			for _, level := range []string{"kubepods", "kubepods/burstable", podB} {
				put(t, n.Root(), map[string]string{level + "/memory.low": test.before, level + "/memory.min": test.before})
			}
			pod := Pod{Path: mustPod(t, podB), Values: low(4096), Fresh: test.fresh}
			for _, bytes := range []uint64{4096, 12288} { // what is there then is ours
				pod.Values = low(bytes)
				if err := n.applyAll(t.Context(), Targets([]Pod{pod})); err != nil {
					t.Fatal(err)
				}
			}
			want := []Entry{{"kubepods", cgroup.MemoryLow, "", ""}, {"kubepods", cgroup.MemoryMin, "", ""}, {"kubepods/burstable", cgroup.MemoryLow, "", ""}, {podB, cgroup.MemoryLow, "", test.want}}
			if diff := cmp.Diff(want, n.journal.Entries()); diff != "" {
				t.Error(diff)
			}
			// Where the pod is to have nothing from us, 0 is not what the kubelet wants.
			pod.Values = memoryqos.Values{}
			if err := n.applyAll(t.Context(), Targets([]Pod{pod})); err != nil {
				t.Fatal(err)
			}
			if left := n.journal.Entries(); len(left) > 0 != (test.want != "") {
				t.Errorf("the journal has %v", left)
			}
		})
	}
}

// A file that could not be written holds another writer's value: rollback must not set it to the kernel's default. When it can be
// written again, the journal has what it held.
func TestTheJournalHasNoFileThatWasNotWritten(t *testing.T) {
	n := newNode(t, nil, podG+"/memory.min")
	targets := Targets([]Pod{{Path: mustPod(t, podG), Values: minimum(4096)}})
	if err := n.applyAll(t.Context(), targets); err == nil {
		t.Fatal("no error")
	}
	sums := []Entry{{Cgroup: "kubepods", Knob: cgroup.MemoryMin}}
	if diff := cmp.Diff(sums, n.journal.Entries()); diff != "" {
		t.Error(diff)
	}
	file := filepath.Join(n.Root(), podG, "memory.min")
	if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte("8192\n"), 0o644), n.applyAll(t.Context(), targets)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append(sums, Entry{Cgroup: podG, Knob: cgroup.MemoryMin, Restore: "8192"}), n.journal.Entries()); diff != "" {
		t.Error(diff)
	}
}

func first[A, B any](a A, _ B) A { return a }

func TestTheKernelsRoundingIsNoOverwrite(t *testing.T) {
	n := newNode(t, nil)
	n.Protector = New(Options{Tree: n.Tree, PageSize: 4096})
	n.apply(t, map[string]memoryqos.Values{podG: minimum(10_000)})
	n.overwrite(t, podG+"/memory.min", "8192\n")
	wantWrites(t, first(n.reconcile(t)))
	if len(n.Overwrites()) > 0 {
		t.Errorf("%v", n.Overwrites())
	}
	// After a restart, too: systemd must not be asked again for what it holds, and what was found is taken back.
	n.overwrite(t, "kubepods/memory.min", "8192\n")
	n.Protector = New(Options{Tree: n.Tree, PageSize: 4096})
	wantWrites(t, n.apply(t, map[string]memoryqos.Values{podG: minimum(10_000)}))
	wantWrites(t, n.apply(t, nil), "kubepods/podg/min=0", "kubepods/min=0")
}

func TestErrorsDoNotKeepTheOthersFromBeingWritten(t *testing.T) {
	n := newNode(t, nil, podG+"/memory.min")
	err := n.applyAll(t.Context(), Targets([]Pod{{Path: mustPod(t, podG), Values: minimum(10)}, {Path: mustPod(t, podB), Values: low(20)}}))
	if err == nil || !strings.Contains(err.Error(), "read "+n.Root()+"/kubepods/podg/memory.min: is a directory") ||
		!strings.Contains(err.Error(), `write "10" to `+n.Root()+"/kubepods/podg/memory.min: is a directory") {
		t.Errorf("got %v", err)
	}
	if got := content(t, n.Tree, podB+"/memory.low"); got != "20" {
		t.Errorf("memory.low is %s", got)
	}
	for range 3 { // it is said once
		_, err = n.Reconcile(t.Context())
		n.complain(err)
	}
	if err == nil || len(n.log.AllEntries()) != 1 {
		t.Errorf("%v; %d lines", err, len(n.log.AllEntries()))
	}
	n.complain(nil)
	n.complain(err)
	if len(n.log.AllEntries()) != 2 {
		t.Errorf("an error that is back is worth a line; %d lines", len(n.log.AllEntries()))
	}
	if err := n.applyAll(t.Context(), nil); err != nil {
		t.Errorf("nothing of ours is there: %v", err)
	}
	if got := content(t, n.Tree, "kubepods/memory.min"); got != "0" {
		t.Errorf("memory.min of kubepods is %s", got)
	}
}

func TestWhatCannotBeTakenBackIsKeptInMind(t *testing.T) {
	n := newNode(t, nil)
	n.apply(t, map[string]memoryqos.Values{podG: minimum(10)})
	file := filepath.Join(n.Root(), podG, "memory.min")
	if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := n.applyAll(t.Context(), nil); err == nil {
		t.Error("no error")
	}
	if n.rows[podG] == nil || len(n.journal.Entries()) != 1 {
		t.Errorf("%v, journal %v", n.rows, n.journal.Entries())
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	n.reconcile(t)
	wantWrites(t, n.apply(t, nil))
	if len(n.rows) > 0 {
		t.Errorf("still held: %v", n.rows)
	}
}

// units records what a Protector sends to systemd.
type units struct {
	mu    sync.Mutex
	calls []string
	err   error
	tree  *cgroupfs.Tree  // written to as systemd does, when set
	hangs chan struct{}   // a call waits until it is closed, when set
	began chan string     // receives the unit of each call before it waits, when set
	gone  map[string]bool // units that systemd refuses
}

func (u *units) SetMemory(ctx context.Context, unit string, values map[cgroup.Knob]uint64) error {
	if u.began != nil {
		u.began <- unit
	}
	if u.hangs != nil {
		select {
		case <-u.hangs:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	call := unit
	for _, knob := range slices.Sorted(maps.Keys(values)) {
		call += " " + string(knob) + "=" + cgroup.FormatLimit(values[knob])
		if u.tree != nil && unit == "kubepods.slice" {
			u.tree.Set("kubepods.slice", knob, values[knob])
		}
	}
	u.calls = append(u.calls, call)
	if u.gone[unit] {
		return errors.New("refused")
	}
	return u.err
}

// answer makes systemd answer with err from now on.
func (u *units) answer(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = err
}

// taken are the calls since the last time.
func (u *units) taken() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	calls := u.calls
	u.calls = nil
	return calls
}

// flush waits until systemd has confirmed everything.
func (n *node) flush(t testing.TB) {
	t.Helper()
	if err := n.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

const (
	sliceG = "kubepods.slice/kubepods-podg.slice"
	sliceB = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb.slice"
)

func TestFilesAreWrittenAndThenSystemdReceivesTheirValues(t *testing.T) {
	u := &units{}
	n := newNode(t, u, sliceG, sliceB)
	writes := n.apply(t, map[string]memoryqos.Values{sliceB: low(30), podG: minimum(5)})
	wantWrites(t, writes, "kubepods/min=5", "kubepods.slice/min=30", "kubepods.slice/low=30",
		"kubepods.slice/kubepods-burstable.slice/low=30", podG+"/min=5", sliceB+"/low=30")
	n.flush(t)
	calls := u.taken()
	slices.Sort(calls) // a parent comes first where they wait together
	wantWrites(t, calls, "kubepods-burstable-podb.slice memory.low=30", "kubepods-burstable.slice memory.low=30", "kubepods.slice memory.low=30 memory.min=30")
	for _, e := range n.journal.Entries() {
		if (e.Unit != "") != strings.HasPrefix(e.Cgroup, "kubepods.slice") {
			t.Errorf("%v", e)
		}
	}
	n.apply(t, map[string]memoryqos.Values{sliceB: low(30), podG: minimum(5)})
	n.flush(t)
	wantWrites(t, u.taken()) // set only when changed
	n.apply(t, nil)
	n.flush(t)
	calls = u.taken()
	slices.Sort(calls)
	wantWrites(t, calls, "kubepods-burstable-podb.slice memory.low=0", "kubepods-burstable.slice memory.low=0", "kubepods.slice memory.low=0 memory.min=0")
	waitFor(t, func() bool { return len(n.journal.Entries()) == 0 })
}

// systemd writes whatever it holds for a unit, so that files are compared after each confirmation.
func TestFilesAreComparedAfterSystemdHasWrittenThem(t *testing.T) {
	u := &units{hangs: make(chan struct{}), began: make(chan string, 100)}
	n := newNode(t, u, sliceG)
	u.tree = n.Tree
	n.apply(t, map[string]memoryqos.Values{sliceG: minimum(30)})
	if unit := <-u.began; unit != "kubepods.slice" {
		t.Errorf("the first is %s", unit)
	}
	n.apply(t, map[string]memoryqos.Values{sliceG: minimum(40)}) // systemd is just receiving 30
	close(u.hangs)
	n.flush(t)
	waitFor(t, func() bool { return content(t, n.Tree, "kubepods.slice/memory.min") == "40" })
}

// A systemd that executes itself again is not there for a moment, and then writes what it held before.
func TestASystemdThatIsAwayReceivesTheValuesLater(t *testing.T) {
	u := &units{err: ErrNoSystemd}
	n := newNode(t, u, sliceG)
	for i := range uint64(3) {
		n.apply(t, map[string]memoryqos.Values{sliceG: minimum(10 + i)})
		if err := n.Flush(t.Context()); !errors.Is(err, ErrNoSystemd) {
			t.Fatalf("the error is %v", err)
		}
	}
	if got := content(t, n.Tree, sliceG+"/memory.min"); got != "12" {
		t.Errorf("memory.min is %s", got)
	}
	if lines := n.log.AllEntries(); len(lines) != 1 || lines[0].Level != logrus.WarnLevel || !strings.Contains(lines[0].Message, "the cgroup files hold the values") {
		t.Errorf("%d lines", len(lines))
	}
	u.taken()
	u.answer(nil)
	n.flush(t)
	calls := u.taken()
	slices.Sort(calls) // those that failed less come first
	wantWrites(t, calls, "kubepods-podg.slice memory.min=12", "kubepods.slice memory.min=12")
	u.answer(ErrNoUnit)
	n.apply(t, map[string]memoryqos.Values{sliceG: minimum(20)})
	n.flush(t)
	if n.Unconfirmed() != 0 {
		t.Errorf("%d units wait", n.Unconfirmed())
	}
}

func TestNothingWaitsForSystemdOnceItsCgroupIsGone(t *testing.T) {
	u := &units{err: ErrNoSystemd}
	n := newNode(t, u, sliceG)
	n.apply(t, map[string]memoryqos.Values{sliceG: minimum(10)})
	waiting := n.Unconfirmed()
	if err := os.RemoveAll(filepath.Join(n.Root(), sliceG)); err != nil {
		t.Fatal(err)
	}
	_ = n.Flush(t.Context()) // has systemd asked once more
	waitFor(t, func() bool { return n.Unconfirmed() == waiting-1 })
}

// A systemd that does not answer holds nobody: neither those who set values, nor those who read or check them.
func TestASystemdThatHangsHoldsNobody(t *testing.T) {
	u := &units{hangs: make(chan struct{}), began: make(chan string, 5000)}
	n := newNode(t, u)
	var pods []Pod
	for i := range 1000 {
		slice := fmt.Sprintf("kubepods.slice/kubepods-pod%d.slice", i)
		put(t, n.Root(), map[string]string{slice + "/": ""})
		pods = append(pods, Pod{Path: mustPod(t, slice), Values: minimum(10)})
	}
	if err := n.applyAll(t.Context(), Targets(pods)); err != nil {
		t.Fatal(err)
	}
	<-u.began
	n.reconcile(t)
	if got := content(t, n.Tree, "kubepods.slice/memory.min"); got != "10000" {
		t.Errorf("memory.min is %s", got)
	}
	if n.Unconfirmed() != 1001 {
		t.Errorf("%d units wait", n.Unconfirmed())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Protector.Close(ctx); err == nil || err.Error() != "1001 units have properties that systemd has not confirmed: context canceled" {
		t.Errorf("got %v", err)
	}
	if calls := len(u.began); calls > 0 {
		t.Errorf("%d calls after Close", calls)
	}
}

// A systemd that is slow may receive a value after we have stopped waiting, and then holds it for ever.
func TestASystemdThatDidNotAnswerReceivesTheLatestValuesUntilItConfirms(t *testing.T) {
	u := &units{err: context.DeadlineExceeded}
	n := newNode(t, u, sliceG)
	n.apply(t, map[string]memoryqos.Values{sliceG: minimum(30)})
	waitFor(t, func() bool { u.mu.Lock(); defer u.mu.Unlock(); return len(u.calls) > 0 })
	n.apply(t, nil) // the pod ends before systemd has confirmed
	if len(n.journal.Entries()) == 0 {
		t.Error("the journal has forgotten what systemd may still hold")
	}
	n.overwrite(t, "kubepods.slice/memory.min", "30") // systemd writes what it had received
	u.answer(nil)
	u.taken()
	n.flush(t)
	calls := u.taken()
	slices.Sort(calls)
	wantWrites(t, slices.Compact(calls), "kubepods-podg.slice memory.min=0", "kubepods.slice memory.min=0") // a repair repeats one
	waitFor(t, func() bool { return content(t, n.Tree, "kubepods.slice/memory.min") == "0" })
	n.flush(t)
	waitFor(t, func() bool { return len(n.journal.Entries()) == 0 })
	n.apply(t, nil)
	if len(n.rows) > 0 {
		t.Errorf("still held: %v", n.rows)
	}
	if lines := n.log.AllEntries(); len(lines) != 1 || !strings.Contains(lines[0].Message, "systemd has not confirmed") {
		t.Errorf("%d lines", len(lines))
	}
}

// A unit that systemd refuses does not keep the others waiting.
func TestARefusedUnitKeepsNoOtherWaiting(t *testing.T) {
	u := &units{gone: map[string]bool{"kubepods.slice": true}}
	n := newNode(t, u, sliceG, sliceB)
	n.apply(t, map[string]memoryqos.Values{sliceG: minimum(30), sliceB: low(5)})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		waitFor(t, func() bool { return n.Unconfirmed() == 1 })
		u.taken()
		waitFor(t, func() bool { // the first of two calls has ended
			u.mu.Lock()
			defer u.mu.Unlock()
			return len(u.calls) > 1
		})
		cancel()
	}()
	if err := n.Flush(ctx); err == nil || err.Error() != "1 units have properties that systemd has not confirmed: refused" {
		t.Errorf("got %v", err)
	}
}

// A slice of any name is loaded by systemd and keeps a drop-in; one whose cgroup is gone must not be.
func TestAUnitThatIsGoneReceivesNothing(t *testing.T) {
	u := &units{hangs: make(chan struct{}), began: make(chan string, 100)}
	n := newNode(t, u, sliceG, sliceB)
	n.apply(t, map[string]memoryqos.Values{sliceG: minimum(30), sliceB: low(5)})
	<-u.began // of kubepods.slice; the others wait
	if err := os.RemoveAll(filepath.Join(n.Root(), sliceG)); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(n.Root(), sliceB) // whether it is there is not known
	if err := errors.Join(os.RemoveAll(link), os.Symlink(n.Root(), link)); err != nil {
		t.Fatal(err)
	}
	close(u.hangs)
	waitFor(t, func() bool { return n.Unconfirmed() == 1 })
	for _, call := range u.taken() {
		if strings.Contains(call, "-pod") {
			t.Errorf("systemd received %s", call)
		}
	}
	n.apply(t, map[string]memoryqos.Values{sliceB: low(5)}) // the file is written first, and is not there
	if err := errors.Join(os.Remove(link), os.Mkdir(link, 0o755)); err != nil {
		t.Fatal(err)
	}
	n.flush(t)
	if calls := strings.Join(u.taken(), ","); !strings.Contains(calls, "kubepods-burstable-podb.slice memory.low=5") || strings.Contains(calls, "kubepods-podg") {
		t.Errorf("systemd received %s", calls)
	}
}

func TestRetryIntervalsGrowAndAreBounded(t *testing.T) {
	var got []time.Duration
	for failures := range 8 {
		got = append(got, retryInterval(failures))
	}
	want := []time.Duration{1, 1, 2, 4, 8, 16, 30, 30}
	for i := range want {
		want[i] *= time.Second
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRunningContainersAreWrittenInsideAndOutside(t *testing.T) {
	const crun, runc = sliceG + "/crio-a.scope", podG + "/b"
	u := &units{}
	n := newNode(t, u, crun+"/container", runc)
	set := func(dir string, driver cgroup.Driver, values memoryqos.Values, mems string) []string {
		t.Helper()
		n.flush(t)
		u.taken()
		target := cgroup.Target{Cgroup: dir, Level: cgroup.LevelContainer, Driver: driver, Values: values, Mems: mems}
		return n.do(t, func() error {
			return errors.Join(n.applyPart(t.Context(), []cgroup.Target{target}, nil), n.WriteLate(t.Context()))
		})
	}
	wantWrites(t, set(crun, cgroup.Systemd, minimum(10), ""), crun+"/min=10", crun+"/container/min=10")
	n.flush(t)
	wantWrites(t, u.taken(), "crio-a.scope memory.min=10")
	wantWrites(t, set(crun, cgroup.Systemd, minimum(10), "0-1"), crun+"/cpuset.mems=0-1", crun+"/container/cpuset.mems=0-1")
	n.flush(t)
	wantWrites(t, u.taken(), "crio-a.scope cpuset.mems=3")
	wantWrites(t, set(crun, cgroup.Systemd, minimum(5), "0-1"), crun+"/container/min=5", crun+"/min=5")
	wantWrites(t, set(crun, cgroup.Systemd, memoryqos.Values{}, "0-1"), crun+"/container/min=0", crun+"/min=0")
	wantWrites(t, set(runc, cgroup.Cgroupfs, memoryqos.Values{High: ptr[uint64](4096)}, ""), runc+"/high=4096")
	n.flush(t)
	wantWrites(t, u.taken())
	wantWrites(t, set(runc, cgroup.Cgroupfs, memoryqos.Values{High: ptr[uint64](4096)}, ""))
	want := []Entry{{crun, cgroup.CpusetMems, "crio-a.scope", ""}, {runc, cgroup.MemoryHigh, "", ""}}
	if diff := cmp.Diff(want, n.journal.Entries()); diff != "" {
		t.Error(diff)
	}
	wantWrites(t, set(podG+"/gone", cgroup.Cgroupfs, minimum(1), "")) // it may be yet to come
}

// One container that cannot be written is no failure of the parent cgroups, which are not tried again for it.
func TestAContainerThatCannotBeWrittenFailsAlone(t *testing.T) {
	n := newNode(t, nil, runcA+"/memory.min", crunB)
	targets := containers(t, Container{Values: minimum(100)}, Container{Values: low(20)})
	wantWrites(t, n.do(t, func() error { return n.applyAll(t.Context(), targets) }),
		"kubepods/min=120", "kubepods/low=20", "kubepods/burstable/low=20", podG+"/min=100", podB+"/low=20", crunB+"/low=20")
	if err := n.Check(t.Context(), runcA, crunB); err == nil || !strings.Contains(err.Error(), runcA+"/memory.min") {
		t.Errorf("got %v", err)
	}
	if got := n.Repairs(); got.Failures == 0 {
		t.Errorf("%+v", got)
	}
}

func TestAProtectorNeedsATreeOnly(t *testing.T) {
	tree := makeTree(t, map[string]string{podG + "/": ""}, cgroupfs.Plain())
	p := New(Options{Tree: tree})
	if err := p.applyAll(t.Context(), Targets([]Pod{{Path: mustPod(t, podG), Values: minimum(4096)}})); err != nil {
		t.Fatal(err)
	}
	if err := p.applyAll(t.Context(), nil); err != nil || content(t, tree, podG+"/memory.min") != "0" {
		t.Error(err)
	}
	p.Prune()
	p.complain(errors.New("x"))
}
