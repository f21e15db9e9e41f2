package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// The folders here have no memory.pressure, as on a kernel without PSI: what the trigger does only a kernel can show.

type host struct {
	mu    sync.Mutex
	highs map[string][]uint64
	err   error
	set   chan struct{}
}

func (h *host) SetHigh(_ context.Context, id string, bytes uint64) error {
	h.mu.Lock()
	h.highs[id] = append(h.highs[id], bytes)
	err := h.err
	h.mu.Unlock()
	h.set <- struct{}{}
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

func newFixture(t *testing.T, settings Settings) *fixture {
	t.Helper()
	f := &fixture{t: t, root: t.TempDir(), host: &host{highs: map[string][]uint64{}, set: make(chan struct{}, 100)}, episodes: make(chan Episode, 10)}
	if err := os.MkdirAll(filepath.Join(f.root, "cg", cgroupPath), 0o755); err != nil {
		t.Fatal(err)
	}
	f.write("proc/vmstat", "nr_free_pages 12\nallocstall_dma 1\nallocstall_normal 2\n")
	f.write("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
	f.state(32*mib, 0)
	tree, err := cgroup.Open(filepath.Join(f.root, "cg"), cgroup.Plain())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	log, hook := test.NewNullLogger()
	f.logged = hook
	f.guard, err = New(Options{Settings: settings, Tree: tree, Node: Node{Proc: filepath.Join(f.root, "proc"), Tree: tree}, Host: f.host,
		Log: log, OnEpisode: func(e Episode) { f.episodes <- e }})
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
	if _, err := f.guard.Put(Container{ID: "c1", Pod: "default/p", Name: "c", Cgroup: cgroupPath, Bounds: Bounds{Computed: 32 * mib, Limit: 64 * mib}, High: high}); err != nil {
		f.t.Fatal(err)
	}
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
	for len(f.host.highs["c1"]) == 0 || f.last() != 32*mib {
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
	warned := 0
	for _, entry := range f.logged.AllEntries() {
		if entry.Level == logrus.WarnLevel {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("%d warnings, want one: that the kernel keeps no pressure", warned)
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

func TestContainerThatCannotBeRaisedIsDropped(t *testing.T) {
	f := newFixture(t, quick)
	f.host.err = fmt.Errorf("write memory.high: %w", fs.ErrNotExist)
	f.put(0)
	f.run()
	events := 0
	f.await("attempt", f.host.set, func() { events++; f.state(32*mib, events) })
	f.guard.Drop("c1")
	f.guard.Drop("c1")
	if len(f.guard.Statuses()) > 0 {
		t.Error("the container is still watched")
	}
}

func TestNewSettingsAndBoundsReachAWatchedContainer(t *testing.T) {
	f := newFixture(t, defaults)
	f.put(48 * mib)
	high, err := f.guard.Put(Container{ID: "c1", Bounds: Bounds{Computed: 50 * mib, Limit: 64 * mib}})
	if err != nil || high != 50*mib {
		t.Errorf("after a resize: memory.high %d, error %v, want the computed 50 MiB", high, err)
	}
	f.guard.SetSettings(quick)
	f.put(0)
	if got := f.guard.watched["c1"].brake.settings; got != quick {
		t.Errorf("settings %+v, want the new ones", got)
	}
}

func TestNodeReadsTheKernelsFiles(t *testing.T) {
	f := newFixture(t, defaults)
	if got, err := f.guard.node.Reclaims(); err != nil || got != 3 {
		t.Errorf("reclaims %d, %v; want 3", got, err)
	}
	node := f.guard.node
	node.Reserve = func() uint64 { return 1 << 30 }
	if got, err := node.Available(); err != nil || got != 1<<30 {
		t.Errorf("available %d, %v; want 2 GiB without the reserve", got, err)
	}
	f.write("cg/kubepods/memory.max", "1073741824\n")
	f.write("cg/kubepods/memory.current", "1072693248\n")
	f.write("cg/kubepods/memory.stat", "inactive_file 1048576\nactive_file 7000000\n")
	node.Kubepods = func() string { return "kubepods" }
	if got, err := node.Available(); err != nil || got != 2<<20 {
		t.Errorf("available %d, %v; want the MiB that kubepods may still take, and the one of old page cache", got, err)
	}
	for file, text := range map[string]string{"meminfo": "MemTotal: 1 kB\n", "vmstat": "allocstall_dma many\n"} {
		f.write("proc/"+file, text)
	}
	if _, err := node.Available(); err == nil || !strings.Contains(err.Error(), "meminfo: the expected lines are missing") {
		t.Errorf("error %v, want one that names meminfo", err)
	}
	if _, err := node.Reclaims(); err == nil || !strings.Contains(err.Error(), `vmstat: line "allocstall_dma many": the value is no number`) {
		t.Errorf("error %v, want one that names the line", err)
	}
}

func FuzzNodeFiles(f *testing.F) {
	f.Add("MemAvailable:    2097152 kB\n")
	f.Add("MemAvailable:\nallocstall_dma 1")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = sumFields(strings.NewReader(text), func(name string) bool { return name == "MemAvailable:" })
	})
}
