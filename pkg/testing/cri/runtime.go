// Package cri is a container runtime without processes: NRI's own runtime side (pkg/adaptation), as containerd and CRI-O
// use it, with pods and containers that have an OCI spec and a cgroup, but nothing in them. Tests and "make run" connect
// the real plugin to it; the daemon must not link it.
package cri

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	"github.com/containerd/ttrpc"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
)

// Options say what kind of runtime it is.
type Options struct {
	// Socket is where plugins connect; keep the path below 100 bytes.
	Socket string
	// PluginDir and ConfigDir hold pre-installed plugins and their configuration, as /opt/nri/plugins and
	// /etc/nri/conf.d; empty means none.
	PluginDir, ConfigDir string
	// Name and Version of the runtime as plugins receive them; by default containerd v2.4.2. "cri-o" applies updates as CRI-O does.
	Name, Version string
	// NRI makes the runtime speak as one with an older NRI: refuse events, leave out fields, not report its version. The
	// zero value is BuiltIn.
	NRI nriplugin.Version
	// Cgroups is where containers' cgroups are made; nil makes none.
	Cgroups Cgroups
	// Validator configures NRI's own validator of adjustments; nil is off.
	Validator *validator.DefaultValidatorConfig
}

// BuiltIn is the version of NRI in this module (go.mod). A test binary has no build information that has it.
var BuiltIn = nriplugin.Version{Major: 0, Minor: 12, Patch: 5}

// Runtime keeps pods and containers as a runtime does. Its methods are the runtime's side of CRI and may be called from
// any goroutine; as in containerd and CRI-O, one at a time reaches the plugins.
type Runtime struct {
	options Options
	nri     *adaptation.Adaptation

	mu       sync.Mutex // held while plugins are asked, in synchronization and for unasked updates, as both runtimes do
	pods     []*api.PodSandbox
	record   Record
	policies map[string]*rspec.LinuxMemoryPolicy // of the containers' OCI specs

	connected sync.Mutex
	plugins   []*ttrpc.Client

	synced    sync.Mutex
	starting  bool
	syncs     int
	syncTook  time.Duration // of the last
	onSync    chan struct{} // closed and replaced at every synchronization
	byPlugins int           // unasked updates
}

// New returns a runtime that Start starts.
func New(options Options) *Runtime {
	if options.Name == "" {
		options.Name, options.Version = "containerd", "v2.4.2"
	}
	if !options.NRI.Known() {
		options.NRI = BuiltIn
	}
	if options.PluginDir == "" {
		options.PluginDir = filepath.Join(filepath.Dir(options.Socket), "no-plugins")
	}
	if options.ConfigDir == "" {
		options.ConfigDir = filepath.Join(filepath.Dir(options.Socket), "no-config")
	}
	return &Runtime{
		options: options, record: Record{CRIO: options.Name == "cri-o", Cgroups: options.Cgroups},
		policies: map[string]*rspec.LinuxMemoryPolicy{}, onSync: make(chan struct{}),
	}
}

// Start launches the pre-installed plugins and listens for others.
func (r *Runtime) Start() error {
	options := []adaptation.Option{
		adaptation.WithSocketPath(r.options.Socket),
		adaptation.WithPluginPath(r.options.PluginDir),
		adaptation.WithPluginConfigPath(r.options.ConfigDir),
		adaptation.WithTTRPCOptions([]ttrpc.ClientOpts{r.remember, SpeakAs(r.options.NRI)}, nil),
	}
	if r.options.Validator != nil {
		options = append(options, adaptation.WithDefaultValidator(r.options.Validator))
	}
	quiet()
	nri, err := adaptation.New(r.options.Name, r.options.Version, r.synchronize, r.updateFromPlugin, options...)
	if err != nil {
		return fmt.Errorf("starting NRI's runtime side: %w", err)
	}
	r.setStarting(true)
	defer r.setStarting(false)
	if err := nri.Start(); err != nil {
		return fmt.Errorf("starting NRI's runtime side: %w", err)
	}
	r.nri = nri
	return nil
}

func (r *Runtime) setStarting(starting bool) {
	r.synced.Lock()
	defer r.synced.Unlock()
	r.starting = starting
}

// Stop ends the runtime; pods and containers stay as they are, and a later Start finds them.
func (r *Runtime) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nri != nil {
		r.nri.Stop()
		r.nri = nil
	}
	// NRI leaves the connections of plugins that it did not launch to the end of the process.
	r.connected.Lock()
	defer r.connected.Unlock()
	for _, plugin := range r.plugins {
		plugin.Close()
	}
	r.plugins = nil
}

// remember is called for the connection of every new plugin.
func (r *Runtime) remember(plugin *ttrpc.Client) {
	r.connected.Lock()
	defer r.connected.Unlock()
	r.plugins = append(r.plugins, plugin)
}

// Synchronizations counts the plugins that have connected and been synchronized since the beginning; those that Start
// launched are not among them.
func (r *Runtime) Synchronizations() int {
	r.synced.Lock()
	defer r.synced.Unlock()
	return r.syncs
}

// SynchronizationTook is how long the last of these plugins took to answer.
func (r *Runtime) SynchronizationTook() time.Duration {
	r.synced.Lock()
	defer r.synced.Unlock()
	return r.syncTook
}

// WaitSynchronized waits until Synchronizations is at least count, and the last of these plugins is in place for the next
// event.
func (r *Runtime) WaitSynchronized(ctx context.Context, count int) error {
	for {
		r.synced.Lock()
		syncs, next := r.syncs, r.onSync
		r.synced.Unlock()
		if syncs >= count {
			defer r.block()()
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the synchronization of plugin %d (%d so far): %w", count, syncs, ctx.Err())
		}
	}
}

// block keeps plugins from joining in the middle of a request, as both runtimes do.
func (r *Runtime) block() func() {
	r.mu.Lock()
	nri := r.nri
	r.mu.Unlock()
	if nri == nil {
		return func() {}
	}
	return nri.BlockPluginSync().Unblock
}

// synchronize gives a new plugin all pods and containers and applies what it wants.
func (r *Runtime) synchronize(ctx context.Context, plugin adaptation.SyncCB) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	began := time.Now()
	updates, err := plugin(ctx, r.pods, r.record.Living())
	if err != nil {
		return err
	}
	took := time.Since(began)
	if _, err := r.apply(updates); err != nil {
		return err
	}
	r.synced.Lock()
	defer r.synced.Unlock()
	if !r.starting {
		r.syncs, r.syncTook = r.syncs+1, took
		close(r.onSync)
		r.onSync = make(chan struct{})
	}
	return nil
}

// updateFromPlugin is an unasked update.
func (r *Runtime) updateFromPlugin(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byPlugins += len(updates)
	return r.apply(updates)
}

// UpdatesFromPlugins counts the containers that plugins have updated without being asked.
func (r *Runtime) UpdatesFromPlugins() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byPlugins
}

// apply changes existing containers as plugins want it. An unknown id is silently left out, as in CRI-O.
func (r *Runtime) apply(updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate, err error) {
	for _, update := range updates {
		container := r.record.Find(update.ContainerId)
		if container == nil {
			continue
		}
		if e := r.record.Update(container, update.GetLinux().GetResources()); e != nil {
			failed = append(failed, update)
			if !update.IgnoreFailure {
				err = errors.Join(err, e)
			}
		}
	}
	return failed, err
}

func (r *Runtime) pod(id string) *api.PodSandbox {
	for _, pod := range r.pods {
		if pod.Id == id {
			return pod
		}
	}
	return nil
}
