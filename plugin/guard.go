package main

import (
	"context"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
)

func (d *daemon) newGuard() (*guard.Guard, error) {
	return guard.New(guard.Options{
		Tree: d.tree, Host: d.agent, Log: d.log, Settings: d.options.timings.guard, OnEpisode: d.throttled,
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
