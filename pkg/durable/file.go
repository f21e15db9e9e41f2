// Package durable keeps files on disk: one way to replace a file, durably or for a process that may be killed, one way
// to set a damaged file aside, and one writer that lets many changes share a write.
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// WriteFile replaces a file: the content goes to a temporary file in the same folder, fsync, rename, fsync of the folder.
// When it returns nil the content is on disk; an error before the rename leaves the file as it was. A process that finds
// another one writing the same file fails with EWOULDBLOCK.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	folder, err := OpenFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.WriteFile(filepath.Base(path), data, mode)
}

// Sync has on disk a file that was replaced by Folder.Replace, and its name. One that is gone needs nothing.
func Sync(path string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if err := flush(int(file.Fd()), path); err != nil {
		return &fs.PathError{Op: "sync", Path: path, Err: err}
	}
	folder, err := OpenFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.sync()
}

// AppendFile adds data to the end of a file that is there. It waits for no fsync: what it adds outlives the process that writes it, not a
// crash of the machine. An error may leave a part of data in the file. Package os would make twice as many system calls, for each
// container that is created.
func AppendFile(path string, data []byte) error {
	fd, err := changed("open", path, nil, func() (int, error) {
		return unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err = writeAll(fd, path, data); err != nil {
		err = &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return errors.Join(err, unix.Close(fd))
}

// writeAll writes all of data where an open file is.
func writeAll(fd int, path string, data []byte) error {
	for len(data) > 0 {
		n, err := changed("write", path, data, func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// Touch sets the time of a file's last change.
func Touch(path string, at time.Time) error {
	_, err := changed("touch", path, nil, func() (int, error) { return 0, os.Chtimes(path, at, at) })
	return err
}

// maxSize bounds what is read, in bytes; the state of a thousand containers needs 200 KB.
const maxSize = 64 << 20

// DamagedError says why the content of a file could not be used, and where the file is now.
type DamagedError struct {
	Path string
	// Kept is the name that the file was given when it was set aside; empty when it is still in its place.
	Kept string
	Err  error
}

// Error names the file, what is wrong with it, and where it is kept.
func (e *DamagedError) Error() string {
	if e.Kept == "" {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s: %v (kept as %s)", e.Path, e.Err, e.Kept)
}

// Unwrap returns what was wrong with the file.
func (e *DamagedError) Unwrap() error { return e.Err }

// ReadFile reads a regular file. The error is fs.ErrNotExist for a missing file and a *DamagedError for one that is too large.
func ReadFile(path string) ([]byte, error) {
	in, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return nil, err
	}
	defer in.Close()
	info, err := in.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is a %s, want a regular file", path, kind(info.Mode()))
	case info.Size() > maxSize:
		return nil, &DamagedError{Path: path, Err: fmt.Errorf("is larger than %d bytes", maxSize)}
	}
	return io.ReadAll(io.LimitReader(in, maxSize))
}

func kind(mode fs.FileMode) string {
	if mode.IsDir() {
		return "folder"
	}
	return "special file"
}

// Load reads a file and decodes it. A file that decode refuses is set aside, and the error is a *DamagedError then;
// otherwise it is ReadFile's.
func Load(path string, decode func(data []byte) error) error {
	data, err := ReadFile(path)
	if err == nil {
		if err = decode(data); err != nil {
			err = &DamagedError{Path: path, Err: err}
		}
	}
	if damaged, ok := errors.AsType[*DamagedError](err); ok {
		kept, failure := SetAside(path, "corrupt")
		damaged.Kept = kept
		if failure != nil {
			damaged.Err = fmt.Errorf("%w; %w", damaged.Err, failure)
		}
	}
	return err
}

// SetAside renames a file to <path>.<why>-<time>, never onto another one, and returns that name.
func SetAside(path, why string) (kept string, err error) {
	kept = path + "." + why + time.Now().UTC().Format("-20060102T150405.000000000Z")
	if err = Before("rename", kept, nil); err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, kept, unix.RENAME_NOREPLACE)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system without the flag
		err = unix.Rename(path, kept)
	}
	if err != nil {
		return "", fmt.Errorf("setting it aside: %w", &fs.PathError{Op: "rename", Path: path, Err: err})
	}
	return kept, nil
}
