// Package nriplugin connects an agent to containerd or CRI-O through NRI, the Node Resource Interface. It translates events and answers and
// keeps the connection; it decides nothing.
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

// Agent is notified of connections: *agent.Agent. Connected returns the receiver of the connection's events. Disconnected is called after a
// connection's last event, and for each failed try to connect.
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

// Observer is notified of every handled event.
type Observer interface {
	// Handled is called once per event with its name in NRI, for example "CreateContainer".
	Handled(event string, took time.Duration, err error)
}

// Options are the plugin's registration and connection.
type Options struct {
	// Socket is the path of the runtime's NRI socket. A plugin that the runtime launched does not use it.
	Socket string
	// Dial connects to the runtime; nil connects to Socket.
	Dial func(ctx context.Context) (net.Conn, error)
	// Name and Index are the registration's. The runtime calls plugins in the order of their two-digit index.
	Name, Index string
	// Launched is set if the runtime started this process and passed the connection in NRI_PLUGIN_SOCKET. Such a plugin ends with its
	// connection: the runtime launches a new one when it starts.
	Launched bool
	// Configure receives the configuration from a runtime that launched the plugin; nil ignores it.
	Configure func(ctx context.Context, config string) error
	// Fail makes creations and updates of containers fail if they are not answered in time. If the runtime supports failure policies, they
	// also fail while this process is stopped. If unset, the runtime goes on without an answer. It is unset in a plugin that the runtime
	// launched.
	Fail bool
	// Observer may be nil.
	Observer Observer
	// Log receives the state of the connection; nil is logrus' standard logger.
	Log logrus.FieldLogger
}

// Plugin keeps one agent connected.
type Plugin struct {
	connected    func(ledger.Runtime, func(context.Context, []ledger.Update) error) Session
	disconnected func(error)
	opts         Options
	current      atomic.Pointer[connection] // the connection with a session; nil if there is none
	gateWanted   chan struct{}              // receives when a runtime supports failure policies
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
		gateWanted:   make(chan struct{}, 1),
	}
}

// The pause between two tries to connect.
const (
	minWait = 50 * time.Millisecond
	maxWait = 2 * time.Second
	// stableAfter is how long a connection must have lasted for the next try to start again with minWait.
	stableAfter = 10 * time.Second
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

// CheckSocket returns an error for a path that exists and is not a socket. If it does not exist, the runtime has not started yet.
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

// Run connects and handles events until ctx ends. It always reconnects, with a new stub, unless the runtime launched the plugin.
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
	p.keepConnected(ctx, func() error { return newConnection(p).run(ctx) }, p.disconnected)
	return nil
}

// keepConnected connects again and again until ctx ends. It calls lost after the end of each connection.
func (p *Plugin) keepConnected(ctx context.Context, connect func() error, lost func(error)) {
	wait, logged := minWait, ""
	for {
		began := time.Now()
		err := connect()
		if ctx.Err() != nil {
			lost(ctx.Err())
			return
		}
		lost(err)
		if time.Since(began) > stableAfter {
			wait, logged = minWait, ""
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
		wait = min(2*wait, maxWait)
	}
}

// reason describes a missing connection for the log.
func (p *Plugin) reason(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "waiting for the NRI socket: it does not exist. Is the runtime running and NRI enabled in its configuration?"
	}
	return fmt.Sprintf("not connected to the runtime, trying again: %v", err)
}

// nriLog logs NRI's own messages. NRI's progress is logged at debug level: Plugin logs what an operator needs to know.
type nriLog struct{ to logrus.FieldLogger }

func (l nriLog) Debugf(_ context.Context, format string, args ...any) { l.to.Debugf(format, args...) }
func (l nriLog) Infof(_ context.Context, format string, args ...any)  { l.to.Debugf(format, args...) }
func (l nriLog) Warnf(_ context.Context, format string, args ...any)  { l.to.Warnf(format, args...) }
func (l nriLog) Errorf(_ context.Context, format string, args ...any) { l.to.Errorf(format, args...) }
