package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// HighContainers returns the running containers with a memory.high of this plugin.
func (a *Agent) HighContainers() []ledger.HighContainer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.High()
}

// HighChanged returns a channel that receives a value after HighContainers has changed; several changes may share one. It has one receiver,
// the stall guard.
func (a *Agent) HighChanged() <-chan struct{} { return a.highChanged }

// SetHigh sets the memory.high of a running container in bytes, as the ledger's Raise does. The value survives a restart of the plugin.
//
// The file is written at once: a stalled container must not wait for the runtime, a disk or another container. When the runtime next updates
// the container, UpdateContainer answers with this value.
func (a *Agent) SetHigh(ctx context.Context, id string, bytes uint64) error {
	effects := a.step(ledger.Raise{ID: id, Bytes: bytes})
	defer a.logNotes(effects.Notes)
	if effects.Err != nil || effects.DryRun {
		return effects.Err
	}
	stored := a.raises.Submit(a.encodeRaises)
	defer a.poke() // Run writes the parent cgroups
	if err := a.desire(); err != nil {
		return err
	}
	if err := a.writeHigh(ctx, id); err != nil {
		return err
	}
	if a.raises.Await(ctx, stored) != nil {
		a.logStorage()
	}
	return nil
}

// writeHigh writes a container's memory.high.
func (a *Agent) writeHigh(ctx context.Context, id string) error {
	ref, lives := a.cgroupOf(id)
	if !lives {
		return fmt.Errorf("container %s has ended", id)
	}
	if err := a.protector.CheckHigh(ctx, ref.Cgroup); err != nil {
		return fmt.Errorf("cgroup %s: %w", ref.Cgroup, err)
	}
	if there, err := a.tree.Exists(ref.Cgroup); err == nil && !there {
		return fmt.Errorf("cgroup %s: %w", ref.Cgroup, fs.ErrNotExist)
	}
	return nil
}

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
