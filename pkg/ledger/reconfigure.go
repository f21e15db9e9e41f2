package ledger

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Reconfigure puts a configuration in force. One that does not fit this machine is refused with Err: the old one stays, and
// the error is shown until a good one comes.
type Reconfigure struct {
	Config config.Resolved
}

func (e Reconfigure) apply(l *Ledger) {
	if err := l.takeNodes(e.Config); err != nil {
		RejectConfig{Err: err.Error()}.apply(l)
		l.step.effects.Err = err
		return
	}
	if l.state.Resolved.Config.RolledBack == e.Config.Config.RolledBack { // else a file that is refused is so still
		l.state.Configured.set(l.step.now, "")
	}
	begins := l.state.Resolved.Config.DryRun() && !e.Config.Config.DryRun()
	l.state.Resolved = e.Config
	l.takeMachine()
	l.noteLostClaims()
	var all []*container
	for _, p := range l.living {
		if l.change(p); !p.managed {
			continue
		}
		l.takeRules(p)
		for _, c := range p.containers {
			if c.alive() {
				c.CPUNodes = l.exclusiveCPUs(c)
				all = append(all, c)
			}
		}
	}
	l.placeAll(all)
	for _, c := range all {
		if begins { // to write, and the runtime may not be asked to
			l.journalFound(c)
		}
	}
	l.step.all, l.step.syncAll = true, true // also when no value has changed: a dry run that ends has written none of them
	l.state.Counters.Reloads++
	for _, warning := range e.Config.Warnings {
		l.note(Warn, warning, nil, nil)
	}
	l.note(Info, "configuration in force", map[string]any{"containers": len(all)}, nil)
}

// RejectConfig is a new configuration that cannot be used; the old one stays in force.
type RejectConfig struct{ Err string }

func (e RejectConfig) apply(l *Ledger) {
	l.state.Counters.BadReloads++
	l.note(Error, "new configuration refused, the old one stays in force", nil, errors.New(e.Err))
	l.state.Configured.set(l.step.now, e.Err)
}

// takeNodes makes a new node map when the configuration changes it; the allocations stay where they are.
func (l *Ledger) takeNodes(resolved config.Resolved) error {
	aside := l.state.Claims.SetAside(resolved.Claimable, resolved.Nodes)
	if reflect.DeepEqual(aside, l.aside) && resolved.Static == l.state.Resolved.Static && reflect.DeepEqual(resolved.Nodes, l.state.Resolved.Nodes) &&
		reflect.DeepEqual(resolved.Manager, l.state.Resolved.Manager) {
		return nil
	}
	manager, err := managerFor(resolved, aside)
	if err != nil {
		return err
	}
	if manager != nil && l.manager != nil {
		report, err := manager.Restore(l.manager.State(), memorymanager.DefaultTolerance)
		if err != nil {
			return fmt.Errorf("the allocations do not fit the new configuration: %w", err)
		}
		for _, lost := range report.Lost {
			l.note(Warn, "running containers have more allocated on a node than it has under the new configuration",
				map[string]any{"node": lost.Node, "bytes": quantity.Log(lost.Bytes)}, nil)
		}
	}
	if manager != nil {
		manager.Observe(l.state.NodeMemory)
	}
	l.manager, l.aside = manager, aside
	for _, p := range l.living {
		l.learnRoles(p)
	}
	return nil
}
