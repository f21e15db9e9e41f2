package cgroupfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Change names a file that was written.
type Change struct{ Cgroup, File string }

// Watcher reports writes to watched files (inotify(7) IN_MODIFY, which works on cgroupfs). It reports our own
// writes too. It watches the files alone: their folders would report every counter that moves.
type Watcher struct {
	tree    *Tree
	inotify *os.File
	fd      int
	changes chan map[Change]bool
	wake    chan struct{} // of the delivering goroutine
	done    chan struct{}
	running sync.WaitGroup
	closing sync.Once

	mu       sync.Mutex
	watches  map[int]Change
	byFile   map[string]map[string]int // cgroup, file: watch
	pending  map[Change]bool           // not delivered yet
	unpruned []string                  // cgroups that Prune has yet to look at
}

// NewWatcher starts watching below a tree.
func NewWatcher(t *Tree) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start to watch the cgroup tree (fs.inotify.max_user_instances bounds the number of watchers): %w", err)
	}
	w := &Watcher{
		tree: t, fd: fd, inotify: os.NewFile(uintptr(fd), "inotify"),
		changes: make(chan map[Change]bool), wake: make(chan struct{}, 1), done: make(chan struct{}),
		watches: make(map[int]Change), byFile: make(map[string]map[string]int), pending: make(map[Change]bool),
	}
	w.running.Go(w.read)
	w.running.Go(w.deliver)
	return w, nil
}

// Watch adds files of a cgroup: knobs, or "memory.events". Watching twice is one watch. A file that is not there is an error
// that is fs.ErrNotExist.
func (w *Watcher) Watch(dir string, files ...string) error {
	if !cgroup.Inside(dir) {
		return fmt.Errorf("watch cgroup %q: not below kubepods", dir)
	}
	var errs []error
	for _, file := range files {
		path := filepath.Join(w.tree.root, dir, file)
		wd, err := unix.InotifyAddWatch(w.fd, path, unix.IN_MODIFY|unix.IN_DONT_FOLLOW)
		if err != nil {
			errs = append(errs, fmt.Errorf("watch %s: %w", path, err))
			continue
		}
		w.watched(Change{Cgroup: dir, File: file}, wd)
	}
	return errors.Join(errs...)
}

// watched enters a watch. The kernel looks for a file without the lock, for which others wait.
func (w *Watcher) watched(c Change, wd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A recreated cgroup has new files: forget the old one's watch.
	if old, ok := w.byFile[c.Cgroup][c.File]; ok && old != wd {
		w.remove(old)
	}
	if w.byFile[c.Cgroup] == nil {
		w.byFile[c.Cgroup] = make(map[string]int)
	}
	w.byFile[c.Cgroup][c.File] = wd
	w.watches[wd] = c
}

// remove ends one watch. The kernel may have ended it already.
func (w *Watcher) remove(wd int) {
	unix.InotifyRmWatch(w.fd, uint32(wd))
	delete(w.watches, wd)
}

// Unwatch forgets all files of a cgroup.
func (w *Watcher) Unwatch(cgroup string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unwatch(cgroup)
}

func (w *Watcher) unwatch(cgroup string) {
	for _, wd := range w.byFile[cgroup] {
		w.remove(wd)
	}
	delete(w.byFile, cgroup)
}

// Prune looks at up to count cgroups, without the lock, and forgets the ones that are gone. The next call continues with the next cgroups.
func (w *Watcher) Prune(count int) {
	for dir, watches := range w.toPrune(count) {
		if w.tree.Ended(dir) {
			w.forget(dir, watches)
		}
	}
}

func (w *Watcher) toPrune(count int) map[string]map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.unpruned) == 0 {
		w.unpruned = slices.Collect(maps.Keys(w.byFile))
	}
	count = min(count, len(w.unpruned))
	next := make(map[string]map[string]int, count)
	for _, dir := range w.unpruned[:count] {
		next[dir] = maps.Clone(w.byFile[dir])
	}
	w.unpruned = w.unpruned[count:]
	return next
}

// forget is Unwatch, unless the cgroup is watched anew.
func (w *Watcher) forget(dir string, watches map[string]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if maps.Equal(w.byFile[dir], watches) {
		w.unwatch(dir)
	}
}

// Watches is the number of files watched.
func (w *Watcher) Watches() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.watches)
}

// Changes delivers the cgroup and file of each write, all at once that came since it was received from. A file that was written several times
// by then is reported once.
func (w *Watcher) Changes() <-chan map[Change]bool { return w.changes }

// Close ends all watches and closes Changes.
func (w *Watcher) Close() error {
	err := fs.ErrClosed
	w.closing.Do(func() {
		close(w.done)
		err = w.inotify.Close() // ends read
		w.running.Wait()
		close(w.changes)
	})
	return err
}

// read takes the kernel's events in.
func (w *Watcher) read() {
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
		name := binary.NativeEndian.Uint32(events[12:])
		events = events[min(len(events), unix.SizeofInotifyEvent+int(name)):]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			for _, c := range w.watches { // any of them may have changed
				w.pending[c] = true
			}
		case mask&unix.IN_IGNORED != 0: // the watch has ended, which no cgroup's does by itself
		default:
			if c, ok := w.watches[wd]; ok {
				w.pending[c] = true
			}
		}
	}
}

// deliver hands the changes on.
func (w *Watcher) deliver() {
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
