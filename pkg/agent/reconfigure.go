package agent

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Reconfigure puts a configuration in force and brings running containers and the cgroups above them to it. One that does
// not fit this machine is refused: the old one stays, and the error is shown until a good one comes.
func (a *Agent) Reconfigure(ctx context.Context, c config.Config) error {
	resolved, err := c.Resolve(a.machine)
	if err != nil {
		a.RejectConfig(err)
		return err
	}
	all, err := a.takeConfig(resolved)
	if err != nil {
		a.RejectConfig(err)
		return err
	}
	for _, warning := range resolved.Warnings {
		a.log.Warn(warning)
	}
	a.bring(ctx, all)
	a.checkMarked(ctx) // files that were written behind the runtime's back are not among its updates
	a.counters.reloads.Add(1)
	a.log.WithField("containers", len(all)).Info("configuration in force")
	a.poke()
	return nil
}

// RejectConfig tells that a new configuration could not be read; the old one stays in force.
func (a *Agent) RejectConfig(err error) {
	a.counters.badReloads.Add(1)
	a.log.WithError(err).Error("new configuration refused, the old one stays in force")
	a.mu.Lock()
	defer a.mu.Unlock()
	a.configured.set(a.now(), err.Error())
	a.changed()
}

// takeConfig recomputes everything under a new configuration and returns all living containers.
func (a *Agent) takeConfig(resolved config.Resolved) ([]*container, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.takeNodes(resolved); err != nil {
		return nil, err
	}
	a.resolved = resolved
	a.sources = eventSources(resolved.Config)
	a.requests.SetTimeout(time.Duration(resolved.Config.RequestTimeout))
	a.configured.set(a.now(), "")
	all := make([]*container, 0, len(a.containers))
	for _, p := range a.living {
		if !p.managed {
			continue
		}
		a.takeRules(p)
		for _, c := range p.containers {
			if c.alive() {
				a.compute(c)
				if c.refusal != nil {
					c.refusal.generation = 0 // the answer may be another one now
				}
				c.check = true
				all = append(all, c)
			}
		}
	}
	a.batch = true
	a.settleBookings(all)
	a.batch = false
	for _, p := range a.living {
		if p.managed {
			a.sumUp(p)
		}
	}
	a.sums++ // also when no value has changed: a dry run that ends has written none of them
	a.allDirty = true
	a.changed()
	a.recordState()
	a.highSignal()
	return all, nil
}

// takeNodes makes a new node map when the configuration changes it; the bookings stay where they are.
func (a *Agent) takeNodes(resolved config.Resolved) error {
	if resolved.Static == a.resolved.Static && reflect.DeepEqual(resolved.Nodes, a.resolved.Nodes) &&
		reflect.DeepEqual(resolved.Manager, a.resolved.Manager) {
		return nil
	}
	manager, err := managerFor(resolved)
	if err != nil {
		return err
	}
	if manager != nil && a.manager != nil {
		report, err := manager.Restore(a.manager.State(), memorymanager.DefaultTolerance)
		if err != nil {
			return fmt.Errorf("the bookings do not fit the new configuration: %w", err)
		}
		for _, lost := range report.Lost {
			a.log.WithField("node", lost.Node).WithField("bytes", lost.Bytes).Warn("running containers have more booked on a node than it has under the new configuration")
		}
	}
	a.manager, a.fitted = manager, 0
	return nil
}
