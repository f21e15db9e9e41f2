package cgroupfs

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// open opens a file of a cgroup below kubepods; whatever the path holds, it cannot leave the tree.
func (t *Tree) open(dir, file string, flags int) (int, error) {
	if !cgroup.Inside(dir) {
		return -1, fmt.Errorf("cgroup %q is not below kubepods", dir)
	}
	if t.onOpen != nil {
		if err := t.onOpen(dir, file); err != nil {
			return -1, err
		}
	}
	name := dir + "/" + file
	if t.fd != nil {
		return t.openat2(name, flags)
	}
	f, err := t.folder.OpenFile(name, flags, 0o644)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err // the caller names the file
		}
		return -1, err
	}
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// openat2 resolves a path in one system call; os.Root needs one for each component.
func (t *Tree) openat2(name string, flags int) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o644
	}
	err = again(func() (err error) {
		fd, err = unix.Openat2(t.at, name, &how)
		return err
	})
	return fd, err
}

// again repeats a system call that a signal interrupted.
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// endless has readTo read to the end of the file.
const endless = -1

// readTo reads a file into buffer, to its end or to a read that ends in the given byte: the kernel gives a value and its line
// break in one piece, and asking for more costs a system call.
func readTo(fd int, buffer []byte, last int) ([]byte, error) {
	data := buffer
	for {
		n := 0
		err := again(func() (err error) {
			n, err = unix.Read(fd, data[len(data):cap(data)])
			return err
		})
		if err != nil || n == 0 {
			return data, err
		}
		if data = data[:len(data)+n]; int(data[len(data)-1]) == last {
			return data, nil
		}
		if len(data) == cap(data) {
			data = append(data, make([]byte, len(data))...)[:len(data)]
		}
	}
}

// ErrOwn is the answer to a write to the cgroup in which the writer's own cgroup namespace begins, where the hierarchy is
// mounted with nsdelegate, as systemd does: a container cannot change its own values (cgroup_namespaces(7)).
var ErrOwn = errors.New("the kernel lets no container change the values of its own cgroup")

// own separates that answer, EPERM, from those to other writes: what permissions forbid is EACCES.
func own(err error) error {
	if errors.Is(err, unix.EPERM) {
		return ErrOwn
	}
	return err
}

// gone makes the kernel's answer for a cgroup that was removed while its file was open the same as that for one that was
// removed before.
func gone(err error) error {
	if errors.Is(err, unix.ENODEV) {
		return fs.ErrNotExist
	}
	return err
}
