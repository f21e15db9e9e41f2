package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// gates are writes of some values that do not return before the test lets them.
type gates struct {
	*Protector
	tree *cgroupfs.Tree

	mu    sync.Mutex
	held  map[string]chan struct{} // by text
	begun map[string]int           // by cgroup and text
}

// newGates makes containers c0, c1, … of a pod with memory.high max, and has the writes of some texts wait.
func newGates(t *testing.T, containers int, texts ...string) *gates {
	t.Helper()
	g := &gates{held: map[string]chan struct{}{}, begun: map[string]int{}}
	for _, text := range texts {
		g.held[text] = make(chan struct{})
	}
	files := map[string]string{}
	for i := range containers {
		files[fmt.Sprintf("%s/c%d/memory.high", podB, i)] = "max"
		files[fmt.Sprintf("%s/c%d/cpuset.mems", podB, i)] = "0"
	}
	g.tree = makeTree(t, files, cgroupfs.Plain(), cgroupfs.OnWrite(func(w cgroupfs.Write) {
		g.mu.Lock()
		g.begun[w.Cgroup+" "+w.Text]++
		gate := g.held[w.Text]
		g.mu.Unlock()
		if gate != nil {
			<-gate
		}
	}))
	g.Protector = New(Options{Tree: g.tree, Migration: 1 << 40})
	t.Cleanup(func() {
		for _, text := range texts {
			g.open(text)
		}
	})
	return g
}

// open lets the writes of a text return, from now on.
func (g *gates) open(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if gate := g.held[text]; gate != nil {
		close(gate)
		delete(g.held, text)
	}
}

// count is how many writes of a text have begun, in all containers.
func (g *gates) count(text string) (sum int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for what, n := range g.begun {
		if strings.HasSuffix(what, " "+text) {
			sum += n
		}
	}
	return sum
}

// desire gives a container a memory.high, and cpuset.mems where they are named.
func (g *gates) desire(t *testing.T, container int, high uint64, mems string) {
	t.Helper()
	err := g.applyPart(t.Context(), []cgroup.Target{{
		Cgroup: dirOf(container), Level: cgroup.LevelContainer, Driver: cgroup.Cgroupfs, Values: memoryqos.Values{High: &high}, Mems: mems,
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
}

func dirOf(container int) string { return fmt.Sprintf("%s/c%d", podB, container) }

// run runs the protector's own loop, without a periodic look, until the test ends.
func (g *gates) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.Run(ctx, 1<<40)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return stop
}

func (g *gates) high(t *testing.T, container int) string {
	return content(t, g.tree, dirOf(container)+"/memory.high")
}

// Writes for which the kernel reclaims go on beside one another, up to a bound. A memory.high that is raised waits for none of them, nor
// for another that is raised and does not return.
func TestARaiseWaitsForNoSlowWrite(t *testing.T) {
	const stuck, waiting, raised, other = "4096", slowWrites, slowWrites + 1, slowWrites + 2
	g := newGates(t, slowWrites+3, stuck, "16384")
	for _, container := range []int{raised, other} {
		g.desire(t, container, 8192, "")
	}
	if err := g.WriteLate(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.run(t)
	for container := range slowWrites + 1 {
		g.desire(t, container, 4096, "")
	}
	waitFor(t, func() bool { return g.count(stuck) == slowWrites })
	g.desire(t, other, 16384, "")
	waitFor(t, func() bool { return g.count("16384") == 1 })
	g.desire(t, raised, 12288, "")
	waitFor(t, func() bool { return g.high(t, raised) == "12288" })
	if n := g.count(stuck); n != slowWrites {
		t.Errorf("%d slow writes are under way, want %d", n, slowWrites)
	}
	g.open(stuck)
	waitFor(t, func() bool { return g.count(stuck) == slowWrites+1 && g.high(t, waiting) == "4096" })
}

// A container's slow writes are made one at a time. A raise of the same container's memory.high does not wait for them.
func TestSlowWritesOfAContainerKeepTheirOrder(t *testing.T) {
	g := newGates(t, 1, "4096")
	g.run(t)
	g.desire(t, 0, 4096, "")
	waitFor(t, func() bool { return g.count("4096") == 1 })

	g.desire(t, 0, 8192, "1") // by now memory.high goes up, and the nodes change
	if err := g.CheckHigh(t.Context(), dirOf(0)); err != nil {
		t.Fatal(err)
	}
	if got := g.high(t, 0); got != "8192" {
		t.Errorf("memory.high is %s while the older write is under way, want 8192", got)
	}
	g.desire(t, 0, 2048, "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Check(ctx, dirOf(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n := g.count("2048") + g.count("1"); n != 0 {
		t.Errorf("%d writes of the container have overtaken the one that is under way", n)
	}
	g.open("4096")
	waitFor(t, func() bool {
		return g.high(t, 0) == "2048" && content(t, g.tree, dirOf(0)+"/cpuset.mems") == "1"
	})
}

// The end does not wait for the kernel: what has begun is left alone, and Close says so.
func TestTheEndWaitsForNoSlowWrite(t *testing.T) {
	g := newGates(t, 2, "4096")
	stop := g.run(t)
	g.desire(t, 0, 4096, "")
	waitFor(t, func() bool { return g.count("4096") == 1 })
	stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	const want = "a write of a cgroup's file has not returned: context canceled"
	if err := g.Close(ctx); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	g.open("4096")
	if err := g.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if !g.rows[dirOf(0)].done() {
		t.Error("what came of the write is not known")
	}
	g.desire(t, 1, 4096, "") // nothing is written any more
	if n := g.count("4096"); n != 1 {
		t.Errorf("%d writes", n)
	}
}

// The journal's file has a file of a cgroup before it is written for the first time.
func TestTheJournalKnowsAFileBeforeItIsWritten(t *testing.T) {
	dir, early := t.TempDir(), 0
	tree := makeTree(t, map[string]string{podG + "/": "", podB + "/": "", runcA + "/memory.high": "max"}, cgroupfs.Plain(), cgroupfs.OnWrite(func(w cgroupfs.Write) {
		data, err := os.ReadFile(filepath.Join(dir, JournalFile))
		known, damage := decodeJournal(data)
		if _, there := known[w.Cgroup].knobs[w.Knob]; !there || err != nil || damage != nil {
			early++
		}
	}))
	j := openJournal(t, dir)
	p := New(Options{Tree: tree, Journal: j})
	ended, end := context.WithCancel(t.Context()) // of a connection that was lost
	end()
	for i := range 10 { // each pod is new
		pod := fmt.Sprintf("kubepods/podg%d", i)
		put(t, tree.Root(), map[string]string{pod + "/": ""})
		targets := Targets([]Pod{{Path: mustPod(t, pod), Values: minimum(100)}})
		ctx := t.Context()
		if i%2 > 0 {
			ctx = ended
		}
		if err := p.applyPart(ctx, targets, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(p.applyPart(t.Context(), containers(t, Container{Values: minimum(100), Mems: "1"}, Container{Values: low(20)}), nil),
		p.WriteLate(t.Context())); err != nil {
		t.Fatal(err)
	}
	if early > 0 {
		t.Errorf("%d files were written that the journal on disk did not know", early)
	}
}

// A write that fails because the cgroup is gone, or because only the runtime may make it, is not repeated at once.
func TestASlowWriteThatCannotSucceedIsNotRepeated(t *testing.T) {
	gone, own := fs.ErrNotExist, cgroupfs.ErrOwn
	for name, opens := range map[string][]error{ // of memory.high: two reads, a write, and what may follow
		"unreadable, then gone":      {nil, unix.EMFILE, gone, gone, gone, gone},
		"gone while it is written":   {nil, nil, gone, gone, gone, gone},
		"of this plugin's container": {nil, nil, own, nil, own, nil, own},
	} {
		t.Run(name, func(t *testing.T) {
			opened := 0
			p := New(Options{Tree: makeTree(t, map[string]string{dirOf(0) + "/memory.high": "max"}, cgroupfs.Plain(), cgroupfs.OnOpen(func(_, file string) error {
				if file != "memory.high" {
					return nil
				}
				if opened++; opened > len(opens) {
					return unix.EIO
				}
				return opens[opened-1]
			}))})
			g := &gates{Protector: p}
			g.desire(t, 0, 4096, "")
			_ = p.WriteLate(t.Context())
			if opened > 3 {
				t.Errorf("memory.high was opened %d times", opened)
			}
		})
	}
}

// A container that still reclaims for the memory.high of before keeps no other container from being restored.
func TestARestoredContainerWaitsForNoOther(t *testing.T) {
	const stuck = "4096"
	g := newGates(t, 3, stuck)
	put(t, g.tree.Root(), map[string]string{podB + "/cpuset.mems.effective": "0-1"})
	g.Protector = New(Options{Tree: g.tree, Journal: openJournal(t, t.TempDir()), Migration: 1 << 40})
	for container := range 3 {
		g.desire(t, container, 8192, "1")
	}
	if err := g.WriteLate(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := g.run(t)
	g.desire(t, 1, 4096, "1")
	waitFor(t, func() bool { return g.count(stuck) == 1 })
	stop() // a dry run begins
	g.RestoreAll(g.Journaled())
	if err := g.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	returned := make(chan error)
	go func() { returned <- g.WriteLate(t.Context()) }()
	waitFor(t, func() bool { return g.high(t, 2) == "max" })
	g.open(stuck)
	if err := <-returned; err != nil {
		t.Error(err)
	}
}

// A first value waits for the journal's file, although it is higher than what another writer left.
func TestAFirstValueThatRaisesWaitsForTheJournal(t *testing.T) {
	var noted atomic.Bool
	before := durable.Before
	durable.Before = func(_, path string, _ []byte) error {
		if strings.Contains(path, JournalFile) && !noted.Load() {
			time.Sleep(20 * time.Millisecond)
			noted.Store(true)
		}
		return nil
	}
	t.Cleanup(func() { durable.Before = before })
	tree := makeTree(t, map[string]string{runcA + "/memory.high": "4096"}, cgroupfs.Plain(), cgroupfs.OnWrite(func(w cgroupfs.Write) {
		if !noted.Load() {
			t.Errorf("%s of %s is written before the journal has it", w.Text, w.Cgroup)
		}
	}))
	p, value := New(Options{Tree: tree, Journal: openJournal(t, t.TempDir())}), uint64(8192)
	if err := p.Desire([]cgroup.Target{{Cgroup: runcA, Level: cgroup.LevelContainer, Values: memoryqos.Values{High: &value}}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Apply(t.Context()), p.CheckHigh(t.Context(), runcA)); err != nil {
		t.Fatal(err)
	}
	if text := content(t, tree, runcA+"/memory.high"); text != "8192" {
		t.Errorf("memory.high is %q", text)
	}
}
