package ledger

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Reconfigure puts a configuration into force. If it does not fit this machine, Err refuses it: the old one stays in force, and the error
// is shown until a good one comes.
type Reconfigure struct {
	Config config.Resolved
}

func (e Reconfigure) apply(l *Ledger) {
	if err := l.setNodeMap(e.Config); err != nil {
		RejectConfig{Err: err.Error()}.apply(l)
		l.step.effects.Err = err
		return
	}
	if l.state.Resolved.Config.RolledBack == e.Config.Config.RolledBack { // a rollback does not make a refused file valid
		l.state.Configured.set(l.step.now, "")
	}
	begins := l.state.Resolved.Config.DryRun() && !e.Config.Config.DryRun()
	l.state.Resolved = e.Config
	l.setMachine()
	l.noteLostClaims()
	var all []*container
	for _, p := range l.living {
		if l.change(p); !p.managed {
			continue
		}
		l.setRules(p)
		l.releaseUnpinnable(p)
		for _, c := range p.containers {
			if c.alive() {
				c.CPUNodes, c.NoOOMScore = l.exclusiveCPUs(c), l.withoutScore(c)
				all = append(all, c)
			}
		}
	}
	l.placeAll(all)
	for _, c := range all {
		if begins { // files are written from now on, perhaps without an update of the runtime
			l.journalFound(c)
		}
	}
	l.step.all, l.step.syncAll = true, true // even if no value has changed: a dry run has written none
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

// setNodeMap makes a new node map if the configuration changes it. The allocations keep their nodes.
func (l *Ledger) setNodeMap(resolved config.Resolved) error {
	reserved := l.state.Claims.Reserved(resolved.Claimable, resolved.Nodes)
	if reflect.DeepEqual(reserved, l.reserved) && resolved.Static == l.state.Resolved.Static && reflect.DeepEqual(resolved.Nodes, l.state.Resolved.Nodes) &&
		reflect.DeepEqual(resolved.Manager, l.state.Resolved.Manager) {
		return nil
	}
	manager, err := managerFor(resolved, reserved)
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
		manager.SetNodeMemory(l.state.NodeMemory)
	}
	l.manager, l.reserved = manager, reserved
	for _, p := range l.living {
		if l.learnRoles(p); manager == nil {
			p.stored = memorymanager.PodAllocations{}
		}
	}
	return nil
}
