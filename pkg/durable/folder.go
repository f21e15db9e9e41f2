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

// temporary is the suffix of the file that takes another's place. The name is fixed, unlike renameio's random ones: after a crash the next
// write overwrites the leftover.
const temporary = ".tmp"

// Before is called before each system call that changes a file: "open", "write" with the data, "rename" with the new path, "sync" of a file
// or folder, "touch". Tests and simulations replace it while nothing is written. Like a disk, it may wait, fail with an errno, or never
// return. To tear a write, it writes a part of the data itself.
var Before = func(call, path string, data []byte) error { return nil }

// Folder is an open folder in which files are replaced. It makes its own system calls, because package os would stat every file twice and
// allocate, for each container that is created. Its methods are not safe for concurrent use.
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

// IsInPlace reports whether the path still leads to this folder.
func (f *Folder) IsInPlace() bool {
	var current unix.Stat_t
	err := unix.Stat(f.path, &current)
	return err == nil && current.Dev == f.dev && current.Ino == f.ino
}

// Lock locks the folder against other processes that call Lock, until Close. The error is EWOULDBLOCK if another process has the lock.
func (f *Folder) Lock() error {
	if err := unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return &fs.PathError{Op: "flock", Path: f.path, Err: err}
	}
	f.locked = true
	return nil
}

// Holder returns the process that holds the folder's lock; 0 if unknown. /proc/locks does not show processes in another PID namespace.
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

// Close closes the folder and releases its lock.
func (f *Folder) Close() error {
	if f.locked { // a forked process also has the descriptor until it calls exec
		_ = unix.Flock(f.fd, unix.LOCK_UN)
	}
	if err := unix.Close(f.fd); err != nil {
		return &fs.PathError{Op: "close", Path: f.path, Err: err}
	}
	return nil
}

// WriteFile is the function WriteFile for a file in the folder. In a locked folder it does not check for other writers.
func (f *Folder) WriteFile(name string, data []byte, mode fs.FileMode) error {
	if err := f.replace(name, data, mode, flush); err != nil {
		return err
	}
	return f.sync()
}

// Replace is WriteFile without fsync: when it returns nil, the content survives the process. Until Sync, a crash of the machine may leave
// an empty or torn file.
func (f *Folder) Replace(name string, data []byte, mode fs.FileMode) error {
	return f.replace(name, data, mode, func(int, string) error { return nil })
}

func (f *Folder) replace(name string, data []byte, mode fs.FileMode, flush func(fd int, path string) error) error {
	copied, flags := name+temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC
	if f.locked {
		flags |= unix.O_TRUNC
	}
	path := filepath.Join(f.path, copied)
	fd, err := mutate("open", path, nil, func() (int, error) { return unix.Openat(f.fd, copied, flags, uint32(mode.Perm())) })
	if err != nil {
		return f.failed("open", copied, err)
	}
	defer unix.Close(fd) // after the rename: until then its lock keeps other processes off the file
	if !f.locked {
		if err := f.lockFile(fd, copied, mode); err != nil {
			return err
		}
	}
	op, failed := "write", writeAll(fd, path, data)
	if failed == nil {
		op, failed = "sync", flush(fd, path)
	}
	if failed != nil {
		_ = unix.Unlinkat(f.fd, copied, 0) // frees space on a full disk
		return f.failed(op, copied, failed)
	}
	_, err = mutate("rename", filepath.Join(f.path, name), nil, func() (int, error) { return 0, unix.Renameat(f.fd, copied, f.fd, name) })
	if err != nil {
		_ = unix.Unlinkat(f.fd, copied, 0)
		return f.failed("rename", name, err)
	}
	return nil
}

// sync writes the folder's file names to disk.
func (f *Folder) sync() error {
	if err := flush(f.fd, f.path); err != nil && !errors.Is(err, unix.EINVAL) { // a file system that cannot sync folders
		return f.failed("sync", "", err)
	}
	return nil
}

// lockFile locks an open file for this process and empties it.
func (f *Folder) lockFile(fd int, name string, mode fs.FileMode) error {
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) { // other errors: a file system without locks
		return f.failed("lock", name, err)
	}
	var opened, current unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil {
		return f.failed("stat", name, err)
	}
	err := unix.Fstatat(f.fd, name, &current, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || current.Dev != opened.Dev || current.Ino != opened.Ino { // renamed before it was locked
		return f.failed("lock", name, unix.EWOULDBLOCK)
	}
	if fs.FileMode(opened.Mode).Perm() != mode {
		if err := unix.Fchmod(fd, uint32(mode.Perm())); err != nil {
			return f.failed("chmod", name, err)
		}
	}
	if opened.Size > 0 { // left by a crash
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
	_, err := mutate("sync", path, nil, func() (int, error) { return 0, unix.Fsync(fd) })
	return err
}

// mutate makes a system call that changes a file, after Before.
func mutate(call, path string, data []byte, do func() (int, error)) (int, error) {
	if err := Before(call, path, data); err != nil {
		return -1, err
	}
	return retried(do)
}

// retried repeats a system call that a signal interrupted.
func retried(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
