package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Store is the folder that holds the state file. Its methods are safe for concurrent use.
type Store struct {
	dir string

	mu     sync.Mutex
	folder *durable.Folder // nil after Close
	locked bool            // Lock was called
	bad    bool            // a state file that could not be read is still in its place
}

// Open creates the folder (mode 0700) if it is missing.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir}
	if err := s.openFolder(); err != nil {
		return nil, err
	}
	return s, nil
}

// openFolder opens and locks the folder again if it was removed or replaced.
func (s *Store) openFolder() error {
	if s.folder != nil && s.folder.IsInPlace() {
		return nil
	}
	_ = s.closeFolder()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("making the state folder: %w", err)
	}
	folder, err := durable.OpenFolder(s.dir)
	if err != nil {
		return fmt.Errorf("opening the state folder: %w", err)
	}
	s.folder = folder
	if s.locked {
		if err := s.lock(); err != nil {
			_ = s.closeFolder()
			return err
		}
	}
	return nil
}

func (s *Store) closeFolder() error {
	if s.folder == nil {
		return nil
	}
	err := s.folder.Close()
	s.folder = nil
	return err
}

// Path returns the path of the state file.
func (s *Store) Path() string { return filepath.Join(s.dir, FileName) }

// ErrInUse is the error of Lock if another process has the lock.
var ErrInUse = errors.New("another nri-memory-manager is running with this state folder")

// Lock locks the folder until Close or the end of the process: two writers would lose each other's decisions. The error is ErrInUse if
// another process has the lock.
func (s *Store) Lock() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.openFolder(); err != nil {
		return err
	}
	if err := s.lock(); err != nil {
		return err
	}
	s.locked = true
	return s.openFolder() // it may have been replaced before it was locked
}

func (s *Store) lock() error {
	switch err := s.folder.Lock(); {
	case errors.Is(err, unix.EWOULDBLOCK):
		if pid := s.folder.Holder(); pid > 0 {
			return fmt.Errorf("%s: %w: process %d", s.dir, ErrInUse, pid)
		}
		return fmt.Errorf("%s: %w", s.dir, ErrInUse)
	case err != nil:
		return fmt.Errorf("locking the state folder: %w", err)
	}
	return nil
}

// Close releases the folder. A hanging write keeps it until the process ends.
func (s *Store) Close() error {
	if !s.mu.TryLock() {
		return fmt.Errorf("closing the state folder %s: a write is under way", s.dir)
	}
	defer s.mu.Unlock()
	return s.closeFolder()
}

// Load reads the state file. The error is fs.ErrNotExist if there is none. If the content is bad, the error is a *CorruptError and the file
// is preserved as <file>.corrupt-<time>. Any other error is from reading it; the next Save then preserves the file.
func (s *Store) Load() (File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var file File
	err := durable.Load(s.Path(), func(data []byte) (err error) {
		file, err = Decode(data)
		return err
	})
	if err == nil {
		s.bad = false
		return file, nil
	}
	damaged, ok := errors.AsType[*CorruptError](err)
	s.bad = !errors.Is(err, fs.ErrNotExist) && (!ok || damaged.Kept == "")
	return File{}, fmt.Errorf("reading the state file: %w", err)
}

// HadFile reports whether a state file was preserved.
func (s *Store) HadFile() bool {
	kept, _ := filepath.Glob(s.Path() + ".*-*") // the pattern is good
	return len(kept) > 0
}

// preserve renames a good state file before it is replaced.
func (s *Store) preserve(why string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return durable.Preserve(s.Path(), why)
}

// Save writes the state durably: when it returns nil, the state is on disk.
func (s *Store) Save(state memorymanager.State) error {
	return s.change(func() error { return s.folder.WriteFile(FileName, Encode(PolicyStatic, state), 0o600) })
}

// write replaces the state file, which then survives the process; sync writes it to disk.
func (s *Store) write(data []byte) error {
	return s.change(func() error { return s.folder.Replace(FileName, data, 0o600) })
}

// sync does not take the lock, so that writes can go on.
func (s *Store) sync() error {
	if err := durable.Sync(s.Path()); err != nil {
		return fmt.Errorf("writing the state file: %w", err)
	}
	return nil
}

// change writes to the folder. It preserves a state file that could not be read before.
func (s *Store) change(write func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.openFolder(); err != nil {
		return err
	}
	if s.bad {
		if _, err := durable.Preserve(s.Path(), "corrupt"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("writing the state file: %w", err)
		}
		s.bad = false
	}
	if err := write(); err != nil {
		return fmt.Errorf("writing the state file: %w", err)
	}
	return nil
}
