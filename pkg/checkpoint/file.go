package checkpoint

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxSize bounds what is read as a state file, in bytes; a thousand containers need 200 KB.
const maxSize = 64 << 20

// CorruptError says that a state file could not be used and where it was kept.
type CorruptError struct {
	// Path is the state file.
	Path string
	// Kept is where the bad file is now; empty when it was not moved.
	Kept string
	// Err is what was wrong with it.
	Err error
}

// Error names the file, what is wrong with it, and where it is kept.
func (e *CorruptError) Error() string {
	if e.Kept == "" {
		return fmt.Sprintf("state file %s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("state file %s: %v (kept as %s)", e.Path, e.Err, e.Kept)
}

// Unwrap returns what was wrong with the file.
func (e *CorruptError) Unwrap() error { return e.Err }

// ReadFile reads a state file, a kubelet's or ours, and leaves it where it is. The error is a *CorruptError when the
// content is bad, else the file system's.
func ReadFile(path string) (File, error) {
	data, err := readAll(path)
	if err != nil {
		return File{}, err
	}
	file, err := Decode(data)
	if err != nil {
		return File{}, &CorruptError{Path: path, Err: err}
	}
	return file, nil
}

func readAll(path string) ([]byte, error) {
	in, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not hold us
	if err != nil {
		return nil, fmt.Errorf("reading the state file: %w", err)
	}
	defer in.Close()
	if info, err := in.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("state file %s is a %s, want a regular file", path, kind(info.Mode()))
	}
	data, err := io.ReadAll(io.LimitReader(in, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading the state file: %w", err)
	}
	if len(data) > maxSize {
		return nil, &CorruptError{Path: path, Err: fmt.Errorf("is larger than %d bytes", maxSize)}
	}
	return data, nil
}

func kind(mode os.FileMode) string {
	if mode.IsDir() {
		return "folder"
	}
	return "special file"
}
