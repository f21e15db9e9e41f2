package checkpoint

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
)

// CorruptError says why a state file could not be used and where it is kept.
type CorruptError = durable.DamagedError

// ReadFile reads a state file, a kubelet's or ours, and leaves it where it is. The error is a *CorruptError when the
// content is bad, else the file system's.
func ReadFile(path string) (File, error) {
	data, err := durable.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("reading the state file: %w", err)
	}
	file, err := Decode(data)
	if err != nil {
		return File{}, fmt.Errorf("state file %w", &CorruptError{Path: path, Err: err})
	}
	return file, nil
}
