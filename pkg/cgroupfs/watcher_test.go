package cgroupfs

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

func newWatcher(t *testing.T, tree *Tree) *Watcher {
	t.Helper()
	w, err := NewWatcher(tree)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// told receives changes until all of these are among them, and returns how often it received and what it was told beside them.
func told(t *testing.T, w *Watcher, want ...Change) (times int, others map[Change]bool) {
	t.Helper()
	others = map[Change]bool{}
	for len(want) > 0 {
		select {
		case all := <-w.Changes():
			times++
			maps.Copy(others, all)
			want = slices.DeleteFunc(want, func(c Change) bool { return all[c] })
		case <-time.After(time.Minute):
			t.Fatalf("not told of %v", want)
		}
	}
	return times, others
}

func TestWritesAreToldOnce(t *testing.T) {
	tree := makeTree(t, map[string]string{
		"kubepods/memory.min": "0", "kubepods/memory.low": "0", "kubepods/memory.max": "0", "kubepods/pod1/cpuset.mems": "",
	})
	w := newWatcher(t, tree)
	if err := errors.Join(w.Watch("kubepods", "memory.min", "memory.low"), w.Watch("kubepods", "memory.min"), w.Watch("kubepods/pod1", "cpuset.mems")); err != nil {
		t.Fatal(err)
	}
	if w.Watches() != 3 {
		t.Errorf("%d watches", w.Watches())
	}
	write := func(file, text string) {
		f, err := os.OpenFile(filepath.Join(tree.Root(), file), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write("kubepods/memory.max", "1") // nobody asked
	write("kubepods/pod1/cpuset.mems", "0")
	mems, minimum, low := Change{"kubepods/pod1", "cpuset.mems"}, Change{"kubepods", "memory.min"}, Change{"kubepods", "memory.low"}
	if _, all := told(t, w, mems); len(all) != 1 {
		t.Errorf("told of %v", all)
	}
	// Of a flood before anybody listens, all is told at once: how often depends on when the kernel's events are read.
	for range 100 {
		write("kubepods/memory.min", "1")
	}
	write("kubepods/memory.low", "1")
	if times, all := told(t, w, low); times > 50 || len(all) != 2 || !all[minimum] {
		t.Errorf("told %d times of %v", times, all)
	}
}

func TestWatchesEndWithTheirCgroup(t *testing.T) {
	files := map[string]string{"kubepods/memory.min": "0", "kubepods/pod1/memory.min": "0", "kubepods/pod1/memory.low": "0", "kubepods/pod2/memory.min": "0"}
	tree := makeTree(t, files)
	w := newWatcher(t, tree)
	for _, cgroup := range []string{"kubepods", "kubepods/pod1", "kubepods/pod2"} {
		if err := w.Watch(cgroup, "memory.min"); err != nil {
			t.Fatal(err)
		}
	}
	w.Unwatch("kubepods/pod2")
	w.Unwatch("kubepods/pod2")
	if w.Watches() != 2 {
		t.Errorf("%d watches", w.Watches())
	}
	if err := os.RemoveAll(filepath.Join(tree.Root(), "kubepods/pod1")); err != nil {
		t.Fatal(err)
	}
	w.Prune(2) // no kernel says so of a cgroup
	if w.Watches() != 1 {
		t.Errorf("%d watches", w.Watches())
	}
	cgroups.Fill(t, tree.Root(), files)
	if err := w.Watch("kubepods/pod1", "memory.min", "memory.low"); err != nil || w.Watches() != 3 {
		t.Errorf("%d watches, %v", w.Watches(), err)
	}
	if err := os.Rename(filepath.Join(tree.Root(), "kubepods/pod1"), filepath.Join(tree.Root(), "kubepods/away")); err != nil {
		t.Fatal(err)
	}
	w.Prune(1)
	w.Prune(1)
	if w.Watches() != 1 {
		t.Errorf("%d watches", w.Watches())
	}
	// A cgroup recreated under a watched name.
	if err := os.Rename(filepath.Join(tree.Root(), "kubepods/memory.min"), filepath.Join(tree.Root(), "kubepods/old")); err != nil {
		t.Fatal(err)
	}
	cgroups.Fill(t, tree.Root(), files)
	if err := w.Watch("kubepods", "memory.min"); err != nil || w.Watches() != 1 {
		t.Errorf("%d watches, %v", w.Watches(), err)
	}
}

func TestOnlyKubepodsIsWatched(t *testing.T) {
	tree := makeTree(t, map[string]string{"system.slice/memory.min": "0", "kubepods/": ""})
	w := newWatcher(t, tree)
	if err := w.Watch("system.slice", "memory.min"); err == nil {
		t.Error("watches outside kubepods")
	}
	if err := w.Watch("kubepods", "memory.min"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestAnOverflowTellsOfAll(t *testing.T) {
	tree := makeTree(t, map[string]string{"kubepods/memory.min": "0", "kubepods/memory.low": "0"})
	w := newWatcher(t, tree)
	if err := w.Watch("kubepods", "memory.min", "memory.low"); err != nil {
		t.Fatal(err)
	}
	event := make([]byte, unix.SizeofInotifyEvent)
	binary.NativeEndian.PutUint32(event, ^uint32(0)) // no watch: -1
	binary.NativeEndian.PutUint32(event[4:], unix.IN_Q_OVERFLOW)
	w.take(append(event, 1, 2, 3))
	w.wake <- struct{}{}
	told(t, w, Change{"kubepods", "memory.min"}, Change{"kubepods", "memory.low"})
	// Events of watches that have ended are of no interest.
	binary.NativeEndian.PutUint32(event, 999)
	binary.NativeEndian.PutUint32(event[4:], unix.IN_IGNORED)
	w.take(event)
	binary.NativeEndian.PutUint32(event[4:], unix.IN_MODIFY)
	binary.NativeEndian.PutUint32(event[12:], 1<<31)
	w.take(event)
}

func TestCloseEndsTheChanges(t *testing.T) {
	tree := makeTree(t, map[string]string{"kubepods/memory.min": "0"})
	w, err := NewWatcher(tree)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.pending[Change{"kubepods", "memory.min"}] = true // nobody listens
	w.mu.Unlock()
	w.wake <- struct{}{}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	for range w.Changes() {
	}
	if err := w.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}
