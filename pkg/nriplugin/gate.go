package nriplugin

import (
	"context"
	"errors"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// gatedEvents are the events that fail under the failure policy Fail.
var gatedEvents = api.MustParseEventMask("CreateContainer,UpdateContainer")

// gate is a second registration, which makes creations and updates of containers fail while nobody answers them. A runtime applies a
// failure policy to all events of a registration. With a registration for these two events alone, the end of a container or the start of a
// pod never fails.
type gate struct{ registration }

// errNoSession answers the gate's events while the agent is not connected.
var errNoSession = errors.New("nri-memory-manager is not synchronized with the runtime (failurePolicy: Fail)")

// serveGate keeps a gate registered, once a runtime is known to support failure policies.
func (p *Plugin) serveGate(ctx context.Context) {
	select {
	case <-p.gateWanted:
	case <-ctx.Done():
		return
	}
	p.keepConnected(ctx, func() error {
		g := &gate{newRegistration(p)}
		return g.serve(ctx, g, stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}))
	}, func(error) {})
}

// Configure subscribes to the events that may fail.
func (g *gate) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	defer close(g.configured)
	if !knowsFailurePolicies(RuntimeNRIVersion(g.stub.RuntimeNRIVersion(), runtime, version)) {
		return 0, errors.New("this runtime knows no failure policy: all events come by the other registration")
	}
	return gatedEvents, nil
}

// Synchronize does nothing: the connection handles it.
func (g *gate) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

// CreateContainer passes the event to the connection.
func (g *gate) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if c := g.current.Load(); c != nil {
		return c.CreateContainer(ctx, pod, container)
	}
	return nil, nil, errNoSession
}

// UpdateContainer passes the event to the connection.
func (g *gate) UpdateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container, resources *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	if c := g.current.Load(); c != nil {
		return c.UpdateContainer(ctx, pod, container, resources)
	}
	return nil, errNoSession
}
