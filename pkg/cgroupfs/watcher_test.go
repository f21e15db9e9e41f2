package cgroupfs

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
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

func watch(w *Watcher, all ...Change) (err error) {
	for _, c := range all {
		_, failed := w.Watch(c)
		err = errors.Join(err, failed)
	}
	return err
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
	mems, minimum, low := Change{"kubepods/pod1", "cpuset.mems"}, Change{"kubepods", "memory.min"}, Change{"kubepods", "memory.low"}
	if err := watch(w, minimum, low, minimum, mems); err != nil {
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

// Of a cgroup as a whole are told writes to the files that this program writes and to memory.max, however they come there, and the cgroups right below.
func TestOneWatchTellsOfACgroup(t *testing.T) {
	files := map[string]string{"kubepods/pod1/a/": "", "kubepods/pod1/pids.max": "", "kubepods/pod1/memory.current": ""}
	for _, file := range []string{"memory.min", "memory.low", "memory.high", "memory.oom.group", "cpuset.mems", "memory.max", "cgroup.subtree_control"} {
		files["kubepods/pod1/"+file] = "0"
	}
	tree := makeTree(t, files)
	w := newWatcher(t, tree)
	pod, container := Change{Cgroup: "kubepods/pod1"}, Change{Cgroup: "kubepods/pod1/a"}
	if err := watch(w, pod, container, pod); err != nil || w.Watches() != 2 {
		t.Fatalf("%d watches, %v", w.Watches(), err)
	}
	at := func(file string) string { return filepath.Join(tree.Root(), file) }
	want := map[Change]bool{}
	for file := range files {
		if dir, name := filepath.Split(file); name != "" {
			if err := os.WriteFile(at(file), []byte("1"), 0o644); err != nil {
				t.Fatal(err)
			}
			if name != "pids.max" && name != "memory.current" {
				want[Change{filepath.Clean(dir), name}] = true
			}
		}
	}
	if _, got := told(t, w, slices.Collect(maps.Keys(want))...); !maps.Equal(got, want) {
		t.Errorf("told of %v, want %v", got, want)
	}
	// A container that ends leaves no watch behind, and one that is made is told of.
	if err := errors.Join(os.Remove(at("kubepods/pod1/a"))); err != nil {
		t.Fatal(err)
	}
	if _, got := told(t, w, container); len(got) != 1 || w.Watches() != 1 {
		t.Errorf("told of %v, %d watches", got, w.Watches())
	}
	if err := os.Mkdir(at("kubepods/pod1/a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, got := told(t, w, container); len(got) != 1 {
		t.Errorf("told of %v", got)
	}
	// One that was made again while nobody listened is another one.
	if err := errors.Join(watch(w, container), os.Rename(at("kubepods/pod1/a"), at("kubepods/pod1/old")), os.Mkdir(at("kubepods/pod1/a"), 0o755), watch(w, container)); err != nil || w.Watches() != 2 {
		t.Errorf("%d watches, %v", w.Watches(), err)
	}
	w.Unwatch(container)
	w.Unwatch(container)
	if w.Watches() != 1 {
		t.Errorf("%d watches", w.Watches())
	}
}

// overtaken calls added between the first addition of a watch and its record.
type overtaken struct {
	Kernel
	added func()
	calls atomic.Int32
}

func (o *overtaken) Inotify() (in Inotify, err error) {
	in, err = o.Kernel.Inotify()
	return &overtakenInotify{in, o}, err
}

type overtakenInotify struct {
	Inotify
	by *overtaken
}

func (o *overtakenInotify) Add(cgroup, file string, mask uint32) (int, error) {
	wd, err := o.Inotify.Add(cgroup, file, mask)
	if o.by.calls.Add(1) == 1 {
		o.by.added()
	}
	return wd, err
}

// Two callers watch a cgroup that is removed and recreated: the old cgroup's watch does not replace the new one's.
func TestAWatchOfARemovedCgroupIsOvertaken(t *testing.T) {
	tree := makeTree(t, map[string]string{"kubepods/pod1/memory.min": "0"})
	pod := Change{Cgroup: "kubepods/pod1"}
	at := filepath.Join(tree.Root(), "kubepods/pod1")
	var w *Watcher
	var other sync.WaitGroup
	tree.kernel = &overtaken{Kernel: tree.kernel, added: func() {
		err := errors.Join(os.Rename(at, at+"-old"), os.Mkdir(at, 0o755))
		if err != nil {
			t.Error(err)
		}
		done := make(chan struct{})
		other.Go(func() {
			defer close(done)
			if added, err := w.Watch(pod); !added || err != nil {
				t.Errorf("the new cgroup's watch: %v, %v", added, err)
			}
		})
		select {
		case <-done:
		case <-time.After(20 * time.Millisecond): // it waits for this one
		}
	}}
	w = newWatcher(t, tree)
	if added, err := w.Watch(pod); !added || err != nil {
		t.Errorf("the old cgroup's watch: %v, %v", added, err)
	}
	other.Wait()
	if err := os.WriteFile(filepath.Join(at, "memory.min"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	told(t, w, Change{"kubepods/pod1", "memory.min"})
	if added, err := w.Watch(pod); added || err != nil || w.Watches() != 1 {
		t.Errorf("watched again: %v, %v, %d watches", added, err, w.Watches())
	}
}

func TestWhatCannotBeWatched(t *testing.T) {
	tree := makeTree(t, map[string]string{"system.slice/memory.min": "0", "kubepods/": "", "kubepods/file": ""})
	w := newWatcher(t, tree)
	if err := watch(w, Change{"system.slice", "memory.min"}); err == nil {
		t.Error("watches outside kubepods")
	}
	for change, want := range map[Change]error{
		{"kubepods", "memory.min"}: fs.ErrNotExist, {"kubepods/pod1", ""}: fs.ErrNotExist, {"kubepods/file", ""}: unix.ENOTDIR,
	} {
		if err := watch(w, change); !errors.Is(err, want) {
			t.Errorf("%v: got %v, want %v", change, err, want)
		}
	}
}

// The kernel keeps fs.inotify.max_queued_events for a reader that does not come.
func TestAnOverflowTellsOfAll(t *testing.T) {
	tree := makeTree(t, map[string]string{"kubepods/memory.min": "0", "kubepods/pod1/memory.min": "0", "kubepods/pod1/memory.events": ""})
	w := newWatcher(t, tree)
	all := []Change{{"kubepods", ""}, {"kubepods/pod1", ""}, {"kubepods/pod1", "memory.events"}}
	for _, change := range all {
		if err := watch(w, change); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock() // nobody takes events in
	for range most/2 + 100 {
		for _, dir := range []string{"kubepods", "kubepods/pod1"} { // in turn: equal neighbours are one event
			if err := os.WriteFile(filepath.Join(tree.Root(), dir, "memory.min"), []byte("1"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.mu.Unlock()
	told(t, w, all...)
}

// overflowing is an inotify instance whose queue has always overflowed.
type overflowing struct {
	Inotify
	reads  int
	closed chan struct{}
}

func (o *overflowing) Read(buffer []byte) (int, error) {
	select {
	case <-o.closed:
		return 0, fs.ErrClosed
	default:
	}
	o.reads++
	event := make([]byte, unix.SizeofInotifyEvent)
	binary.NativeEndian.PutUint32(event[4:], unix.IN_Q_OVERFLOW)
	return copy(buffer, event), nil
}

func (o *overflowing) Close() error {
	close(o.closed)
	return nil
}

func TestAQueueThatOverflowsAgainIsReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := &overflowing{closed: make(chan struct{})}
		w := &Watcher{inotify: queue, changes: make(chan map[Change]bool), wake: make(chan struct{}, 1), done: make(chan struct{}), pending: map[Change]bool{}}
		w.running.Go(w.read)
		time.Sleep(2900 * time.Millisecond)
		if err := w.Close(); err != nil || queue.reads != 10 {
			t.Errorf("read %d times in 2.9 seconds (%v), want 10", queue.reads, err)
		}
	})
}

func TestEventsOfNoInterest(t *testing.T) {
	tree := makeTree(t, map[string]string{"kubepods/": ""})
	w := newWatcher(t, tree)
	if err := watch(w, Change{Cgroup: "kubepods"}); err != nil {
		t.Fatal(err)
	}
	event := func(watch, mask, length uint32) []byte {
		event := make([]byte, unix.SizeofInotifyEvent)
		binary.NativeEndian.PutUint32(event, watch)
		binary.NativeEndian.PutUint32(event[4:], mask)
		binary.NativeEndian.PutUint32(event[12:], length)
		return event
	}
	known := uint32(w.byChange[Change{Cgroup: "kubepods"}])
	w.take(event(999, unix.IN_CLOSE_WRITE, 0)) // of a watch that has ended
	w.take(event(known, unix.IN_IGNORED, 0))
	w.take(event(known, unix.IN_CLOSE_WRITE, 1<<31)) // not whole
	w.take([]byte{1, 2, 3})
	if len(w.pending) > 0 {
		t.Errorf("told of %v", w.pending)
	}
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

// The number of a watcher's descriptor is another file's once it is closed.
func TestAClosedWatcherTouchesNothing(t *testing.T) {
	tree := makeTree(t, map[string]string{"kubepods/memory.min": "0"})
	w := newWatcher(t, tree)
	kubepods := Change{Cgroup: "kubepods"}
	if err := watch(w, kubepods); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	other := newWatcher(t, tree) // which has the number now
	if err := watch(other, kubepods); err != nil {
		t.Fatal(err)
	}
	w.Unwatch(kubepods)
	if err := watch(w, kubepods); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed watcher watches: %v", err)
	}
	if err := os.WriteFile(filepath.Join(tree.Root(), "kubepods/memory.min"), []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	told(t, other, Change{"kubepods", "memory.min"})
}
