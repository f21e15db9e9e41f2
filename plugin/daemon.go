package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/admin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims/dra"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/events"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/metrics"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodetopology"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/reclaim"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/recording"
)

// daemonOptions are what a daemon is made of: the flags of run.
type daemonOptions struct {
	hostOptions
	apiOptions
	socket, name, index string
	launched            bool
	config              config.Config
	kubeletState        string // a kubelet's state file to import where the state folder has none; empty imports none
	configPath          string // watched for changes; empty has none
	machine             machine.Machine
	sysfs               string // where machine comes from; empty for a machine file
	kubeletPods         string // socket of the kubelet's pod API
	kubeletDevices      string // socket of the kubelet's PodResources API; empty asks it nothing
	metricsAddress      string // empty has no HTTP server
	podResources        string // socket of our PodResources API; empty serves none
	daemonSet           string // NAMESPACE/NAME of the DaemonSet that runs this; empty knows none
	pluginRegistry, cdi string // of the kubelet and the runtime, for resource claims
	record              string // folder of the recordings; empty records nothing
	recordSize          int64  // of the recordings, in bytes
	timings             timings
	verbose             int // -v
	log                 *logrus.Logger
	lines               *logWriter // of log
	outside             surroundings
}

// surroundings are what a daemon reaches beside its state folder, its configuration file and sysfs.
type surroundings struct {
	tree      func() (*cgroupfs.Tree, error)
	units     protect.Units                           // nil where there is no systemd
	proc      string                                  // where the kernel's files are
	providers func() ([]podinfo.Provider, error)      // sources of memory requests beside the runtime's events
	dial      func(context.Context) (net.Conn, error) // connects to the runtime; nil takes the socket
	listen    func(path string) (net.Listener, error) // makes a unix socket; nil serves none
	prompts   <-chan struct{}                         // says when the configuration file is to be read: see runOptions.prompts
}

// thisMachine is what run reaches.
func (o *daemonOptions) thisMachine() surroundings {
	return surroundings{
		tree: o.openTree, units: o.units(), proc: "/proc",
		providers: func() ([]podinfo.Provider, error) { return o.podSources(o.config, o.kubeletPods, o.log) },
		listen:    admin.ListenUnix,
	}
}

// daemon is a plugin with all that belongs to it.
type daemon struct {
	options  daemonOptions
	log      *logrus.Logger
	agent    *agent.Agent
	tree     *cgroupfs.Tree
	watcher  *cgroupfs.Watcher
	devices  *devices.Finder
	slices   *devices.Slices // nil unless the configuration wants them
	plugin   *nriplugin.Plugin
	metrics  *metrics.Metrics
	recorder *recording.Recorder    // nil where nothing is recorded
	guard    *guard.Guard           // nil where there is no kernel to watch
	events   *events.Reporter       // nil unless the configuration wants events
	topology *nodetopology.Exporter // nil unless the configuration wants the export
	kills    *oom.Recorder
	reclaim  *reclaim.Reclaimer // nil where there is no kernel to ask
	parts    []part             // the services
	probes   *probes            // nil without an HTTP server
	waited   bool               // another daemon had the state folder
}

// newDaemon puts a daemon together, and waits for its state folder where another one has it. Its errors are of input, or ctx's: nothing
// has been touched yet.
func newDaemon(ctx context.Context, options daemonOptions) (d *daemon, err error) {
	d = &daemon{options: options, log: options.log}
	made := d
	defer func() {
		if err != nil {
			made.close()
		}
	}()
	if err := checkIdentity(options.name, options.index); err != nil {
		return nil, err
	}
	if !options.launched {
		if err := nriplugin.CheckSocket(options.socket); err != nil {
			return nil, err
		}
	}
	if d.tree, err = options.outside.tree(); err != nil {
		return nil, err
	}
	if d.watcher, err = cgroupfs.NewWatcher(d.tree); err != nil {
		d.log.WithError(err).Warn("external changes of cgroup files are found by the periodic check only")
		d.watcher = nil
	}
	providers, err := options.outside.providers()
	if err != nil {
		return nil, err
	}
	if options.metricsAddress != "" {
		listener, err := admin.ListenTCP(options.metricsAddress)
		if err != nil {
			return nil, fmt.Errorf("--metrics-address %s: %w", options.metricsAddress, err)
		}
		d.log.WithField("address", listener.Addr()).Info("serving metrics and probes")
		d.probes = serveProbes(listener)
	}
	switch err := os.MkdirAll(options.stateDir, 0o700); {
	case errors.Is(err, syscall.ENOTDIR):
		return nil, fmt.Errorf("--state-dir %s: want a folder: %w", options.stateDir, err)
	case err != nil: // a disk may come back
		d.log.WithError(err).Error("the state folder cannot be made")
	}
	if options.config.ResourceSlices {
		if err := d.readSlices(); err != nil {
			return nil, fmt.Errorf("resourceSlices: %w", err)
		}
	}
	d.devices = devices.New(devices.Options{Socket: options.kubeletDevices, Sysfs: options.sysfs, Slices: d.slices, Log: d.log})
	with := agent.Options{
		Config: options.config, CheckPeriod: options.timings.check, RequestTimeout: options.timings.request,
		Machine: options.machine, Sysfs: options.sysfs, StateDir: options.stateDir, KubeletState: options.kubeletState,
		Tree: d.tree, Units: options.outside.units, Watcher: d.watcher, Providers: providers, Devices: d.devices, Log: d.log,
	}
	if options.config.DRA.Enabled {
		with.Claims = func() []claims.Claim { return dra.Prepared(options.cdi, claims.Driver, d.log) } // of the runs before this one
	}
	if options.record != "" {
		d.recorder, err = recording.New(recording.Options{Dir: options.record, Size: options.recordSize, Version: version, Log: d.log})
		if err != nil {
			return nil, fmt.Errorf("--record: %w", err)
		}
		with.Recorder = d.recorder
	}
	if err := d.makeAgent(ctx, with); err != nil {
		return nil, err
	}
	if options.config.Events {
		if err := d.writeEvents(); err != nil {
			return nil, fmt.Errorf("events: %w", err)
		}
	}
	d.metrics = metrics.New()
	if !options.plainCgroups { // a folder tree stops nobody
		if d.guard, err = d.newGuard(); err != nil {
			return nil, err
		}
		d.reclaim = reclaim.New(reclaim.Options{Tree: d.tree, Proc: options.outside.proc, View: d.agent.View, Log: d.log, OnFreed: d.events.Reclaimed})
	}
	d.plugin = nriplugin.New(d.agent, nriplugin.Options{
		Socket: options.socket, Dial: options.outside.dial, Name: options.name, Index: options.index, Launched: options.launched,
		Fail:      options.config.FailurePolicy == config.Fail && !options.launched,
		Configure: d.configure, Observer: d.metrics, Log: d.log,
	})
	d.kills = d.watchKills()
	d.parts, err = d.services()
	return d, err
}

// run runs all parts until ctx ends or one of them fails.
func (d *daemon) run(ctx context.Context) error {
	defer d.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts := append([]part{d.agent.Run, d.plugin.Run, d.kills.Run}, d.parts...)
	if d.guard != nil {
		parts = append(parts, d.guard.Run, d.followContainers, d.reclaim.Run)
	}
	if d.options.configPath != "" {
		parts = append(parts, d.watchConfig)
	}
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		errs  []error
	)
	for _, part := range parts {
		group.Go(func() {
			defer cancel()
			if err := part(ctx); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	ended := make(chan struct{})
	go func() { group.Wait(); close(ended) }()
	<-ctx.Done()
	select {
	case <-ended:
	case <-time.After(closeTimeout):
		d.log.Error("a part of the daemon waits for a disk, the kernel or another process, and is left alone")
	}
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(errs...)
}

// closeTimeout bounds the end of the parts, and then the last writes to the disk.
const closeTimeout = 5 * time.Second

func (d *daemon) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if d.probes != nil {
		d.probes.stop()
	}
	last := func(write func(context.Context) error, problem string) {
		if err := write(ctx); err != nil {
			d.log.WithError(err).Error(problem)
		}
	}
	var group sync.WaitGroup
	if d.kills != nil {
		group.Go(func() { last(d.kills.Close, "the last verdicts on OOM kills could not be written") })
	}
	if d.agent != nil {
		last(d.agent.Close, "the last state could not be written")
	}
	group.Wait()
	if d.recorder != nil {
		last(d.recorder.Close, "the last events could not be recorded")
	}
	if d.devices != nil {
		_ = d.devices.Close() // it only reads
	}
	if d.watcher != nil {
		d.watcher.Close()
	}
	if d.tree != nil {
		d.tree.Close()
	}
}
