package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Store is the folder that holds the state file. Its methods are safe for concurrent use.
type Store struct {
	dir string

	mu     sync.Mutex
	folder int  // open file descriptor of dir, -1 when it must be opened again
	locked bool // Lock was called
	bad    bool // a state file that could not be read is still in its place
}

// temporary is where a state is written before it takes the place of the last one.
const temporary = FileName + ".tmp"

// Open makes the folder (mode 0700) when it is not there.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, folder: -1}
	if err := s.openFolder(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) openFolder() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("making the state folder: %w", err)
	}
	folder, err := retried(func() (int, error) { return unix.Open(s.dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return fmt.Errorf("opening the state folder: %w", &fs.PathError{Op: "open", Path: s.dir, Err: err})
	}
	s.folder = folder
	if s.locked {
		return s.lock()
	}
	return nil
}

// Path is where the state file is.
func (s *Store) Path() string { return filepath.Join(s.dir, FileName) }

// ErrInUse is the error of Lock when another process has the folder.
var ErrInUse = errors.New("another nri-memory-manager is running with this state folder")

// Lock keeps the folder for this process until Close: two writers would each lose the other's decisions.
func (s *Store) Lock() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.lock()
	s.locked = err == nil
	return err
}

func (s *Store) lock() error {
	switch err := unix.Flock(s.folder, unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%s: %w", s.dir, ErrInUse)
	case err != nil:
		return fmt.Errorf("locking the state folder: %w", &fs.PathError{Op: "flock", Path: s.dir, Err: err})
	}
	return nil
}

// Close releases the folder.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folder < 0 {
		return nil
	}
	err := unix.Close(s.folder)
	s.folder = -1
	return err
}

// Load reads the state file. The error is os.ErrNotExist when there is none, and a *CorruptError when it was bad: it is
// then kept aside as <file>.corrupt-<time>. Any other error is of reading it; the next Save keeps the file aside then.
func (s *Store) Load() (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := ReadFile(s.Path())
	s.bad = err != nil && !errors.Is(err, fs.ErrNotExist)
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		kept, keepErr := s.keepAside()
		corrupt.Kept = kept
		if keepErr != nil {
			corrupt.Err = fmt.Errorf("%w; %w", corrupt.Err, keepErr)
		}
	}
	return file, err
}

// keepAside moves a bad state file out of the way.
func (s *Store) keepAside() (string, error) {
	kept, err := s.move("corrupt")
	if errors.Is(err, unix.ENOENT) {
		kept, err = "", nil
	}
	s.bad = s.bad && err != nil
	return kept, err
}

// setAside moves a good state file out of the way.
func (s *Store) setAside(why string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.move(why)
}

// move renames the state file to <file>.<why>-<time>, never onto another one.
func (s *Store) move(why string) (string, error) {
	name := FileName + "." + why + time.Now().UTC().Format("-20060102T150405.000000000Z")
	err := unix.Renameat2(s.folder, FileName, s.folder, name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system without the flag
		err = unix.Renameat(s.folder, FileName, s.folder, name)
	}
	if err != nil {
		return "", fmt.Errorf("keeping the state file aside: %w", &fs.PathError{Op: "rename", Path: s.Path(), Err: err})
	}
	return filepath.Join(s.dir, name), nil
}

// Save writes the state durably: it is on disk, whole, when Save returns nil.
func (s *Store) Save(state memorymanager.State) error { return s.write(Encode(PolicyStatic, state)) }

// write replaces the state file by data: a temporary file in the same folder, fsync, rename, fsync of the folder.
func (s *Store) write(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad {
		if _, err := s.keepAside(); err != nil {
			return err
		}
	}
	err := s.replace(data)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBADF) { // the folder was removed under us, or closed
		if s.folder >= 0 {
			_ = unix.Close(s.folder)
			s.folder = -1
		}
		if err = s.openFolder(); err == nil {
			err = s.replace(data)
		}
	}
	return err
}

func (s *Store) replace(data []byte) error {
	fd, err := retried(func() (int, error) {
		return unix.Openat(s.folder, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return s.failed("open", temporary, err)
	}
	err = fill(fd, data)
	if closeErr := unix.Close(fd); err == nil && closeErr != nil {
		err = fmt.Errorf("close: %w", closeErr)
	}
	if err != nil {
		_ = unix.Unlinkat(s.folder, temporary, 0) // gives a full disk its room back
		return s.failed("write", temporary, err)
	}
	if err := unix.Renameat(s.folder, temporary, s.folder, FileName); err != nil {
		return s.failed("rename", FileName, err)
	}
	_, err = retried(func() (int, error) { return 0, unix.Fsync(s.folder) })
	if err != nil && !errors.Is(err, unix.EINVAL) { // a file system that has nothing to sync for a folder
		return s.failed("fsync", "", err)
	}
	return nil
}

func fill(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := retried(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	if _, err := retried(func() (int, error) { return 0, unix.Fsync(fd) }); err != nil {
		return fmt.Errorf("fsync: %w", err)
	}
	return nil
}

func (s *Store) failed(op, name string, err error) error {
	return fmt.Errorf("writing the state file: %w", &fs.PathError{Op: op, Path: filepath.Join(s.dir, name), Err: err})
}

// retried repeats a system call that a signal interrupted.
func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
