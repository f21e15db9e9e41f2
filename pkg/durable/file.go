// Package durable keeps files on disk: it replaces them, durably or for a process that may be killed, preserves damaged ones, and lets many
// changes share one write.
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

// WriteFile replaces a file: it writes a temporary file in the same folder, then fsync, rename, fsync of the folder. When it returns nil,
// the content is on disk; an error before the rename leaves the old file unchanged. If another process writes the same file, the error is
// EWOULDBLOCK.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	folder, err := OpenFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.WriteFile(filepath.Base(path), data, mode)
}

// Sync writes a file that Folder.Replace has replaced, and its name, to disk. A missing file is no error.
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

// AppendFile appends data to an existing file without fsync: the data survives the process, but not a crash of the machine. After an error
// the file may have a part of data. Package os would make twice as many system calls, for each container that is created.
func AppendFile(path string, data []byte) error {
	fd, err := mutate("open", path, nil, func() (int, error) {
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

// writeAll writes all of data at the file's offset.
func writeAll(fd int, path string, data []byte) error {
	for len(data) > 0 {
		n, err := mutate("write", path, data, func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// Touch sets the modification time of a file.
func Touch(path string, at time.Time) error {
	_, err := mutate("touch", path, nil, func() (int, error) { return 0, os.Chtimes(path, at, at) })
	return err
}

// maxSize is the largest file that is read, in bytes; the state of a thousand containers needs 200 KB.
const maxSize = 64 << 20

// DamagedError says why the content of a file could not be used, and where the file is now.
type DamagedError struct {
	Path string
	// Kept is the file's new name after it was preserved; empty if the file is still in its place.
	Kept string
	Err  error
}

// Error names the file, its damage, and its new name.
func (e *DamagedError) Error() string {
	if e.Kept == "" {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s: %v (kept as %s)", e.Path, e.Err, e.Kept)
}

// Unwrap returns the damage.
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

// Load reads a file and decodes it. If decode refuses the content, the file is preserved and the error is a *DamagedError. Otherwise the
// error is ReadFile's.
func Load(path string, decode func(data []byte) error) error {
	data, err := ReadFile(path)
	if err == nil {
		if err = decode(data); err != nil {
			err = &DamagedError{Path: path, Err: err}
		}
	}
	if damaged, ok := errors.AsType[*DamagedError](err); ok {
		kept, failure := Preserve(path, "corrupt")
		damaged.Kept = kept
		if failure != nil {
			damaged.Err = fmt.Errorf("%w; %w", damaged.Err, failure)
		}
	}
	return err
}

// Preserve renames a file to <path>.<why>-<time> without replacing another file, and returns the new name.
func Preserve(path, why string) (kept string, err error) {
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
