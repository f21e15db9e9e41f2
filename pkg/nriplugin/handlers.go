package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// margin is the part of an event's time, 1/margin, that is left for the answer to arrive. After a request's time limit the runtime goes on
// without the answer.
const margin = 10

// work handles one event.
type work[T any] = func(context.Context, Session) (T, error)

// wait queues an event's work and waits for it, but not longer than the runtime's time limit. If the work ends later, the runtime does not
// get the answer, but the agent keeps the result: the next try for the same container finds it.
func wait[T any](ctx context.Context, c *connection, event string, work work[T]) (T, error) {
	began := time.Now()
	ctx, cancel := withMargin(ctx)
	type result struct {
		answer T
		err    error
	}
	done := make(chan result, 1)
	c.queue.add(func() {
		defer cancel()
		answer, err := do(ctx, c, work)
		done <- result{answer, err}
	})
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		// The work may have ended at the same moment.
		select {
		case r = <-done:
		default:
			r.err = ctx.Err()
		}
	}
	took := time.Since(began)
	if errors.Is(r.err, context.DeadlineExceeded) {
		r.err = fmt.Errorf("nri-memory-manager did not get %s done within %s, its part of the runtime's time limit: %w",
			event, took.Round(time.Millisecond), r.err)
	}
	c.observe(event, took, r.err)
	return r.answer, r.err
}

func do[T any](ctx context.Context, c *connection, work work[T]) (T, error) {
	session, err := c.accept()
	if err != nil {
		var none T
		return none, err
	}
	return work(ctx, session)
}

func (c *connection) observe(event string, took time.Duration, err error) {
	if c.opts.Observer != nil {
		c.opts.Observer.Handled(event, took, err)
	}
}

// respond is wait for an event whose errors the runtime gets. Unless the failure policy is Fail, a timeout is not reported as an error: the
// runtime goes on without an answer. The connection is ended instead, so that the next Synchronize shows what the runtime did. A plugin
// that the runtime launched stays connected, because it would not be launched again: it adds the container when it starts.
func respond[T any](ctx context.Context, c *connection, event string, work work[T]) (T, error) {
	answer, err := wait(ctx, c, event, work)
	if c.opts.Fail || !errors.Is(err, context.DeadlineExceeded) {
		return answer, err
	}
	if !c.opts.Launched {
		c.abort(err)
	}
	var none T
	return none, nil
}

// waitAndLog is wait for an event whose errors must not reach the runtime; they are logged.
func waitAndLog(ctx context.Context, c *connection, event string, work func(context.Context, Session) error) error {
	_, err := wait(ctx, c, event, func(ctx context.Context, s Session) (struct{}, error) { return struct{}{}, work(ctx, s) })
	c.logUnreported(event, err)
	return nil
}

// notify queues an event's work, with as much time as the runtime would wait, and returns at once.
func notify(ctx context.Context, c *connection, event string, work func(context.Context, Session) error) error {
	began := time.Now()
	limit := stub.DefaultRequestTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = deadline.Sub(began)
	}
	c.queue.add(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		_, err := do(ctx, c, func(ctx context.Context, s Session) (struct{}, error) { return struct{}{}, work(ctx, s) })
		c.observe(event, time.Since(began), err)
		c.logUnreported(event, err)
	})
	return nil
}

// logUnreported logs an error that is not reported to the runtime.
func (c *connection) logUnreported(event string, err error) {
	if err != nil {
		c.opts.Log.WithError(err).WithField("event", event).Warn("an event of the runtime was not taken in")
	}
}

func withMargin(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/margin))
}

// Synchronize receives the pods and containers of the runtime after a registration.
func (c *connection) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	return wait(ctx, c, "Synchronize", func(ctx context.Context, s Session) ([]*api.ContainerUpdate, error) {
		all := make([]ledger.Pod, len(pods))
		for i, pod := range pods {
			all[i] = PodOf(pod)
		}
		running := make([]ledger.Container, len(containers))
		for i, container := range containers {
			running[i] = ContainerOf(container)
		}
		updates, err := s.Synchronize(ctx, all, running)
		return updatesOf(updates), err
	})
}

// RunPodSandbox receives a new pod.
func (c *connection) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return notify(ctx, c, "RunPodSandbox", func(ctx context.Context, s Session) error {
		return s.RunPodSandbox(ctx, PodOf(pod))
	})
}

// UpdatePodSandbox receives new resources of a pod before the runtime applies them; pod still has the old ones.
func (c *connection) UpdatePodSandbox(ctx context.Context, pod *api.PodSandbox, overhead, resources *api.LinuxResources) error {
	return waitAndLog(ctx, c, "UpdatePodSandbox", func(ctx context.Context, s Session) error {
		return s.UpdatePodSandbox(ctx, PodOf(pod), memoryLimit(overhead), memoryLimit(resources))
	})
}

// StopPodSandbox receives the end of a pod.
func (c *connection) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return notify(ctx, c, "StopPodSandbox", func(ctx context.Context, s Session) error {
		return s.StopPodSandbox(ctx, PodOf(pod))
	})
}

// RemovePodSandbox receives the removal of a pod.
func (c *connection) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return notify(ctx, c, "RemovePodSandbox", func(ctx context.Context, s Session) error {
		return s.RemovePodSandbox(ctx, PodOf(pod))
	})
}

// CreateContainer answers with the container's nodes and values.
func (c *connection) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjustment, err := respond(ctx, c, "CreateContainer", func(ctx context.Context, s Session) (*api.ContainerAdjustment, error) {
		adjustment, err := s.CreateContainer(ctx, PodOf(pod), ContainerOf(container))
		return adjustmentOf(container.GetId(), adjustment), err
	})
	return adjustment, nil, err
}

// StartContainer receives a container before its process starts, and waits until the files of its parent cgroups protect it.
func (c *connection) StartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	return waitAndLog(ctx, c, "StartContainer", func(ctx context.Context, s Session) error {
		return s.StartContainer(ctx, PodOf(pod), ContainerOf(container))
	})
}

// UpdateContainer answers only if a value of this plugin must change: any reply makes the runtime drop the swap limit of the request.
func (c *connection) UpdateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container, resources *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	return respond(ctx, c, "UpdateContainer", func(ctx context.Context, s Session) ([]*api.ContainerUpdate, error) {
		adjustment, err := s.UpdateContainer(ctx, PodOf(pod), ContainerOf(container), resourcesOf(resources))
		if err != nil || adjustment == nil || adjustment.Empty() {
			return nil, err
		}
		return []*api.ContainerUpdate{updateOf(container.GetId(), *adjustment)}, nil
	})
}

// PostUpdateContainer receives an update that the runtime has applied.
func (c *connection) PostUpdateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	return notify(ctx, c, "PostUpdateContainer", func(ctx context.Context, s Session) error {
		return s.PostUpdateContainer(ctx, PodOf(pod), ContainerOf(container))
	})
}

// StopContainer receives the end of a container.
func (c *connection) StopContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, notify(ctx, c, "StopContainer", func(ctx context.Context, s Session) error {
		return s.StopContainer(ctx, PodOf(pod), ContainerOf(container))
	})
}

// RemoveContainer receives the removal of a container.
func (c *connection) RemoveContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	return notify(ctx, c, "RemoveContainer", func(ctx context.Context, s Session) error {
		return s.RemoveContainer(ctx, PodOf(pod), ContainerOf(container))
	})
}
