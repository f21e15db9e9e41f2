package agent

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
)

// raisesFile holds the raised memory.high values by container ID, so that a restart of the plugin does not stop those containers again.
const raisesFile = "raised.json"

// loadRaises reads the file. A damaged file is renamed, and its raises are lost.
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

// encodeRaises encodes the raises of living containers, and of containers that have not been seen since the start.
func (a *Agent) encodeRaises([]byte) ([]byte, error) {
	a.mu.Lock()
	all := a.ledger.Raises()
	a.mu.Unlock()
	return json.Marshal(all)
}
