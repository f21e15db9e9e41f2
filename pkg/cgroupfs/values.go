package cgroupfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Values are what the files of a cgroup hold that this package writes, and its limit. A file that is not there, or cannot be
// read, is nil.
type Values struct {
	Min, Low, High, Limit *uint64 // bytes; Max for "max"
	Mems                  *string // as the kernel lists the nodes; "" when the cgroup takes its parent's
}

// Values reads all values of a cgroup. Its path is resolved once: for each file that costs more than the file's read. A file
// that is not there is no error, a cgroup that is not there is one. Beside other errors stands what could be read.
func (t *Tree) Values(dir string) (Values, error) {
	fd, err := t.open(dir, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return Values{}, fmt.Errorf("open cgroup %s: %w", path.Join(t.root, dir), gone(err))
	}
	defer unix.Close(fd)
	d := directory{tree: t, cgroup: dir, fd: fd}
	v := Values{
		Min: d.limit(string(cgroup.MemoryMin)), Low: d.limit(string(cgroup.MemoryLow)), High: d.limit(string(cgroup.MemoryHigh)),
		Limit: d.limit("memory.max"), Mems: d.text(string(cgroup.CpusetMems)),
	}
	if d.removed {
		return Values{}, fmt.Errorf("read cgroup %s: %w", path.Join(t.root, dir), fs.ErrNotExist)
	}
	return v, errors.Join(d.errs...)
}

// directory is a cgroup whose files are read one after another.
type directory struct {
	tree    *Tree
	cgroup  string
	fd      int
	line    [128]byte // has room for nearly every file
	removed bool      // in between
	errs    []error
}

// limit reads a file with a number of bytes or "max"; nil where it cannot be read.
func (d *directory) limit(file string) *uint64 {
	data, ok := d.read(file)
	if !ok {
		return nil
	}
	v, err := cgroup.ParseLimit(data)
	if err != nil {
		d.errs = append(d.errs, d.tree.bad(d.cgroup, file, err))
		return nil
	}
	return &v
}

// text reads a file with one line; nil where it cannot be read.
func (d *directory) text(file string) *string {
	data, ok := d.read(file)
	if !ok {
		return nil
	}
	text := strings.TrimSpace(string(data))
	return &text
}

// read reads a file with one line, which stays until the next read. It reports whether there is such a file.
func (d *directory) read(file string) (data []byte, ok bool) {
	var fd int
	err := again(func() (err error) {
		fd, err = unix.Openat(d.fd, file, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if err == nil {
		data, err = readTo(fd, d.line[:0], '\n')
		unix.Close(fd)
	}
	if d.tree.plain && (err == unix.ENOENT || err == nil && len(data) == 0) {
		return []byte(cgroup.Default(file)), true
	}
	d.failed(file, err)
	return data, err == nil
}

// failed records why a file could not be read; nil and a file that is not there are no failures.
func (d *directory) failed(file string, err error) {
	switch err {
	case nil, unix.ENOENT:
	case unix.ENODEV:
		d.removed = true
	default:
		d.errs = append(d.errs, fmt.Errorf("read %s: %w", path.Join(d.tree.root, d.cgroup, file), err))
	}
}
