package checkpoint

import (
	"errors"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Store is the folder that holds the state file.
type Store struct{}

// CorruptError says that a state file could not be used and where it was kept.
type CorruptError struct {
	// Path is the state file.
	Path string
	// Kept is where the bad file is now; empty when it could not be moved.
	Kept string
	// Err is what was wrong with it.
	Err error
}

// Error names the file and what is wrong with it.
func (e *CorruptError) Error() string { return e.Path + ": " + e.Err.Error() }

// Unwrap returns what was wrong with the file.
func (e *CorruptError) Unwrap() error { return e.Err }

// Open makes the folder (mode 0700) when it is not there.
func Open(dir string) (*Store, error) { return nil, errors.New("not built yet") }

// Load reads the state file. The error is os.ErrNotExist when there is none, and a *CorruptError when it was bad: it is
// then kept aside as <file>.corrupt-<time>.
func (s *Store) Load() (File, error) { return File{}, errors.New("not built yet") }

// Save writes the state durably: it is on disk, whole, when Save returns nil.
func (s *Store) Save(state memorymanager.State) error { return errors.New("not built yet") }

// Close releases the folder.
func (s *Store) Close() error { return nil }
