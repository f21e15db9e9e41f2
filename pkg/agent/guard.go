package agent

import (
	"context"
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// HighContainers returns the running containers that have a memory.high of ours.
func (a *Agent) HighContainers() []ledger.HighContainer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.High()
}

// HighChanged returns a channel that gets a value after HighContainers has changed; several changes may share one.
// It is for one receiver, the stall guard.
func (a *Agent) HighChanged() <-chan struct{} { return a.highChanged }

// SetHigh makes the memory.high of a running container stand at so many bytes, as the ledger's Raise does. It is kept
// through a restart of the plugin.
//
// The file is written at once: a container that stands still must not wait for the runtime. The runtime writes its own
// value again at its next update of the container, and UpdateContainer then answers with this one.
func (a *Agent) SetHigh(ctx context.Context, id string, bytes uint64) error {
	effects := a.step(ledger.Raise{ID: id, Bytes: bytes})
	defer a.logNotes(effects.Notes)
	if effects.Err != nil || effects.Raise == nil {
		return effects.Err
	}
	a.note(effects)
	if err := a.setHigh(ctx, *effects.Raise); err != nil {
		return err
	}
	if err := a.keepRaises(ctx); err != nil {
		a.log.WithError(err).Warn("a raised memory.high will be lost when the plugin restarts")
	}
	return nil
}

func (a *Agent) setHigh(ctx context.Context, knobs protect.ContainerKnobs) error {
	err := a.protector.SetContainer(ctx, knobs)
	if err == nil {
		return nil
	}
	// The container stands still or not by what the kernel holds, whether or not systemd has answered.
	shows, e := a.tree.Get(knobs.Cgroup, cgroup.MemoryHigh)
	if e != nil || !memoryqos.Holds(shows, *knobs.Values.High, uint64(a.machine.PageSize)) {
		return fmt.Errorf("cgroup %s: %w", knobs.Cgroup, err)
	}
	a.log.WithError(err).WithField("cgroup", knobs.Cgroup).Debug("memory.high is set, and systemd does not know it yet")
	return nil
}
