package cgroup

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// open opens a file of a cgroup below kubepods; whatever the path holds, it cannot leave the tree.
func (t *Tree) open(cgroup, file string, flags int) (int, error) {
	if !Inside(cgroup) {
		return -1, fmt.Errorf("cgroup %q is not below kubepods", cgroup)
	}
	name := cgroup + "/" + file
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

// ErrOwn is the answer to a write to the cgroup in which the writer's own cgroup namespace begins, where the hierarchy is
// mounted with nsdelegate, as systemd does: a container cannot change its own values (cgroup_namespaces(7)).
var ErrOwn = errors.New("the kernel lets no container change the values of its own cgroup")

// own tells that answer, EPERM, from those to other writes: what permissions forbid is EACCES.
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
