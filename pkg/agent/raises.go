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

// raises is the file of raised memory.high values. Its lock is taken before the agent's, never under it: a slow disk
// must not hold a create.
type raises struct {
	mu      sync.Mutex
	path    string
	written uint64 // changes that the file has
}

// loadRaises reads the file; a bad one is no more than the loss of the raises.
func loadRaises(path string, log logrus.FieldLogger) map[string]uint64 {
	kept := map[string]uint64{}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return kept
	}
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	if err != nil || kept == nil {
		log.WithError(err).WithField("file", path).Warn("raised memory.high values cannot be read: containers get their computed ones")
		return map[string]uint64{}
	}
	return kept
}

func raisesPath(dir string) string { return filepath.Join(dir, raisesFile) }

// keepRaises writes the file, if it does not have this change yet. Raises that come while it is written share the next
// write: many containers can be stopped at once, and disks can be slow.
func (a *Agent) keepRaises(change uint64) error {
	r := &a.raises
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written >= change {
		return nil
	}
	all, change := a.raised()
	data, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode %s: %w", r.path, err)
	}
	if err := renameio.WriteFile(r.path, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", r.path, err)
	}
	r.written = change
	return nil
}

// raised are the raises to keep, and the change that they include.
func (a *Agent) raised() (all map[string]uint64, change uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Raises(), a.raiseChanges
}
