package cgroupfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Change names a file of a cgroup that was written. Without a file the cgroup was made or removed, or any of its files may have been written.
type Change struct{ Cgroup, File string }

// subtreeControl resets the files of the cgroups below where it disables a controller and enables it again.
const subtreeControl = "cgroup.subtree_control"

// Resets reports whether it may have reset the files of the cgroups right below.
func (c Change) Resets() bool { return c.File == subtreeControl }

// Limits reports whether the cgroup may have another limit, which the kubelet and the runtime write.
func (c Change) Limits() bool { return c.File == "memory.max" }

// Watcher tells of changes by inotify(7), of our own writes too. Of a cgroup as a whole it tells of writes to our knobs, memory.max and
// cgroup.subtree_control once the writer closes them (IN_CLOSE_WRITE), and of cgroups that are made or removed right below. A counter
// needs a watch of its own file (IN_MODIFY): kernfs reports it to no watch of the folder.
type Watcher struct {
	tree    *Tree
	inotify Inotify
	changes chan map[Change]bool
	wake    chan struct{} // of the delivering goroutine
	done    chan struct{} // nothing more is read
	running sync.WaitGroup

	mu       sync.Mutex
	watches  map[int]Change
	byChange map[Change]int  // the same the other way round
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

// Watch adds a cgroup, or with a file that one alone. Watching twice is one watch. What is not there is an error that is fs.ErrNotExist; it is
// ENOSPC beyond fs.inotify.max_user_watches.
func (w *Watcher) Watch(c Change) error {
	if !cgroup.Inside(c.Cgroup) {
		return fmt.Errorf("watch cgroup %q: not below kubepods", c.Cgroup)
	}
	mask := uint32(unix.IN_MODIFY | unix.IN_DONT_FOLLOW)
	if c.File == "" {
		mask = unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_DELETE | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
	}
	wd, err := w.inotify.Add(c.Cgroup, c.File, mask) // without the lock, for which others wait
	if err != nil {
		return fmt.Errorf("watch %s: %w", path.Join(w.tree.root, c.Cgroup, c.File), err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byChange[c] != wd { // one that is made again is another one
		w.unwatch(c)
	}
	w.byChange[c], w.watches[wd] = wd, c
	return nil
}

// Unwatch forgets what Watch added.
func (w *Watcher) Unwatch(c Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unwatch(c)
}

// unwatch ends a watch, which the kernel does not do for a cgroup that ends (Linux 6.1, 6.12).
func (w *Watcher) unwatch(c Change) {
	if wd, ok := w.byChange[c]; ok {
		w.inotify.Remove(wd)
		delete(w.watches, wd)
		delete(w.byChange, c)
	}
}

// Watches is the number of cgroups and files watched.
func (w *Watcher) Watches() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.watches)
}

// Changes delivers the cgroup and file of each write, all at once that came since it was received from. A file that was written several times
// by then is reported once. It is closed by Close, and where the kernel's events cannot be read any more.
func (w *Watcher) Changes() <-chan map[Change]bool { return w.changes }

// Close ends all watches and closes Changes.
func (w *Watcher) Close() error {
	err := w.inotify.Close() // ends read
	w.running.Wait()
	return err
}

// read takes the kernel's events in.
func (w *Watcher) read() {
	defer close(w.done)
	buffer := make([]byte, 64*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := w.inotify.Read(buffer)
		if err != nil {
			return
		}
		w.take(buffer[:n])
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// take notes what a buffer of events says (inotify(7): wd, mask, cookie, len, name).
func (w *Watcher) take(events []byte) {
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
}

// deliver hands the changes on.
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

// next takes what is to be delivered.
func (w *Watcher) next() map[Change]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := w.pending
	w.pending = make(map[Change]bool)
	return next
}
