package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

func (d *daemon) newGuard() (*guard.Guard, error) {
	return guard.New(guard.Options{
		Settings: guardSettings(d.options.config.StallGuard), Tree: d.tree, Host: d.agent, Log: d.log, OnEpisode: d.throttled,
		Node: guard.Node{Proc: "/proc", Tree: d.tree,
			Kubepods: func() string { return d.agent.View().Kubepods },
			// Beyond it the kubelet would begin to evict pods for the room that one was given.
			Reserve: func() uint64 { return d.agent.View().Config.Eviction }},
	})
}

func guardSettings(c config.StallGuard) guard.Settings {
	return guard.Settings{Stall: time.Duration(c.Stall), Window: time.Duration(c.Window), Step: c.Step,
		RestoreAfter: time.Duration(c.RestoreAfter), ProactiveReclaim: c.ProactiveReclaim}
}

// followContainers keeps the guard's containers and settings those of the agent.
func (d *daemon) followContainers(ctx context.Context) error {
	settings := guardSettings(d.options.config.StallGuard)
	for {
		c := d.agent.View().Config.Config.StallGuard
		if now := guardSettings(c); now != settings {
			settings = now
			d.guard.SetSettings(now)
		}
		d.guardContainers(ctx, c.Enabled)
		select {
		case <-ctx.Done():
			return nil
		case <-d.agent.HighChanged():
		}
	}
}

// guardContainers watches what is to be watched, and takes the raises of all others back.
func (d *daemon) guardContainers(ctx context.Context, enabled bool) {
	gone := d.guard.Statuses()
	var leftAlone []ledger.HighContainer
	for _, c := range d.agent.HighContainers() {
		if !enabled || c.GuardOff {
			leftAlone = append(leftAlone, c)
			continue
		}
		delete(gone, c.ID)
		stands := max(c.High, c.Raised)
		high, err := d.guard.Put(guard.Container{ID: c.ID, Pod: c.Namespace + "/" + c.PodName, Name: c.Name, Cgroup: c.Cgroup,
			Bounds: guard.Bounds{Computed: c.High, Limit: c.Limit}, High: stands})
		if err != nil {
			d.log.WithError(err).WithFields(map[string]any{"pod": c.PodName, "container": c.Name}).Debug("stall guard: not watched")
			continue
		}
		if high != stands {
			d.setHigh(ctx, c, high)
		}
	}
	for id := range gone {
		d.guard.Drop(id)
	}
	for _, c := range leftAlone {
		if c.Raised > 0 {
			d.setHigh(ctx, c, c.High)
		}
	}
}

func (d *daemon) setHigh(ctx context.Context, c ledger.HighContainer, bytes uint64) {
	if err := d.agent.SetHigh(ctx, c.ID, bytes); err != nil {
		d.log.WithError(fmt.Errorf("set memory.high: %w", err)).WithFields(map[string]any{"pod": c.PodName, "container": c.Name}).
			Debug("stall guard: the container has just ended")
	}
}
