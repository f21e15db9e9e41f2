package world

import (
	"encoding/binary"
	"io/fs"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// maxQueued is fs.inotify.max_queued_events.
const maxQueued = 16384

// watch is one of an inotify instance, of a cgroup or a file of it.
type watch struct {
	in   *inotify
	wd   int
	file string
	mask uint32
}

// notify is fsnotify for a file or folder below a cgroup: for who watches the cgroup it has a name, for who watches the file it has none.
func (g *group) notify(name string, mask uint32) {
	for _, w := range g.watches {
		switch happened := mask & (w.mask | unix.IN_ISDIR); {
		case happened&^unix.IN_ISDIR == 0:
		case w.file == "":
			w.in.queue(note{w.wd, happened, name})
		case w.file == name:
			w.in.queue(note{w.wd, happened, ""})
		}
	}
}

// counted is kernfs_notify of a file that was not written: kernfs tells who watches the file. Who watches the folder gets nothing (seen on Linux
// 6.1 and 6.12, where the file was never looked up).
func (g *group) counted(name string) {
	for _, w := range g.watches {
		if w.file == name && w.mask&unix.IN_MODIFY != 0 {
			w.in.queue(note{w.wd, unix.IN_MODIFY, ""})
		}
	}
}

// note is an event of inotify(7).
type note struct {
	wd   int
	mask uint32
	name string
}

// inotify is an instance.
type inotify struct {
	port *Port
	wake bell

	mu     sync.Mutex // after Kernel.mu
	notes  []note
	closed bool
}

// queue merges an event with the last one if they are the same, and gives one IN_Q_OVERFLOW where there is no room
// (fs/notify/inotify/inotify_fsnotify.c, inotify_merge; fs/notify/notification.c, fsnotify_insert_event).
func (in *inotify) queue(n note) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.closed {
		in.notes = queued(in.notes, n, maxQueued)
		in.wake.ring()
	}
}

var overflow = note{-1, unix.IN_Q_OVERFLOW, ""}

func queued(notes []note, n note, room int) []note {
	switch {
	case len(notes) > 0 && notes[len(notes)-1] == n:
		return notes
	case len(notes) < room:
		return append(notes, n)
	case !slices.Contains(notes[room:], overflow):
		return append(notes, overflow)
	}
	return notes
}

// Add is inotify_add_watch(2): a second one of the same file replaces the mask.
func (in *inotify) Add(cgroup, file string, mask uint32) (int, error) {
	if err := in.port.living(in.port.faults.Watch); err != nil {
		return -1, err
	}
	k := in.port.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(cgroup)
	if g == nil {
		return -1, unix.ENOENT
	}
	if file != "" {
		if _, err := k.show(g, file); err == unix.ENOENT {
			return -1, err
		} else if mask&unix.IN_ONLYDIR != 0 {
			return -1, unix.ENOTDIR
		}
	}
	for _, w := range g.watches {
		if w.in == in && w.file == file {
			w.mask = mask & unix.IN_ALL_EVENTS
			return w.wd, nil
		}
	}
	in.port.wd++
	g.watches = append(g.watches, &watch{in, in.port.wd, file, mask & unix.IN_ALL_EVENTS})
	in.port.watched[watchKey{in, in.port.wd}] = g
	return in.port.wd, nil
}

// Remove is inotify_rm_watch(2), which says IN_IGNORED.
func (in *inotify) Remove(wd int) {
	k := in.port.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	if in.port.unwatch(watchKey{in, wd}) {
		in.queue(note{wd, unix.IN_IGNORED, ""})
	}
}

// Read waits on a channel, so that virtual time can pass.
func (in *inotify) Read(buffer []byte) (int, error) {
	for {
		n, err := in.read(buffer)
		if n == 0 && err == nil {
			<-in.wake
			continue
		}
		if err == nil && in.port.faults.Overflow() {
			n = copy(buffer, overflow.bytes())
		}
		return n, err
	}
}

func (in *inotify) read(buffer []byte) (n int, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		in.wake.ring()
		return 0, fs.ErrClosed
	}
	taken := 0
	for _, event := range in.notes {
		data := event.bytes()
		if n+len(data) > len(buffer) {
			break
		}
		n += copy(buffer[n:], data)
		taken++
	}
	if taken == 0 && len(in.notes) > 0 {
		return 0, unix.EINVAL
	}
	in.notes = slices.Delete(in.notes, 0, taken)
	return n, nil
}

// bytes are struct inotify_event, its name filled up with zeros to a multiple of the struct's size.
func (n note) bytes() []byte {
	data := binary.NativeEndian.AppendUint32(nil, uint32(int32(n.wd)))
	data = binary.NativeEndian.AppendUint32(data, n.mask)
	data = binary.NativeEndian.AppendUint32(data, 0)
	length := 0
	if n.name != "" {
		length = (len(n.name)/unix.SizeofInotifyEvent + 1) * unix.SizeofInotifyEvent
	}
	data = binary.NativeEndian.AppendUint32(data, uint32(length))
	return append(append(data, n.name...), make([]byte, length-len(n.name))...)
}

// Close ends all watches and a Read.
func (in *inotify) Close() error {
	k := in.port.kernel
	k.mu.Lock()
	for key := range in.port.watched {
		if key.in == in {
			in.port.unwatch(key)
		}
	}
	k.mu.Unlock()
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return fs.ErrClosed
	}
	in.closed = true
	in.wake.ring()
	return nil
}
