package agent

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
)

// raisesFile holds the memory.high values that the stall guard has raised, by container id, so that a restart of the
// plugin does not stop those containers again.
const raisesFile = "raised.json"

// loadRaises reads the file; a bad one is set aside, and is no more than the loss of the raises.
func loadRaises(path string, log logrus.FieldLogger) map[string]uint64 {
	var kept map[string]uint64
	err := durable.Load(path, func(data []byte) error { return json.Unmarshal(data, &kept) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.WithError(err).WithField("file", path).Warn("raised memory.high values cannot be read: containers get their computed ones")
		kept = nil
	}
	if kept == nil {
		return map[string]uint64{}
	}
	return kept
}

func raisesPath(dir string) string { return filepath.Join(dir, raisesFile) }

// encodeRaises has the raises of living containers, and those of the file whose containers have not been seen yet.
func (a *Agent) encodeRaises([]byte) ([]byte, error) {
	a.mu.Lock()
	all := a.ledger.Raises()
	a.mu.Unlock()
	return json.Marshal(all)
}
