// Package agent is the one owner of this node's state: which container's memory is where and how it is protected.
// Every event of the runtime is one pass through it: decide, make durable, apply, answer.
package agent

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"
)

// Options are what an Agent is made of.
type Options struct {
	// Log is where decisions are told, one line each; nil is logrus' standard logger.
	Log logrus.FieldLogger
	// StateDir holds the checkpoint and the journal of written cgroup files.
	StateDir string
}

// Agent holds the state. Its methods may be called from any goroutine.
type Agent struct{}

var errNotBuilt = errors.New("not built yet")

// New returns an agent that has read its checkpoint.
func New(opts Options) (*Agent, error) { return &Agent{}, nil }

// Connected tells that a runtime has accepted the plugin. apply sends unasked updates of running containers to it; nil
// where the runtime can not take them, and the agent then writes the containers' cgroup files.
func (a *Agent) Connected(runtime Runtime, apply func(context.Context, []Update) error) {}

// Disconnected tells that the runtime is gone, and why.
func (a *Agent) Disconnected(reason error) {}

// Synchronize takes over what the runtime has: bookings of pods that are gone are freed, containers without a booking
// are adopted. The updates bring containers to the values they should have.
func (a *Agent) Synchronize(ctx context.Context, pods []Pod, containers []Container) ([]Update, error) {
	return nil, errNotBuilt
}

// RunPodSandbox tells of a new pod sandbox.
func (a *Agent) RunPodSandbox(ctx context.Context, pod Pod) error { return errNotBuilt }

// UpdatePodSandbox tells that the resources of a pod change (in-place resize). overhead and limit are in bytes and
// replace those of the pod, whose own may be stale.
func (a *Agent) UpdatePodSandbox(ctx context.Context, pod Pod, overhead, limit uint64) error {
	return errNotBuilt
}

// StopPodSandbox frees all that a pod has. Stopping it again is harmless.
func (a *Agent) StopPodSandbox(ctx context.Context, pod Pod) error { return errNotBuilt }

// RemovePodSandbox frees all that a pod still has.
func (a *Agent) RemovePodSandbox(ctx context.Context, pod Pod) error { return errNotBuilt }

// CreateContainer places a container and computes its values. The error is for the pod's events: the container must
// not be created.
func (a *Agent) CreateContainer(ctx context.Context, pod Pod, container Container) (Adjustment, error) {
	return Adjustment{}, errNotBuilt
}

// StartContainer tells that a container is about to run (StartContainer, PostStartContainer).
func (a *Agent) StartContainer(ctx context.Context, pod Pod, container Container) error {
	return errNotBuilt
}

// UpdateContainer recomputes a container whose resources the kubelet changes. nil means that nothing of ours has to
// change; the error refuses the change.
func (a *Agent) UpdateContainer(ctx context.Context, pod Pod, container Container, to Resources) (*Adjustment, error) {
	return nil, errNotBuilt
}

// PostUpdateContainer tells that the runtime has applied an update.
func (a *Agent) PostUpdateContainer(ctx context.Context, pod Pod, container Container) error {
	return errNotBuilt
}

// StopContainer tells that a container has ended. Its booking stays for its next start as long as the pod lives.
func (a *Agent) StopContainer(ctx context.Context, pod Pod, container Container) error {
	return errNotBuilt
}

// RemoveContainer tells that the runtime forgets a container.
func (a *Agent) RemoveContainer(ctx context.Context, pod Pod, container Container) error {
	return errNotBuilt
}

// Run does the work beside the events until ctx ends: reconciling, corrections from better sources, repairs.
func (a *Agent) Run(ctx context.Context) error { <-ctx.Done(); return nil }
