package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Write is one write to a knob, as passed to the function given by OnWrite.
type Write struct {
	Cgroup string
	Knob   cgroup.Knob
	Text   string
}

// Tree is a cgroup v2 hierarchy. Paths are relative to its root; what is not below kubepods cannot be reached.
// It is safe for concurrent use.
type Tree struct {
	root    string
	folder  *os.Root
	fd      *os.File // of the root folder, for openat2; nil where the kernel has none
	at      int
	plain   bool
	flush   func(context.Context) // waits until the kernel's statistics are added up; nil for an ordinary folder, which has none
	onOpen  func(cgroup, file string) error
	onWrite func(Write)
}

// Option changes how a Tree works.
type Option func(*Tree)

// Plain is for an ordinary folder tree in place of a cgroup mount (tests, simulation): a missing file reads as the kernel's
// default, and a write makes it.
func Plain() Option { return func(t *Tree) { t.plain = true } }

// OnOpen has f called before a file of a cgroup, or with "." the cgroup, is opened. Its error is that of the open: so a test
// shows what a process without descriptors meets. f must not call the tree.
func OnOpen(f func(cgroup, file string) error) Option { return func(t *Tree) { t.onOpen = f } }

// OnWrite has f called with every write after it succeeded. f must not call the tree.
func OnWrite(f func(Write)) Option { return func(t *Tree) { t.onWrite = f } }

// Open opens the hierarchy mounted at root, usually /sys/fs/cgroup.
func Open(root string, options ...Option) (*Tree, error) {
	folder, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup tree: %w", err)
	}
	t := &Tree{root: filepath.Clean(root), folder: folder, flush: wait}
	for _, option := range options {
		option(t)
	}
	if t.plain {
		t.flush = nil
	}
	if t.fd, err = folder.Open("."); err != nil {
		folder.Close()
		return nil, fmt.Errorf("open the cgroup tree: %w", err)
	}
	t.at = int(t.fd.Fd())
	// Kernels before 5.6 lack openat2, and a container's seccomp filter may refuse it.
	if fd, err := t.openat2(".", unix.O_PATH|unix.O_DIRECTORY); err == nil {
		unix.Close(fd)
	} else {
		t.fd.Close()
		t.fd = nil
	}
	return t, nil
}

// Close closes the root folder.
func (t *Tree) Close() error {
	if t.fd != nil {
		t.fd.Close()
	}
	return t.folder.Close()
}

// Root is the folder that was opened.
func (t *Tree) Root() string { return t.root }

// PageSize is what the kernel rounds the values of its files down to; 1 in a plain tree, which keeps every byte.
func (t *Tree) PageSize() int {
	if t.plain {
		return 1
	}
	return os.Getpagesize()
}

// Exists reports whether there is such a cgroup. An error means that it is not known: for want of descriptors, memory or
// permissions nothing is gone.
func (t *Tree) Exists(cgroup string) (bool, error) {
	fd, err := t.open(cgroup, ".", unix.O_PATH|unix.O_DIRECTORY)
	switch err = gone(err); {
	case err == nil:
		unix.Close(fd)
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("look for cgroup %s: %w", path.Join(t.root, cgroup), err)
}

// List returns the names of the cgroups and files in a cgroup.
func (t *Tree) List(cgroup string) ([]string, error) {
	fd, err := t.open(cgroup, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", path.Join(t.root, cgroup), gone(err))
	}
	folder := os.NewFile(uintptr(fd), path.Join(t.root, cgroup))
	defer folder.Close()
	return folder.Readdirnames(-1)
}

// Ended reports whether it is known that there is no such cgroup.
func (t *Tree) Ended(cgroup string) bool {
	there, err := t.Exists(cgroup)
	return !there && err == nil
}

// Lacks reports whether an error says that a cgroup which is there has no such file, as on an older kernel.
func (t *Tree) Lacks(cgroup string, err error) bool {
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	there, _ := t.Exists(cgroup)
	return there
}

// Leaves are the cgroups that hold a container's values: its own, and crun's "container" below it where there is one.
// Outer comes first. A value that is loosened must be written to all. With an error, whether there is an inner one is not known.
func (t *Tree) Leaves(container string) ([]string, error) {
	inner := container + "/container"
	there, err := t.Exists(inner)
	if there {
		return []string{container, inner}, nil
	}
	return []string{container}, err
}

// Text reads what a knob shows.
func (t *Tree) Text(dir string, knob cgroup.Knob) (string, error) { return t.nodes(dir, string(knob)) }

// Get reads the value of a knob: see Knob.Parse.
func (t *Tree) Get(dir string, knob cgroup.Knob) (uint64, error) {
	data, err := t.line(dir, string(knob))
	if err != nil {
		return 0, err
	}
	v, err := knob.Parse(data)
	if err != nil {
		return 0, t.bad(dir, string(knob), err)
	}
	return v, nil
}

// Set writes the value of a knob.
func (t *Tree) Set(dir string, knob cgroup.Knob, value uint64) error {
	switch knob {
	case cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, cgroup.CpusetMems, cgroup.MemoryOOMGroup:
		return t.Write(dir, knob, knob.Format(value))
	}
	return fmt.Errorf("write %d to %s/%s: want one of %s, %s, %s, %s, %s", value, dir, knob,
		cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, cgroup.CpusetMems, cgroup.MemoryOOMGroup)
}

// Write writes a text to a knob.
func (t *Tree) Write(dir string, knob cgroup.Knob, text string) error {
	// Without O_NONBLOCK a lowered memory.high would reclaim before the write returns (kernel 6.17 and later honor it).
	flags := unix.O_WRONLY | unix.O_TRUNC | unix.O_NONBLOCK
	if t.plain {
		flags = unix.O_WRONLY | unix.O_CREAT
	}
	if err := t.writeFile(dir, string(knob), text, flags); err != nil {
		return err
	}
	if t.onWrite != nil {
		t.onWrite(Write{Cgroup: dir, Knob: knob, Text: text})
	}
	return nil
}

// writeFile makes one write(2), which is what a kernel file takes as one value. It goes round os.File: that takes EAGAIN,
// memory.reclaim's answer, for "not yet writable" and would wait for ever.
func (t *Tree) writeFile(dir, file, text string, flags int) error {
	fd, err := t.open(dir, file, flags)
	if err == nil {
		data := []byte(text)
		switch {
		case t.plain:
			var info unix.Stat_t
			_ = unix.Fstat(fd, &info) // without the size a longer text may stay behind the new one, which then is not a value
			data = cgroup.Overwriting(text, info.Size)
		case len(data) == 0:
			data = []byte("\n") // a write of no bytes never reaches the kernel's file
		}
		err = own(again(func() error {
			_, err := unix.Write(fd, data)
			return err
		}))
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("write %q to %s: %w", text, path.Join(t.root, dir, file), gone(err))
	}
	return nil
}

// line reads a file with one line.
func (t *Tree) line(cgroup, file string) ([]byte, error) {
	return t.readTo(cgroup, file, '\n', make([]byte, 0, 64))
}

// parse reads a whole file and what it says.
func parse[T any](t *Tree, cgroup, file string, how func(text string) (T, error)) (value T, err error) {
	room := rooms.Get().(*[4096]byte)
	defer rooms.Put(room)
	data, err := t.readTo(cgroup, file, endless, room[:0])
	if err != nil {
		return value, err
	}
	if value, err = how(string(data)); err != nil {
		err = t.bad(cgroup, file, err)
	}
	return value, err
}

// rooms have room for nearly every file.
var rooms = sync.Pool{New: func() any { return new([4096]byte) }}

// bad says which file could not be understood.
func (t *Tree) bad(cgroup, file string, err error) error {
	return fmt.Errorf("parse %s: %w", path.Join(t.root, cgroup, file), err)
}

func (t *Tree) readTo(dir, file string, last int, buffer []byte) ([]byte, error) {
	fd, err := t.open(dir, file, unix.O_RDONLY|unix.O_NONBLOCK)
	if t.plain && t.Lacks(dir, err) {
		return []byte(cgroup.Default(file)), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path.Join(t.root, dir, file), gone(err))
	}
	defer unix.Close(fd)
	data, err := readTo(fd, buffer, last)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path.Join(t.root, dir, file), gone(err))
	}
	if t.plain && len(data) == 0 { // another process is just writing it
		return []byte(cgroup.Default(file)), nil
	}
	return data, nil
}
