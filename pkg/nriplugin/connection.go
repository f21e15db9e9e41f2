package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// connection is one connection to a runtime, with its own stub.
type connection struct {
	registration
	runtime  ledger.Runtime
	nri      Version
	updating chan struct{} // a semaphore: one call of UpdateContainers at a time
	queue    *queue
	abort    func(error) // ends the connection, with the reason

	mu      sync.Mutex
	session Session // nil before the first event
	ended   bool
}

func newConnection(p *Plugin) *connection {
	return &connection{registration: newRegistration(p), updating: make(chan struct{}, 1), queue: newQueue(), abort: func(error) {}}
}

// run connects, registers and handles events until the connection or ctx ends.
func (c *connection) run(ctx context.Context) error {
	defer c.end()
	ctx, c.abort = context.WithCancelCause(ctx)
	defer c.abort(nil)
	return c.serve(ctx, c)
}

// registration is one plugin in the eyes of a runtime.
type registration struct {
	*Plugin
	stub       stub.Stub
	configured chan struct{} // closed by Configure
}

func newRegistration(p *Plugin) registration {
	return registration{Plugin: p, configured: make(chan struct{})}
}

// serve passes the runtime's messages to the handlers until the connection or ctx ends.
func (r *registration) serve(ctx context.Context, handlers any, options ...stub.Option) error {
	options = append(options, stub.WithLogger(nriLog{r.opts.Log}))
	if !r.opts.Launched {
		conn, err := r.opts.Dial(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		options = append(options, stub.WithConnection(conn), stub.WithPluginName(r.opts.Name), stub.WithPluginIdx(r.opts.Index))
	}
	var err error
	if r.stub, err = stub.New(handlers, options...); err != nil {
		return fmt.Errorf("creating the NRI stub: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.stub.Run(ctx) }()

	// A stub waits forever for Configure. If its runtime died after the registration, it is abandoned.
	timeout := time.NewTimer(2 * stub.DefaultRegistrationTimeout)
	defer timeout.Stop()
	select {
	case err = <-ended:
	case <-r.configured:
		err = <-ended
	case <-timeout.C:
		err = errors.New("the runtime did not configure the plugin in time")
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return errors.New("the connection ended")
	}
	return fmt.Errorf("the connection ended: %w", err)
}

// Configure handles the runtime's answer to the registration. It returns the events to subscribe to.
func (c *connection) Configure(ctx context.Context, config, runtime, version string) (api.EventMask, error) {
	defer close(c.configured)
	c.nri = RuntimeNRIVersion(c.stub.RuntimeNRIVersion(), runtime, version)
	c.runtime = ledger.Runtime{Name: runtime, Version: version, ReplyUnified: repliesUnified(runtime, version),
		MemoryPolicies: appliesMemoryPolicies(c.nri), OOMScores: appliesOOMScores(c.nri)}
	if c.nri.Known() {
		c.runtime.NRIVersion = c.nri.String()
	}
	if config != "" && c.opts.Configure != nil {
		if err := c.opts.Configure(ctx, config); err != nil {
			c.opts.Log.WithError(err).Error("the configuration that the runtime delivered is not valid")
			return 0, err
		}
	}
	mask := events(c.nri)
	if c.opts.Fail && knowsFailurePolicies(c.nri) {
		mask &^= gatedEvents
		select {
		case c.gateWanted <- struct{}{}:
		default: // already requested
		}
	}
	return mask, nil
}

// errConnectionEnded answers an event that was received while its connection ended.
var errConnectionEnded = errors.New("the connection has ended")

// accept returns the session of this connection; the session itself refuses late events. The first event starts the session, because only
// then has the runtime accepted what Configure returned. NRI 0.6 does not synchronize a plugin that it launched itself, so any event may be
// the first.
func (c *connection) accept() (Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil && c.ended {
		return nil, errConnectionEnded
	}
	if c.session == nil {
		c.opts.Log.WithField("runtime", c.runtime.Name+" "+c.runtime.Version).WithField("nri", c.nri.String()).
			Info("connected to the runtime")
		var apply func(context.Context, []ledger.Update) error
		if allowsUnsolicited(c.nri) {
			apply = c.apply
		}
		c.session = c.connected(c.runtime, apply)
		c.current.Store(c)
	}
	return c.session, nil
}

// end detaches the agent from this connection.
func (c *connection) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.current.CompareAndSwap(c, nil)
	c.queue.end()
}

// apply sends unsolicited updates to the runtime. An event's handler must not wait for it: the runtime takes updates only while no event is
// being handled. A call into the stub ends only with the runtime's answer or the connection. So apply abandons a call that hangs, and makes
// no other call until it has ended.
func (c *connection) apply(ctx context.Context, updates []ledger.Update) error {
	request := updatesOf(updates)
	if len(request) == 0 {
		return nil
	}
	select {
	case c.updating <- struct{}{}:
	default:
		return errors.New("the runtime has not answered the updates before these")
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-c.updating }()
		failed, err := c.stub.UpdateContainers(request)
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
