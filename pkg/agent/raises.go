package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/google/renameio/v2"
	"github.com/sirupsen/logrus"
)

// raisesFile holds the memory.high values that the stall guard has raised, by container id, so that a restart of the
// plugin does not stop those containers again.
const raisesFile = "raised.json"

// raises are the raised memory.high values, in memory and in the state folder.
type raises struct {
	path string

	mu      sync.Mutex
	bytes   map[string]uint64
	changes uint64

	writing sync.Mutex // held while the file is written; comes before mu
	written uint64     // changes that the file has
}

// loadRaises reads the file; a bad one is no more than the loss of the raises.
func loadRaises(dir string, log logrus.FieldLogger) *raises {
	r := &raises{path: filepath.Join(dir, raisesFile), bytes: map[string]uint64{}}
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return r
	}
	if err == nil {
		err = json.Unmarshal(data, &r.bytes)
	}
	if err != nil || r.bytes == nil {
		log.WithError(err).WithField("file", r.path).Warn("raised memory.high values cannot be read: containers get their computed ones")
		r.bytes = map[string]uint64{}
	}
	return r
}

// of is a container's raised memory.high, 0 when there is none.
func (r *raises) of(id string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes[id]
}

// set keeps a raise, or with 0 its end, and drops those of containers that have ended. Raises that come while the file
// is written share the next write: many containers can be stopped at once, and disks can be slow.
func (r *raises) set(id string, bytes uint64, alive func(id string) bool) error {
	r.mu.Lock()
	if bytes == 0 {
		delete(r.bytes, id)
	} else {
		r.bytes[id] = bytes
	}
	for other := range r.bytes {
		if other != id && !alive(other) {
			delete(r.bytes, other)
		}
	}
	r.changes++
	change := r.changes
	r.mu.Unlock()

	r.writing.Lock()
	defer r.writing.Unlock()
	if r.written >= change {
		return nil
	}
	r.mu.Lock()
	data, err := json.Marshal(r.bytes)
	change = r.changes
	r.mu.Unlock()
	if err != nil {
		return fmt.Errorf("encode %s: %w", r.path, err)
	}
	if err := renameio.WriteFile(r.path, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", r.path, err)
	}
	r.written = change
	return nil
}
