package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/admin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims/dra"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/events"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/evict"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/history"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/metrics"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodetopology"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podresources"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// part is something that runs until its context ends.
type part = func(context.Context) error

// services are the parts that only read the agent: metrics, status, PodResources, the export for the scheduler. One that
// cannot be had on request is an error; a socket in the state folder that cannot be had is logged, for the plugin works
// without.
func (d *daemon) services() ([]part, error) {
	counters := cgroupfs.NewSampler(cgroupfs.FreshTime, d.tree.Counters)
	sources := status.Sources{View: d.agent.View, Overwrites: func() map[protect.Overwrite]uint64 { return d.agent.Counters().Overwrites },
		Requests:   func() podinfo.Stats { return d.agent.Counters().Requests },
		Migrations: d.agent.Migrations, LastKill: d.kills.Last, Risks: d.kills.Risks,
		Tree: d.tree, Usages: status.NewUsages(d.tree, counters), Version: version, Node: d.options.nodeName, PreInstalled: d.options.launched}
	shown := metrics.Sources{View: d.agent.View, Counters: d.agent.Counters, Migrations: d.agent.Migrations, Containers: counters, Kills: d.kills.Totals, Risks: d.kills.Risks,
		Version: version}
	if d.slices != nil {
		sources.Devices = func() []status.Source {
			connected, problem := d.slices.State()
			return []status.Source{{Source: devices.SourceResourceSlice, Connected: connected, Problem: problem}}
		}
	}
	if d.guard != nil {
		sources.Statuses, shown.Guard = d.guard.Statuses, d.guard.Totals
		sources.Reclaim, shown.Reclaim = d.reclaim.Report, d.reclaim.Totals
	}
	var parts []part
	if d.options.config.DRA.Enabled {
		driver, err := d.claimsDriver(&sources)
		if err != nil {
			return nil, fmt.Errorf("dra: %w", err)
		}
		parts = driver
	}
	if d.options.config.EvictRejectedAfter > 0 {
		api, err := clientFor(&d.options.apiOptions, evict.NewAPI)
		if err != nil {
			return nil, fmt.Errorf("evictRejectedAfter: %w", err)
		}
		evictor := evict.New(evict.Options{API: api, View: d.agent.View, Log: d.log, OnEvicted: d.events.Evicted})
		shown.Evictions, parts = evictor.Evictions, append(parts, evictor.Run)
	}
	d.metrics.Attach(shown)
	hour := history.New(history.Sources{View: d.agent.View, Rejections: d.rejections, Kills: d.kills.Count, Throttled: d.throttledContainers()})
	handler := admin.Handler(admin.Sources{
		View: d.agent.View, Health: progress.Check, Metrics: d.metrics.Handler(), Page: admin.Page(),
		Status:  func() any { return sources.Make() },
		History: func() any { return hour.Document() },
		State:   d.agent.State,
		Orders:  map[string]func(context.Context) (any, error){"/rollback": d.rollBack, "/resume": d.resume},
		Explain: func(pod, container string) (any, error) {
			explanations, err := d.agent.Explain(pod, container)
			if err != nil {
				return nil, err
			}
			return sources.Explain(slices.Collect(explanations)), nil
		},
	})
	parts = append(parts, hour.Run)
	if d.slices != nil {
		parts = append(parts, d.slices.Run)
	}
	if d.probes != nil {
		d.probes.show(handler)
		parts = append(parts, d.probes.run)
	}
	if d.options.outside.listen != nil {
		parts = append(parts, d.sockets(handler)...)
	}
	if d.events != nil {
		parts = append(parts, d.events.Run)
	}
	if d.options.config.NodeResourceTopology {
		export, err := d.topologyExport()
		if err != nil {
			return nil, fmt.Errorf("nodeResourceTopology: %w", err)
		}
		parts = append(parts, export)
	}
	return parts, nil
}

// sockets serve the commands, and our PodResources API.
func (d *daemon) sockets(handler http.Handler) (parts []part) {
	listener, err := d.options.outside.listen(filepath.Join(d.options.stateDir, adminSocket))
	if err != nil {
		d.log.WithError(err).Error("status and explain will not find this daemon")
	} else {
		parts = append(parts, func(ctx context.Context) error { return admin.Serve(ctx, listener, handler) })
	}
	if d.options.podResources == "" {
		return parts
	}
	resources, err := d.options.outside.listen(d.options.podResources)
	if err != nil {
		d.log.WithError(err).Error("the PodResources API is not served")
		return parts
	}
	return append(parts, func(ctx context.Context) error { return podresources.Serve(ctx, resources, d.agent.View) })
}

func (d *daemon) readSlices() error {
	client, err := clientFor(&d.options.apiOptions, dra.NewClient)
	if err != nil {
		return err
	}
	d.slices = devices.NewSlices(devices.SlicesOptions{
		Client: client, Node: d.options.nodeName, Own: claims.Driver, Nodes: d.options.machine.NodeIDs(), Log: d.log,
	})
	return nil
}

// rejections counts containers and resizes refused since the daemon started, whatever the reason.
func (d *daemon) rejections() (sum uint64) {
	for _, count := range d.agent.Counters().Rejections {
		sum += count
	}
	return sum
}

// throttledContainers counts those that are stopped by their memory.high or have been given room; nil without the stall guard.
func (d *daemon) throttledContainers() func() uint64 {
	if d.guard == nil {
		return nil
	}
	return func() (count uint64) {
		for _, s := range d.guard.Statuses() {
			if s.Stopped || s.Raised {
				count++
			}
		}
		return count
	}
}

func (d *daemon) writeEvents() error {
	sink, err := clientFor(&d.options.apiOptions, events.NewSink)
	if err != nil {
		return err
	}
	d.events = events.New(events.Options{Sink: sink, Node: d.options.nodeName, View: d.agent.View, Overwritten: d.agent.OverwritesByFile, Log: d.log})
	return nil
}

func (d *daemon) topologyExport() (part, error) {
	client, err := clientFor(&d.options.apiOptions, nodetopology.NewClient)
	if err != nil {
		return nil, err
	}
	d.topology = &nodetopology.Exporter{Client: client, Node: d.options.nodeName, View: d.agent.View, Machine: d.options.machine,
		Period: d.options.timings.export, Log: d.log}
	return func(ctx context.Context) error { d.topology.Run(ctx); return nil }, nil
}

func (d *daemon) newGuard() (*guard.Guard, error) {
	return guard.New(guard.Options{
		Tree: d.tree, Host: d.agent, Log: d.log, Settings: d.options.timings.guard, OnEpisode: d.events.Throttled,
		Node: guard.Node{Proc: d.options.outside.proc, Tree: d.tree,
			Kubepods: func() string { return d.agent.View().Kubepods() },
			// Beyond it the kubelet would begin to evict pods for the room that one was given.
			Reserve: func() uint64 { return d.agent.View().Config.Eviction }},
	})
}

// followContainers keeps the guard's containers those of the agent.
func (d *daemon) followContainers(ctx context.Context) error {
	for {
		var containers []guard.Container
		for _, c := range d.agent.HighContainers() {
			containers = append(containers, guard.Container{ID: c.ID, Pod: c.Namespace + "/" + c.PodName, Name: c.Name, Cgroup: c.Cgroup,
				Bounds: guard.Bounds{Computed: c.High, Request: c.Request, Limit: c.Limit, CacheRoom: c.CacheRoom}, High: max(c.High, c.Raised), Off: c.GuardOff})
		}
		d.guard.Set(ctx, containers)
		select {
		case <-ctx.Done():
			return nil
		case <-d.agent.HighChanged():
		}
	}
}

func (d *daemon) claimsDriver(sources *status.Sources) ([]part, error) {
	client, err := clientFor(&d.options.apiOptions, dra.NewClient)
	if err != nil {
		return nil, err
	}
	listener, err := d.options.outside.listen(filepath.Join(d.options.pluginRegistry, claims.Driver+".sock"))
	if err != nil {
		return nil, err
	}
	driver := dra.New(dra.Options{
		Client: client, Name: claims.Driver, Node: d.options.nodeName, CDI: d.options.cdi, Ledger: d.agent, Machine: d.options.machine, Log: d.log,
	})
	d.agent.OnUnreserved(driver.Reread)
	sources.Unmapped = driver.Unmapped
	return []part{func(ctx context.Context) error { return driver.Run(ctx, listener) }}, nil
}
