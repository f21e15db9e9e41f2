package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// session is one connection to a runtime, with its own stub.
type session struct {
	*Plugin
	stub       stub.Stub
	configured chan struct{} // closed by Configure
	runtime    ledger.Runtime
	nri        Version
	accepted   sync.Once // notifies the agent
	workers    workers
}

func newSession(p *Plugin) *session {
	return &session{Plugin: p, configured: make(chan struct{}), workers: newWorkers()}
}

// run connects, registers and handles events until the connection or ctx ends.
func (s *session) run(ctx context.Context) error {
	defer s.workers.end()
	options := []stub.Option{
		stub.WithLogger(nriLog{s.opts.Log}),
		// Known from NRI 0.12.4 on, ignored by older runtimes: a create that we could not answer in time fails, instead of
		// going on unprotected, and we stay connected.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
	}
	if !s.opts.Launched {
		if err := CheckSocket(s.opts.Socket); err != nil {
			return err
		}
		conn, err := new(net.Dialer).DialContext(ctx, "unix", s.opts.Socket)
		if err != nil {
			return fmt.Errorf("connecting to NRI: %w", err)
		}
		defer conn.Close()
		options = append(options, stub.WithConnection(conn), stub.WithPluginName(s.opts.Name), stub.WithPluginIdx(s.opts.Index))
	}
	var err error
	if s.stub, err = stub.New(s, options...); err != nil {
		return fmt.Errorf("creating the NRI stub: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.stub.Run(ctx) }()

	// A stub waits without end for its Configure, and nothing ends it: one whose runtime died after the registration is
	// left behind.
	registration := time.NewTimer(2 * stub.DefaultRegistrationTimeout)
	defer registration.Stop()
	select {
	case err = <-ended:
	case <-s.configured:
		err = <-ended
	case <-registration.C:
		err = errors.New("the runtime did not configure the plugin in time")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return connectionEnded(err)
}

func connectionEnded(err error) error {
	if err == nil {
		return errors.New("the connection ended")
	}
	return fmt.Errorf("the connection ended: %w", err)
}

// Configure is the runtime's answer to the registration. It returns the events to subscribe to.
func (s *session) Configure(ctx context.Context, config, runtime, version string) (api.EventMask, error) {
	defer close(s.configured)
	s.nri = RuntimeNRIVersion(s.stub.RuntimeNRIVersion(), runtime, version)
	s.runtime = ledger.Runtime{Name: runtime, Version: version, ReplyUnified: repliesUnified(runtime, version),
		MemoryPolicies: appliesMemoryPolicies(s.nri)}
	if s.nri.Known() {
		s.runtime.NRIVersion = s.nri.String()
	}
	if config != "" && s.opts.Configure != nil {
		if err := s.opts.Configure(ctx, config); err != nil {
			s.opts.Log.WithError(err).Error("the configuration that the runtime delivered is not valid")
			return 0, err
		}
	}
	return Events(s.nri), nil
}

// accept passes the runtime to the agent with the first event of a session: a runtime that does not like what Configure
// returned sends none, and NRI 0.6 does not synchronize a plugin that it launched itself.
func (s *session) accept() {
	s.accepted.Do(func() {
		s.opts.Log.WithField("runtime", s.runtime.Name+" "+s.runtime.Version).WithField("nri", s.nri.String()).
			Info("connected to the runtime")
		var apply func(context.Context, []ledger.Update) error
		if unaskedUpdates(s.nri) {
			apply = s.apply
		}
		s.agent.Connected(s.runtime, apply)
	})
}

// apply sends updates to the runtime. It must not be waited for by an event's handler: the runtime takes the updates
// only when no event is on its way.
func (s *session) apply(ctx context.Context, updates []ledger.Update) error {
	request := updatesOf(updates)
	if len(request) == 0 {
		return nil
	}
	done := make(chan error, 1)
	go func() {
		failed, err := s.stub.UpdateContainers(request)
		if err == nil && len(failed) > 0 {
			err = fmt.Errorf("the runtime refused to update %d of %d containers", len(failed), len(request))
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
