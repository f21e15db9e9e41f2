package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/admin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/metrics"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

// lockPeriod is the time between two tries to get the state folder.
const lockPeriod = 250 * time.Millisecond

// makeAgent makes the agent once no other daemon has the state folder. Until then the daemon reads and writes nothing, does not register
// with the runtime, and is not ready.
func (d *daemon) makeAgent(ctx context.Context, with agent.Options) (err error) {
	for {
		d.agent, err = agent.New(with)
		if !errors.Is(err, checkpoint.ErrInUse) {
			if d.waited && err == nil {
				d.log.Info("the other daemon has ended: the state folder is this one's")
			}
			return err
		}
		if !d.waited {
			d.log.WithError(err).Warn("waiting for the state folder: not registering with the runtime")
		}
		d.waited = true
		if d.probes != nil {
			d.probes.show(waitingHandler(err))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPeriod):
		}
		if d.options.launched && runtimeHungUp() {
			return commandline.Failed(errors.New("the runtime that launched this plugin closed the connection while the plugin waited for its state folder"))
		}
	}
}

// runtimeHungUp reports whether the runtime that launched this plugin has closed its end of the connection.
func runtimeHungUp() bool {
	fd, err := strconv.Atoi(os.Getenv(api.PluginSocketEnvVar))
	if err != nil {
		return false // the connection says what is wrong with it
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	ready, err := unix.Poll(poll, 0)
	return err == nil && ready > 0
}

// waitingHandler serves probes and metrics of a daemon without its state folder.
func waitingHandler(reason error) http.Handler {
	const waits = "waits for the state folder"
	view := &ledger.View{Conditions: []ledger.Condition{
		{Name: ledger.ConditionCheckpoint, Message: reason.Error()},
		{Name: ledger.ConditionConfig, OK: true},
		{Name: ledger.ConditionConnected, Message: waits},
		{Name: ledger.ConditionSynchronized, Message: waits},
	}}
	show := func() *ledger.View { return view }
	shown := metrics.New()
	shown.Attach(metrics.Sources{View: show, Counters: func() agent.Counters { return agent.Counters{} }, Version: version})
	return admin.Handler(admin.Sources{View: show, Health: progress.Check, Metrics: shown.Handler()})
}

// probes serves the metrics address from the start on: a daemon that waits for its state folder is alive, and says why it is not ready.
type probes struct {
	handler atomic.Pointer[http.Handler]
	stop    context.CancelFunc
	ended   chan error // has room for the error of the server
}

func serveProbes(listener net.Listener) *probes {
	ctx, stop := context.WithCancel(context.Background())
	p := &probes{stop: stop, ended: make(chan error, 1)}
	p.show(waitingHandler(errors.New("the daemon starts")))
	go func() { p.ended <- admin.Serve(ctx, listener, p) }()
	return p
}

func (p *probes) show(handler http.Handler) { p.handler.Store(&handler) }

func (p *probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*p.handler.Load()).ServeHTTP(w, r)
}

func (p *probes) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		p.stop()
		return <-p.ended
	case err := <-p.ended:
		return err
	}
}
