package agent

import "context"

// HighContainers returns the running containers that have a memory.high of ours.
func (a *Agent) HighContainers() []HighContainer { return nil }

// HighChanged returns a channel that gets a value after HighContainers has changed; several changes may share one.
// It is for one receiver, the stall guard.
func (a *Agent) HighChanged() <-chan struct{} { return nil }

// SetHigh makes the memory.high of a running container stand at so many bytes, cgroup.Max for "max"; the value that
// Memory QoS gives, or less, ends the raise. It is kept through a restart of the plugin, and a resize or a reload
// recomputes what stands below it.
func (a *Agent) SetHigh(ctx context.Context, id string, bytes uint64) error { return errNotBuilt }
