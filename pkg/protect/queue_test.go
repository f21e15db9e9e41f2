package protect

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// A flush that waits for a unit whose cgroup is gone meanwhile has nothing to wait for.
func TestAFlushEndsWithTheLastCgroup(t *testing.T) {
	const dir = "kubepods.slice/kubepods-podg.slice"
	p := New(Options{Tree: makeTree(t, map[string]string{dir + "/memory.min": "0\n"})})
	r := p.addRow(dir, cgroup.LevelPod)
	p.systemd.waiting, p.systemd.changed = map[*row]*unitValues{r: {}}, make(chan struct{}) // between two tries: nothing is sent
	flushed := make(chan error, 1)
	go func() { flushed <- p.Flush(t.Context()) }()
	waitFor(t, func() bool { return p.systemd.flushing.Load() > 0 })
	if err := os.RemoveAll(filepath.Join(p.tree.Root(), dir)); err != nil {
		t.Fatal(err)
	}
	if pause := p.retryDelay(); pause != 0 {
		t.Errorf("the next try is in %s, and nothing waits", pause)
	}
	select {
	case err := <-flushed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the flush waits for a unit that does not wait any more")
	}
}

// What comes when nothing waits is sent, although the last call has failed.
func TestAUnitIsSentAfterTheOneThatFailedIsGone(t *testing.T) {
	u := &units{hangs: make(chan struct{}), began: make(chan string, 100), err: errors.New("refused")}
	n := newNode(t, u, sliceG, sliceB)
	update := func(dir string) {
		t.Helper()
		target := cgroup.Target{Cgroup: dir, Level: cgroup.LevelPod, Driver: cgroup.Systemd, Values: minimum(10)}
		if err := n.applyPart(t.Context(), []cgroup.Target{target}, nil); err != nil {
			t.Fatal(err)
		}
	}
	update(sliceG)
	<-u.began
	if err := os.RemoveAll(filepath.Join(n.Root(), sliceG)); err != nil {
		t.Fatal(err)
	}
	close(u.hangs)
	waitFor(t, func() bool { return n.Unconfirmed() == 0 })
	u.answer(nil)
	update(sliceB)
	waitFor(t, func() bool { return n.Unconfirmed() == 0 })
	wantWrites(t, u.taken(), "kubepods-podg.slice memory.min=10", "kubepods-burstable-podb.slice memory.min=10")
}

// A dry run does not look at files of which the kernel tells: what systemd writes again before it has confirmed the defaults is found with the
// next RestoreAll.
func TestWhatSystemdWritesAgainIsRestoredAgain(t *testing.T) {
	u := &units{}
	n := newNode(t, u, sliceG)
	target := cgroup.Target{Cgroup: sliceG, Level: cgroup.LevelPod, Driver: cgroup.Systemd, Values: minimum(10)}
	if err := n.applyPart(t.Context(), []cgroup.Target{target}, nil); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return n.Unconfirmed() == 0 })
	u.answer(ErrNoSystemd)
	for range 2 {
		n.RestoreAll(n.Journaled())
		if err := n.Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := content(t, n.Tree, sliceG+"/memory.min"); got != "0" {
			t.Errorf("memory.min is %s", got)
		}
		put(t, n.Root(), map[string]string{sliceG + "/memory.min": "10\n"}) // a reload, as systemd has not received the default
	}
}

// A rollback repeats RestoreAll until all is restored. A systemd that takes longer for a call than that has confirmed the call all the same.
func TestWhatIsQueuedAgainDuringItsCallIsConfirmed(t *testing.T) {
	u := &units{hangs: make(chan struct{}), began: make(chan string, 100)}
	n := newNode(t, u, sliceG)
	target := cgroup.Target{Cgroup: sliceG, Level: cgroup.LevelPod, Driver: cgroup.Systemd, Values: minimum(10)}
	if err := n.applyPart(t.Context(), []cgroup.Target{target}, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 { // during the call for 10, and during the one for the default
		<-u.began
		n.RestoreAll(n.Journaled())
		if err := n.Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		u.hangs <- struct{}{}
	}
	waitFor(t, func() bool { return n.Unconfirmed() == 0 })
	wantWrites(t, u.taken(), "kubepods-podg.slice memory.min=10", "kubepods-podg.slice memory.min=0")
}

// A cgroup that was perhaps made again before the write of a value is recorded is read. Where it holds the value, systemd gets that, too.
func TestAValueThatIsFoundAgainIsConfirmed(t *testing.T) {
	n := newNode(t, nil, sliceG)
	f := &folder{root: n.Root(), watches: map[string]int{}, closed: make(chan struct{}), watching: func(string) {}}
	n.Protector = New(Options{Tree: cgroupfs.New(n.Root(), f), Journal: n.journal, Units: &units{}, PageSize: 1})
	apply := func(value uint64) {
		t.Helper()
		target := cgroup.Target{Cgroup: sliceG, Level: cgroup.LevelPod, Driver: cgroup.Systemd, Values: minimum(value)}
		if err := n.applyAll(t.Context(), []cgroup.Target{target}); err != nil {
			t.Fatal(err)
		}
	}
	n.systemd.stop() // nothing is sent
	<-n.systemd.ended
	apply(10)
	r := n.rows[sliceG]
	n.systemd.remove(r) // systemd has that
	f.done = func(dir, written string) {
		if dir == sliceG && written == "memory.min" {
			n.mu.Lock()
			defer n.mu.Unlock()
			r.parts[0].setRemade()
		}
	}
	apply(20)
	f.done = nil
	n.reconcile(t)
	if got := n.systemd.waiting[r]; got == nil || got.values[cgroup.MemoryMin] != 20 || content(t, n.Tree, sliceG+"/memory.min") != "20" {
		t.Errorf("systemd is to get %+v", got)
	}
}
