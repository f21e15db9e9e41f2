package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
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

// Tree is a cgroup v2 hierarchy. Paths are relative to its root; only cgroups below kubepods are accessible. It is safe for concurrent use.
type Tree struct {
	root     string
	kernel   Kernel
	pageSize int
	flush    func(context.Context) // waits until the kernel's statistics are added up; nil if that is not needed
	onOpen   func(cgroup, file string) error
	onWrite  func(Write)
}

// New returns a tree over a Kernel. Messages call its root by this name.
func New(root string, kernel Kernel) *Tree {
	return &Tree{root: root, kernel: kernel, pageSize: os.Getpagesize()}
}

// Option changes how Open's Tree works.
type Option func(*Tree)

// Plain is for an ordinary folder in place of a cgroup mount (tests, simulation): a missing file reads as the kernel's default, and a write
// creates it.
func Plain() Option {
	return func(t *Tree) { t.kernel, t.pageSize, t.flush = plain{t.kernel.(*mounted)}, 1, nil }
}

// OnOpen calls f before a file of a cgroup, or with "." the cgroup, is opened. An error of f is returned as that of the open. f must not call the
// tree.
func OnOpen(f func(cgroup, file string) error) Option { return func(t *Tree) { t.onOpen = f } }

// OnWrite calls f after every successful write. f must not call the tree.
func OnWrite(f func(Write)) Option { return func(t *Tree) { t.onWrite = f } }

// Open opens the hierarchy mounted at root, usually /sys/fs/cgroup.
func Open(root string, options ...Option) (*Tree, error) {
	m, err := mount(root)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup tree: %w", err)
	}
	t := New(m.root, m)
	t.flush = wait
	for _, option := range options {
		option(t)
	}
	return t, nil
}

// Close closes the root folder.
func (t *Tree) Close() error {
	if opened, ok := t.kernel.(io.Closer); ok {
		return opened.Close()
	}
	return nil
}

// Root returns the folder that was opened.
func (t *Tree) Root() string { return t.root }

// PageSize returns the size in bytes to which the kernel rounds values down; 1 in a plain tree.
func (t *Tree) PageSize() int { return t.pageSize }

// Triggers returns a new set of pressure triggers.
func (t *Tree) Triggers() (Triggers, error) { return t.kernel.Triggers() }

// reach refuses cgroups that are not below kubepods.
func (t *Tree) reach(dir, file string) error {
	if !cgroup.Inside(dir) {
		return fmt.Errorf("cgroup %q is not below kubepods", dir)
	}
	if t.onOpen != nil {
		return t.onOpen(dir, file)
	}
	return nil
}

// Exists reports whether the cgroup exists. An error, for example for lack of descriptors, memory or permissions, means that it is unknown.
func (t *Tree) Exists(cgroup string) (bool, error) {
	err := t.reach(cgroup, ".")
	if err == nil {
		err = t.kernel.Look(cgroup)
	}
	switch err = gone(err); {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("look for cgroup %s: %w", path.Join(t.root, cgroup), err)
}

// List returns the names of the cgroups and files in a cgroup.
func (t *Tree) List(cgroup string) (names []string, err error) {
	if err = t.reach(cgroup, "."); err == nil {
		names, err = t.kernel.List(cgroup)
	}
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", path.Join(t.root, cgroup), gone(err))
	}
	return names, nil
}

// Ended reports whether the cgroup is known not to exist.
func (t *Tree) Ended(cgroup string) bool {
	there, err := t.Exists(cgroup)
	return !there && err == nil
}

// Lacks reports whether an error means that an existing cgroup lacks a file, as on an older kernel.
func (t *Tree) Lacks(cgroup string, err error) bool {
	if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	there, _ := t.Exists(cgroup)
	return there
}

// Leaves returns the cgroups that have a container's values: its own and, if it exists, crun's inner cgroup "container". A value that is
// loosened must be written to both. An error means that it is unknown whether there is an inner one.
func (t *Tree) Leaves(container string) ([]string, error) {
	inner := container + "/container"
	there, err := t.Exists(inner)
	if there {
		return []string{container, inner}, nil
	}
	return []string{container}, err
}

// Text reads a knob as text.
func (t *Tree) Text(dir string, knob cgroup.Knob) (string, error) {
	data, err := t.line(dir, string(knob))
	return strings.TrimSpace(string(data)), err
}

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
	const flags = unix.O_WRONLY | unix.O_TRUNC | unix.O_NONBLOCK
	if err := again(func() error { return t.write(dir, string(knob), text, flags) }); err != nil {
		return err
	}
	if t.onWrite != nil {
		t.onWrite(Write{Cgroup: dir, Knob: knob, Text: text})
	}
	return nil
}

// write makes one write(2): a kernel file takes each write as one value.
func (t *Tree) write(dir, file, text string, flags int) error {
	err := t.reach(dir, file)
	if err == nil {
		err = own(t.kernel.Write(dir, file, text, flags))
	}
	if err != nil {
		return fmt.Errorf("write %q to %s: %w", text, path.Join(t.root, dir, file), gone(err))
	}
	return nil
}

// ErrOwn is the error of a write to the root cgroup of the writer's own cgroup namespace if the hierarchy is mounted with nsdelegate, as systemd
// does: a container cannot change its own values (cgroup_namespaces(7)).
var ErrOwn = errors.New("the kernel lets no container change the values of its own cgroup")

// own maps EPERM to ErrOwn. Missing permissions are EACCES.
func own(err error) error {
	if errors.Is(err, unix.EPERM) {
		return ErrOwn
	}
	return err
}

// gone maps ENODEV, the error for a cgroup that was removed while its file was open, to fs.ErrNotExist.
func gone(err error) error {
	if errors.Is(err, unix.ENODEV) {
		return fs.ErrNotExist
	}
	return err
}

// line reads a file with one line.
func (t *Tree) line(cgroup, file string) ([]byte, error) {
	return t.read(cgroup, file, '\n', make([]byte, 0, 64))
}

// parse reads and parses a whole file.
func parse[T any](t *Tree, cgroup, file string, how func(text string) (T, error)) (value T, err error) {
	room := rooms.Get().(*[4096]byte)
	defer rooms.Put(room)
	data, err := t.read(cgroup, file, endless, room[:0])
	if err != nil {
		return value, err
	}
	if value, err = how(string(data)); err != nil {
		err = t.bad(cgroup, file, err)
	}
	return value, err
}

// rooms are buffers that are large enough for nearly every file.
var rooms = sync.Pool{New: func() any { return new([4096]byte) }}

// bad adds the name of a file to a parse error.
func (t *Tree) bad(cgroup, file string, err error) error {
	return fmt.Errorf("parse %s: %w", path.Join(t.root, cgroup, file), err)
}

func (t *Tree) read(dir, file string, last int, buffer []byte) (data []byte, err error) {
	if err = t.reach(dir, file); err == nil {
		data, err = t.kernel.Read(dir, file, last, buffer)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path.Join(t.root, dir, file), gone(err))
	}
	return data, nil
}
