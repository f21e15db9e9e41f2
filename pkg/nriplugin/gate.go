package nriplugin

import (
	"context"
	"errors"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// failing are the events that fail under the failure policy Fail.
var failing = api.MustParseEventMask("CreateContainer,UpdateContainer")

// gate has creations and updates of containers fail while nobody answers them. A runtime applies a failure policy to every event of a
// registration: the gate is a second one, for these events alone, and the end of a container or a start of a pod never fails.
type gate struct{ registration }

// errNoSession answers what comes by the gate while the agent is not connected.
var errNoSession = errors.New("nri-memory-manager is not synchronized with the runtime (failurePolicy: Fail)")

// serveGate keeps a gate registered from the time on that a runtime knows of failure policies.
func (p *Plugin) serveGate(ctx context.Context) {
	select {
	case <-p.split:
	case <-ctx.Done():
		return
	}
	p.keep(ctx, func() error {
		g := &gate{newRegistration(p)}
		return g.serve(ctx, g, stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}))
	}, func(error) {})
}

// Configure subscribes to what may fail.
func (g *gate) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	defer close(g.configured)
	if !knowsFailurePolicies(RuntimeNRIVersion(g.stub.RuntimeNRIVersion(), runtime, version)) {
		return 0, errors.New("this runtime knows no failure policy: all events come by the other registration")
	}
	return failing, nil
}

// Synchronize receives what the agent has received already.
func (g *gate) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

// CreateContainer is the connection's.
func (g *gate) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if c := g.main.Load(); c != nil {
		return c.CreateContainer(ctx, pod, container)
	}
	return nil, nil, errNoSession
}

// UpdateContainer is the connection's.
func (g *gate) UpdateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container, resources *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	if c := g.main.Load(); c != nil {
		return c.UpdateContainer(ctx, pod, container, resources)
	}
	return nil, errNoSession
}
