package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// temporary is appended to a file's name for the copy that takes its place. The name is fixed, unlike renameio's random
// ones: what a crash leaves is overwritten by the next write instead of staying for ever.
const temporary = ".tmp"

// Before is called before each system call that changes a file: "open", "write" with the data, "rename" with the new path, "sync" of a
// file or folder, "touch". Tests and simulations replace it, while nothing is written: it may wait, fail with an errno, or never return, as a
// disk does; one that tears a write makes a part of it itself.
var Before = func(call, path string, data []byte) error { return nil }

// Folder is an open folder in which files are replaced. It makes its system calls itself: package os would look at every file
// twice, and allocate, for each container that is created. Its methods are not for concurrent use.
type Folder struct {
	path     string
	fd       int
	dev, ino uint64
	locked   bool
}

// OpenFolder opens a folder. The caller closes it.
func OpenFolder(path string) (*Folder, error) {
	fd, err := retried(func() (int, error) { return unix.Open(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		_ = unix.Close(fd)
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return &Folder{path: path, fd: fd, dev: stat.Dev, ino: stat.Ino}, nil
}

// IsInPlace reports whether the folder is still the one at its path.
func (f *Folder) IsInPlace() bool {
	var there unix.Stat_t
	err := unix.Stat(f.path, &there)
	return err == nil && there.Dev == f.dev && there.Ino == f.ino
}

// Lock keeps the folder for this process until Close, where every other one asks for it, too: the error is EWOULDBLOCK while another
// has it.
func (f *Folder) Lock() error {
	if err := unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return &fs.PathError{Op: "flock", Path: f.path, Err: err}
	}
	f.locked = true
	return nil
}

// Holder returns the process that has the folder's lock, and 0 where that cannot be known: a process in another PID namespace is not in
// /proc/locks.
func (f *Folder) Holder() int {
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	place := fmt.Sprintf("%02x:%02x:%d", unix.Major(f.dev), unix.Minor(f.dev), f.ino)
	for line := range strings.Lines(string(text)) { // "1: FLOCK  ADVISORY  WRITE 4711 fe:00:9977874 0 EOF"
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[5] == place {
			pid, _ := strconv.Atoi(fields[4])
			return max(pid, 0)
		}
	}
	return 0
}

// Close closes the folder, and gives up its lock.
func (f *Folder) Close() error {
	if f.locked { // a process that is being forked has the descriptor as well, until it runs its program
		_ = unix.Flock(f.fd, unix.LOCK_UN)
	}
	if err := unix.Close(f.fd); err != nil {
		return &fs.PathError{Op: "close", Path: f.path, Err: err}
	}
	return nil
}

// WriteFile is the function of that name, for a file in the folder. In a locked folder nobody else is looked for.
func (f *Folder) WriteFile(name string, data []byte, mode fs.FileMode) error {
	if err := f.replace(name, data, mode, flush); err != nil {
		return err
	}
	return f.sync()
}

// Replace is WriteFile without its fsyncs: when it returns nil, the content outlives the process. Sync has it outlive a crash of the
// machine, which may leave an empty or torn file before that.
func (f *Folder) Replace(name string, data []byte, mode fs.FileMode) error {
	return f.replace(name, data, mode, func(int, string) error { return nil })
}

func (f *Folder) replace(name string, data []byte, mode fs.FileMode, flush func(fd int, path string) error) error {
	copied, flags := name+temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC
	if f.locked {
		flags |= unix.O_TRUNC
	}
	path := filepath.Join(f.path, copied)
	fd, err := changed("open", path, nil, func() (int, error) { return unix.Openat(f.fd, copied, flags, uint32(mode.Perm())) })
	if err != nil {
		return f.failed("open", copied, err)
	}
	defer unix.Close(fd) // after the rename: until then its lock keeps other processes off the file
	if !f.locked {
		if err := f.claim(fd, copied, mode); err != nil {
			return err
		}
	}
	op, failed := "write", writeAll(fd, path, data)
	if failed == nil {
		op, failed = "sync", flush(fd, path)
	}
	if failed != nil {
		_ = unix.Unlinkat(f.fd, copied, 0) // gives a full disk its room back
		return f.failed(op, copied, failed)
	}
	_, err = changed("rename", filepath.Join(f.path, name), nil, func() (int, error) { return 0, unix.Renameat(f.fd, copied, f.fd, name) })
	if err != nil {
		_ = unix.Unlinkat(f.fd, copied, 0)
		return f.failed("rename", name, err)
	}
	return nil
}

// sync has the names of the folder on disk.
func (f *Folder) sync() error {
	if err := flush(f.fd, f.path); err != nil && !errors.Is(err, unix.EINVAL) { // a file system that has nothing to sync for a folder
		return f.failed("sync", "", err)
	}
	return nil
}

// claim makes a file that was opened this process's own, and empty.
func (f *Folder) claim(fd int, name string, mode fs.FileMode) error {
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) { // other errors: a file system without locks
		return f.failed("lock", name, err)
	}
	var opened, there unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil {
		return f.failed("stat", name, err)
	}
	err := unix.Fstatat(f.fd, name, &there, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || there.Dev != opened.Dev || there.Ino != opened.Ino { // renamed before it was locked
		return f.failed("lock", name, unix.EWOULDBLOCK)
	}
	if fs.FileMode(opened.Mode).Perm() != mode {
		if err := unix.Fchmod(fd, uint32(mode.Perm())); err != nil {
			return f.failed("chmod", name, err)
		}
	}
	if opened.Size > 0 { // what a crash left
		if err := unix.Ftruncate(fd, 0); err != nil {
			return f.failed("truncate", name, err)
		}
	}
	return nil
}

func (f *Folder) failed(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: filepath.Join(f.path, name), Err: err}
}

func flush(fd int, path string) error {
	_, err := changed("sync", path, nil, func() (int, error) { return 0, unix.Fsync(fd) })
	return err
}

// changed makes a system call that changes a file.
func changed(call, path string, data []byte, do func() (int, error)) (int, error) {
	if err := Before(call, path, data); err != nil {
		return -1, err
	}
	return retried(do)
}

// retried repeats a system call that a signal has interrupted.
func retried(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
