// Package nriplugin connects an agent to containerd or CRI-O through NRI, the Node Resource Interface. It translates
// events and answers and keeps the connection; it decides nothing.
// https://github.com/containerd/nri
package nriplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// Agent is what learns of connections: *agent.Agent. Connected returns what receives the events of that one connection; Disconnected
// is called after its last event was received, and for each try to connect that fails.
type Agent[S Session] interface {
	Connected(runtime ledger.Runtime, apply func(context.Context, []ledger.Update) error) S
	Disconnected(reason error)
}

// Session receives the events of one connection: *agent.Session.
type Session interface {
	Synchronize(ctx context.Context, pods []ledger.Pod, containers []ledger.Container) ([]ledger.Update, error)
	RunPodSandbox(ctx context.Context, pod ledger.Pod) error
	UpdatePodSandbox(ctx context.Context, pod ledger.Pod, overhead, limit uint64) error
	StopPodSandbox(ctx context.Context, pod ledger.Pod) error
	RemovePodSandbox(ctx context.Context, pod ledger.Pod) error
	CreateContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) (ledger.Adjustment, error)
	StartContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) error
	UpdateContainer(ctx context.Context, pod ledger.Pod, container ledger.Container, to ledger.Resources) (*ledger.Adjustment, error)
	PostUpdateContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) error
	StopContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) error
	RemoveContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) error
}

// Observer receives every handled event.
type Observer interface {
	// Handled is called once per event with its name in NRI, for example "CreateContainer".
	Handled(event string, took time.Duration, err error)
}

// Options say where and as what the plugin registers.
type Options struct {
	// Socket is the path of the runtime's NRI socket. It is not used by a plugin that the runtime launched.
	Socket string
	// Dial connects to the runtime; nil connects to Socket.
	Dial func(ctx context.Context) (net.Conn, error)
	// Name and Index of the registration; plugins are called in the order of their two-digit index.
	Name, Index string
	// Launched is set when the runtime started this process and left the connection in NRI_PLUGIN_SOCKET. Such a plugin
	// ends with its connection: the runtime starts a new one with itself.
	Launched bool
	// Configure takes the configuration that a runtime delivers to a plugin it launched; nil ignores it.
	Configure func(ctx context.Context, config string) error
	// Fail has creations and updates of containers fail that are not answered in time, where the runtime knows failure policies also
	// while this process is stopped; unset, the runtime goes on without an answer. A plugin that the runtime launched has it unset.
	Fail bool
	// Observer may be nil.
	Observer Observer
	// Log is where the connection's state is logged; nil is logrus' standard logger.
	Log logrus.FieldLogger
}

// Plugin keeps one agent connected.
type Plugin struct {
	connected    func(ledger.Runtime, func(context.Context, []ledger.Update) error) Session
	disconnected func(error)
	opts         Options
	main         atomic.Pointer[connection] // that the agent is connected by; nil where there is none
	split        chan struct{}              // receives once creations are to come by a gate
}

// New returns a plugin that Run connects.
func New[S Session](agent Agent[S], opts Options) *Plugin {
	if opts.Log == nil {
		opts.Log = logrus.StandardLogger()
	}
	if opts.Dial == nil {
		opts.Dial = opts.dialSocket
	}
	return &Plugin{
		connected: func(runtime ledger.Runtime, apply func(context.Context, []ledger.Update) error) Session {
			return agent.Connected(runtime, apply)
		},
		disconnected: agent.Disconnected,
		opts:         opts,
		split:        make(chan struct{}, 1),
	}
}

// Waiting times between two tries to connect.
const (
	shortestWait = 50 * time.Millisecond
	longestWait  = 2 * time.Second
	// lasted is how long a connection must have been there for the next try to come at once.
	lasted = 10 * time.Second
)

func (o Options) dialSocket(ctx context.Context) (net.Conn, error) {
	if err := CheckSocket(o.Socket); err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", o.Socket)
	if err != nil {
		return nil, fmt.Errorf("connecting to NRI: %w", err)
	}
	return conn, nil
}

// CheckSocket returns an error for a path that exists and is not a socket. A path that does not exist is a runtime that
// is not there yet.
func CheckSocket(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("NRI socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("NRI socket %s is a %s, not a socket", path, kindOf(info.Mode()))
	}
	return nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "folder"
	case mode.IsRegular():
		return "regular file"
	}
	return "special file"
}

// Run connects and handles events until ctx ends. It reconnects for ever, each time with a fresh stub; only a plugin
// that the runtime launched ends with its connection.
func (p *Plugin) Run(ctx context.Context) error {
	if p.opts.Launched {
		err := newConnection(p).run(ctx)
		p.disconnected(err)
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("the runtime that launched this plugin closed the connection: %w", err)
	}
	if p.opts.Fail {
		var gate sync.WaitGroup
		defer gate.Wait()
		gate.Go(func() { p.serveGate(ctx) })
	}
	p.keep(ctx, func() error { return newConnection(p).run(ctx) }, p.disconnected)
	return nil
}

// keep connects again and again until ctx ends, and calls lost after the end of each connection.
func (p *Plugin) keep(ctx context.Context, connect func() error, lost func(error)) {
	wait, logged := shortestWait, ""
	for {
		began := time.Now()
		err := connect()
		if ctx.Err() != nil {
			lost(ctx.Err())
			return
		}
		lost(err)
		if time.Since(began) > lasted {
			wait, logged = shortestWait, ""
		}
		// The same reason is logged once, not at every try.
		if text := p.reason(err); text != logged {
			p.opts.Log.WithField("socket", p.opts.Socket).Warn(text)
			logged = text
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, longestWait)
	}
}

// reason is the text for the log about a connection that is not there.
func (p *Plugin) reason(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "waiting for the NRI socket: it does not exist. Is the runtime running and NRI enabled in its configuration?"
	}
	return fmt.Sprintf("not connected to the runtime, trying again: %v", err)
}
