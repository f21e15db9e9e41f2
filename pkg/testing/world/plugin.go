package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// How long a runtime waits for a plugin (pkg/adaptation/plugin.go of containerd/nri).
const (
	registrationTime = 5 * time.Second
	requestTime      = 2 * time.Second
)

// plugin is the runtime's end of a connection.
type plugin struct {
	api.PluginService
	runtime    *ContainerRuntime
	mux        multiplex.Mux
	client     *ttrpc.Client
	server     *ttrpc.Server
	registered chan *api.RegisterPluginRequest
	closing    sync.Once
	closed     chan struct{}

	index  string
	events api.EventMask
	policy *api.FailurePolicy
}

// accept registers, configures and synchronizes whoever has connected.
func (r *ContainerRuntime) accept(conn net.Conn) {
	defer r.accepting.hold()()
	p := &plugin{runtime: r, registered: make(chan *api.RegisterPluginRequest, 1), closed: make(chan struct{})}
	if err := p.start(conn); err != nil {
		p.close()
		return
	}
	defer r.turn.hold()()
	if err := p.synchronize(); err != nil || r.away() != nil {
		p.close()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plugins = append(r.plugins, p)
	slices.SortStableFunc(r.plugins, func(a, b *plugin) int { return strings.Compare(a.index, b.index) })
}

func (p *plugin) start(conn net.Conn) error {
	defer p.runtime.configuring.hold()()
	p.mux = multiplex.Multiplex(conn, multiplex.WithBlockedRead())
	to, err := p.mux.Open(multiplex.PluginServiceConn)
	if err != nil {
		return err
	}
	from, err := p.mux.Listen(multiplex.RuntimeServiceConn)
	if err != nil {
		return err
	}
	if p.server, err = ttrpc.NewServer(); err != nil {
		return err
	}
	p.client = ttrpc.NewClient(to, ttrpc.WithOnClose(p.close), cri.SpeakAs(p.runtime.nri))
	p.PluginService = api.NewPluginClient(p.client)
	api.RegisterRuntimeService(p.server, p)
	go func() {
		_ = p.server.Serve(context.Background(), from)
		p.close()
	}()
	p.mux.Unblock()
	select {
	case registered := <-p.registered:
		p.index = registered.GetPluginIdx()
		return p.configure()
	case <-p.closed:
		return ttrpc.ErrClosed
	case <-time.After(registrationTime):
		return errors.New("plugin registration timed out")
	}
}

func (p *plugin) configure() error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	reply, err := p.Configure(ctx, &api.ConfigureRequest{
		RuntimeName: p.runtime.kind.Name, RuntimeVersion: p.runtime.kind.Version, NRIVersion: "v" + p.runtime.nri.String(),
		RegistrationTimeout: registrationTime.Milliseconds(), RequestTimeout: requestTime.Milliseconds(),
	})
	if p.events = api.EventMask(reply.GetEvents()); p.events == 0 {
		p.events = api.ValidEvents
	}
	p.policy = reply.GetFailurePolicy()
	return err
}

// synchronize tells a plugin all that there is, and applies what it wants of it.
func (p *plugin) synchronize() error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	began := time.Now()
	r := p.runtime
	reply, err := p.Synchronize(ctx, &api.SynchronizeRequest{Pods: r.pods, Containers: r.record.Living()})
	r.note(api.Event_UNKNOWN, "", time.Since(began), nil)
	if err != nil {
		return err
	}
	if _, err = r.update(reply.GetUpdate()); r.record.CRIO {
		return err
	}
	return nil
}

// RegisterPlugin is the plugin's first call.
func (p *plugin) RegisterPlugin(_ context.Context, request *api.RegisterPluginRequest) (*api.Empty, error) {
	select {
	case p.registered <- request:
		return &api.Empty{}, nil
	default:
		return nil, errors.New("this plugin is registered already")
	}
}

// UpdateContainers is an update that the runtime has not asked for.
func (p *plugin) UpdateContainers(ctx context.Context, request *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	select {
	case p.runtime.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed:
		return nil, ttrpc.ErrClosed
	}
	defer func() { <-p.runtime.turn }()
	if err := p.runtime.fails(NotUpdated); err != nil {
		return nil, err
	}
	failed, err := p.runtime.update(request.GetUpdate())
	return &api.UpdateContainersResponse{Failed: failed}, err
}

// ask sends one request. What becomes of one that is not answered is for the plugin's failure policy (handleRequestError in
// pkg/adaptation/plugin.go of containerd/nri); before NRI 0.12.4 there is none.
func (p *plugin) ask(event api.Event, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	err := call(ctx)
	late := errors.Is(err, context.DeadlineExceeded)
	lost := errors.Is(err, ttrpc.ErrClosed) || errors.Is(err, ttrpc.ErrServerClosed) || errors.Is(err, ttrpc.ErrProtocol)
	if !late && !lost {
		return err
	}
	if lost || !p.policy.GetKeepConnected() {
		p.drop(late)
	}
	if !p.policy.GetFailRequest() {
		return nil
	}
	return fmt.Errorf("plugin failed to handle %s request: %w", event.PrettyName(), err)
}

// drop closes the connection of a plugin that has not answered.
func (p *plugin) drop(late bool) {
	if late {
		p.runtime.mu.Lock()
		p.runtime.calls.Lost++
		p.runtime.mu.Unlock()
	}
	p.close()
}

// close ends the connection. It is also called from within the connection's parts, so that it waits for none of them.
func (p *plugin) close() {
	p.closing.Do(func() {
		close(p.closed)
		go func() {
			p.mux.Close()
			if p.client != nil {
				p.client.Close()
			}
			if p.server != nil {
				p.server.Close()
			}
		}()
	})
}

func (p *plugin) gone() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}
