package cgroupfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Change names a file of a cgroup that was written. Without a file, the cgroup was created or removed, or any of its files was written.
type Change struct{ Cgroup, File string }

// subtreeControl: disabling and enabling a controller resets the files of the cgroups below.
const subtreeControl = "cgroup.subtree_control"

// Resets reports whether the change may have reset the files of the cgroup's children.
func (c Change) Resets() bool { return c.File == subtreeControl }

// Limits reports whether the cgroup's limit was written, as kubelet and runtime do.
func (c Change) Limits() bool { return c.File == "memory.max" }

// Watcher reports changes by inotify(7), including this process's own writes. For a watched cgroup it reports writes to the knobs, memory.max
// and cgroup.subtree_control when the writer closes the file (IN_CLOSE_WRITE), and children that are created or removed. A counter needs a
// watch of its own file (IN_MODIFY): kernfs does not report it to a watch of the folder.
type Watcher struct {
	tree    *Tree
	inotify Inotify
	changes chan map[Change]bool
	wake    chan struct{} // wakes deliver
	done    chan struct{} // closed when read ends
	running sync.WaitGroup

	adding   sync.Mutex // held while a watch is added; taken before mu
	mu       sync.Mutex
	watches  map[int]Change
	byChange map[Change]int  // the inverse of watches
	pending  map[Change]bool // not delivered yet
}

// NewWatcher starts watching below a tree.
func NewWatcher(t *Tree) (*Watcher, error) {
	inotify, err := t.kernel.Inotify()
	if err != nil {
		return nil, fmt.Errorf("start to watch the cgroup tree (fs.inotify.max_user_instances bounds the number of watchers): %w", err)
	}
	w := &Watcher{
		tree: t, inotify: inotify,
		changes: make(chan map[Change]bool), wake: make(chan struct{}, 1), done: make(chan struct{}),
		watches: make(map[int]Change), byChange: make(map[Change]int), pending: make(map[Change]bool),
	}
	w.running.Go(w.read)
	w.running.Go(w.deliver)
	return w, nil
}

// Watch adds a watch of a cgroup, or of a single file, and reports whether there was none: earlier changes are not reported. Watching twice is
// one watch. The error is fs.ErrNotExist for a missing cgroup or file, and ENOSPC beyond fs.inotify.max_user_watches.
func (w *Watcher) Watch(c Change) (added bool, err error) {
	if !cgroup.Inside(c.Cgroup) {
		return false, fmt.Errorf("watch cgroup %q: not below kubepods", c.Cgroup)
	}
	mask := uint32(unix.IN_MODIFY | unix.IN_DONT_FOLLOW)
	if c.File == "" {
		mask = unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_DELETE | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
	}
	w.adding.Lock() // otherwise a removed cgroup's watch may replace the recreated one's
	defer w.adding.Unlock()
	wd, err := w.inotify.Add(c.Cgroup, c.File, mask) // without mu, because others wait for it
	if err != nil {
		return false, fmt.Errorf("watch %s: %w", path.Join(w.tree.root, c.Cgroup, c.File), err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if added = w.byChange[c] != wd; added { // a recreated cgroup has another watch
		w.unwatch(c)
	}
	w.byChange[c], w.watches[wd] = wd, c
	return added, nil
}

// Unwatch removes a watch.
func (w *Watcher) Unwatch(c Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unwatch(c)
}

// unwatch removes a watch, which the kernel does not do when a cgroup is removed (Linux 6.1, 6.12).
func (w *Watcher) unwatch(c Change) {
	if wd, ok := w.byChange[c]; ok {
		w.inotify.Remove(wd)
		delete(w.watches, wd)
		delete(w.byChange, c)
	}
}

// Watches returns the number of watches.
func (w *Watcher) Watches() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.watches)
}

// Changes delivers all changes since the last receive together, each once. It is closed by Close, and if the kernel's events cannot be read any
// more.
func (w *Watcher) Changes() <-chan map[Change]bool { return w.changes }

// Close ends all watches and closes Changes.
func (w *Watcher) Close() error {
	err := w.inotify.Close() // ends read
	w.running.Wait()
	return err
}

// read reads the kernel's events.
func (w *Watcher) read() {
	defer close(w.done)
	buffer := make([]byte, 64*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := w.inotify.Read(buffer)
		if err != nil {
			return
		}
		lost := w.take(buffer[:n])
		select {
		case w.wake <- struct{}{}:
		default:
		}
		if lost {
			time.Sleep(overflowPause)
		}
	}
}

// overflowPause is how long nothing is read after events were lost. All cgroups are compared then, which may write, and that makes events again.
const overflowPause = 300 * time.Millisecond

// take collects the changes of a buffer of events (inotify(7): wd, mask, cookie, len, name), and reports whether others were lost.
func (w *Watcher) take(events []byte) (lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int(int32(binary.NativeEndian.Uint32(events)))
		mask := binary.NativeEndian.Uint32(events[4:])
		length := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:max(unix.SizeofInotifyEvent, min(len(events), length))], []byte{0})
		events = events[min(len(events), length):]
		c, watched := w.watches[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			lost = true
			for _, c := range w.watches { // any of them may have changed
				w.pending[c] = true
			}
		case !watched || mask&unix.IN_IGNORED != 0:
		case c.File != "":
			w.pending[c] = true
		case mask&unix.IN_ISDIR != 0:
			below := Change{Cgroup: c.Cgroup + "/" + string(name)}
			if mask&unix.IN_DELETE != 0 {
				w.unwatch(below)
			}
			w.pending[below] = true
		case mask&unix.IN_CLOSE_WRITE != 0:
			switch cgroup.Knob(name) {
			case cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, cgroup.CpusetMems, cgroup.MemoryOOMGroup, "memory.max", subtreeControl:
				w.pending[Change{c.Cgroup, string(name)}] = true
			}
		}
	}
	return lost
}

// deliver delivers the changes.
func (w *Watcher) deliver() {
	defer close(w.changes)
	for {
		select {
		case <-w.wake:
		case <-w.done:
			return
		}
		next := w.next()
		if len(next) == 0 {
			continue
		}
		select {
		case w.changes <- next:
		case <-w.done:
			return
		}
	}
}

// next returns the collected changes and resets them.
func (w *Watcher) next() map[Change]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := w.pending
	w.pending = make(map[Change]bool)
	return next
}
