package agent

import (
	"context"
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// HighContainer is a running container with a memory.high of ours.
type HighContainer struct {
	ID, Name                string
	UID, Namespace, PodName string
	// Cgroup is relative to the cgroup mount.
	Cgroup string
	Driver cgroup.Driver
	// High is what Memory QoS gives, in bytes; Raised is what the stall guard has set instead, 0 when nothing.
	High, Raised uint64
	// Limit is memory.max; 0 when there is none.
	Limit uint64
	// GuardOff is the pod's wish to be left alone by the stall guard.
	GuardOff bool
}

// HighContainers returns the running containers that have a memory.high of ours.
func (a *Agent) HighContainers() []HighContainer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.resolved.Config.DryRun {
		return nil
	}
	var all []HighContainer
	for _, c := range a.containers {
		if c.state == Unknown || c.wanted.High == nil || c.cgroup == "" {
			continue
		}
		all = append(all, HighContainer{
			ID: c.id, Name: c.name, UID: c.pod.UID, Namespace: c.pod.Namespace, PodName: c.pod.Name,
			Cgroup: c.cgroup, Driver: c.pod.path.Driver, High: *c.wanted.High, Raised: c.raised, Limit: c.limit,
			GuardOff: c.wishes.StallGuardOff,
		})
	}
	return all
}

// HighChanged returns a channel that gets a value after HighContainers has changed; several changes may share one.
// It is for one receiver, the stall guard.
func (a *Agent) HighChanged() <-chan struct{} { return a.highChanged }

func (a *Agent) highSignal() {
	select {
	case a.highChanged <- struct{}{}:
	default: // it has a value to receive already
	}
}

// SetHigh makes the memory.high of a running container stand at so many bytes, cgroup.Max for "max"; the value that
// Memory QoS gives, or less, ends the raise. It is kept through a restart of the plugin, and a resize or a reload
// recomputes what stands below it.
//
// The file is written at once: a container that stands still must not wait for the runtime. The runtime writes its own
// value again at its next update of the container, and UpdateContainer then answers with this one.
func (a *Agent) SetHigh(ctx context.Context, id string, bytes uint64) error {
	a.mu.Lock()
	c := a.containers[id]
	if c == nil || c.cgroup == "" || c.wanted.High == nil {
		a.mu.Unlock()
		return fmt.Errorf("container %s has no memory.high of ours", id)
	}
	if a.resolved.Config.DryRun {
		a.mu.Unlock()
		return nil
	}
	raise := bytes > *c.wanted.High
	if raise && (c.wishes.StallGuardOff || !a.resolved.Config.StallGuard.Enabled) { // decided before that was
		a.mu.Unlock()
		return nil
	}
	c.raised = 0
	if raise {
		c.raised = bytes
	}
	a.raiseChanges++
	change, high := a.raiseChanges, *c.high()
	knobs := cgroup.ContainerKnobs{Cgroup: c.cgroup, Driver: c.pod.path.Driver, Values: memoryqos.Values{High: &high}}
	a.touch(c.pod)
	a.mu.Unlock()

	a.note(knobs.Cgroup, Adjustment{Unified: map[string]string{string(cgroup.MemoryHigh): ""}}, nil)
	if err := a.protector.SetContainer(ctx, knobs); err != nil {
		// The container stands still or not by what the kernel holds, whether or not systemd has answered.
		if shows, e := a.tree.Get(knobs.Cgroup, cgroup.MemoryHigh); e != nil || !memoryqos.Holds(shows, high, uint64(a.machine.PageSize)) {
			return fmt.Errorf("cgroup %s: %w", knobs.Cgroup, err)
		}
		a.log.WithError(err).WithField("containerID", id).Debug("memory.high is set, and systemd does not know it yet")
	}
	if err := a.keepRaises(change); err != nil {
		a.log.WithError(err).Warn("a raised memory.high will be lost when the plugin restarts")
	}
	return nil
}
