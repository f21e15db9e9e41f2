package ledger

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Reconfigure puts a configuration in force. One that does not fit this machine is refused with Err: the old one stays, and
// the error is shown until a good one comes.
type Reconfigure struct {
	Config config.Resolved
	// Machine is what Config was resolved with; nil is the one from before.
	Machine *machine.Machine
}

func (e Reconfigure) apply(l *Ledger) {
	if err := l.takeNodes(e.Config); err != nil {
		RejectConfig{Err: err.Error()}.apply(l)
		l.step.effects.Err = err
		return
	}
	l.resolved = e.Config
	l.roomBefore++ // the same request may have another answer now
	if e.Machine != nil {
		l.takeMachine(*e.Machine)
	}
	l.configured.set(l.step.now, "")
	l.noteLostClaims()
	var all []*container
	for _, p := range l.living {
		if !p.managed {
			continue
		}
		l.takeRules(p)
		for _, c := range p.containers {
			if !c.alive() {
				continue
			}
			l.compute(c)
			l.bring(c)
			all = append(all, c)
		}
	}
	l.settleAllocations(all)
	for _, p := range l.living {
		if p.managed {
			l.sumUp(p)
		}
	}
	l.step.all, l.step.whole = true, true // also when no value has changed: a dry run that ends has written none of them
	l.changed()
	l.highChanged()
	l.counters.Reloads++
	for _, warning := range e.Config.Warnings {
		l.note(Warn, warning, nil, nil)
	}
	l.note(Info, "configuration in force", map[string]any{"containers": len(all)}, nil)
}

// RejectConfig is a new configuration that cannot be used; the old one stays in force.
type RejectConfig struct{ Err string }

func (e RejectConfig) apply(l *Ledger) {
	l.counters.BadReloads++
	l.note(Error, "new configuration refused, the old one stays in force", nil, errors.New(e.Err))
	l.configured.set(l.step.now, e.Err)
	l.changed()
}

// takeNodes makes a new node map when the configuration changes it; the allocations stay where they are.
func (l *Ledger) takeNodes(resolved config.Resolved) error {
	aside := l.setAside(resolved)
	if reflect.DeepEqual(aside, l.aside) && resolved.Static == l.resolved.Static && reflect.DeepEqual(resolved.Nodes, l.resolved.Nodes) &&
		reflect.DeepEqual(resolved.Manager, l.resolved.Manager) {
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
	if manager != nil && l.manager != nil {
		manager.Observe(l.manager.Cover())
	}
	if l.manager != nil {
		l.roomBefore += l.manager.Generation()
	}
	l.manager, l.aside = manager, aside
	for _, p := range l.living {
		l.learnRoles(p, false)
	}
	l.leave()
	l.step.whole = true
	return nil
}
