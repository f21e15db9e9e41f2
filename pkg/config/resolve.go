package config

import (
	"errors"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Resolved is a configuration applied to a machine: what the deciding packages need.
type Resolved struct {
	Config Config
	// Static is set when containers are placed (memoryManagerPolicy Static).
	Static bool
	// Nodes are for memorymanager.New; empty unless Static.
	Nodes []memorymanager.NodeCapacity
	// Manager are for memorymanager.New.
	Manager memorymanager.Options
	// LeftOut are the machine's nodes that are not in Nodes, for want of memory or CPUs.
	LeftOut nodeset.Set
	// OnUnsatisfiable is never empty.
	OnUnsatisfiable OnUnsatisfiable
	// QoS are the rules for pods without annotations; see SettingsFor.
	QoS memoryqos.Settings
	// Warnings are one line each, for the log.
	Warnings []string
}

// Resolve checks the configuration against a machine and applies it. The error names file, line and key.
func (c Config) Resolve(m machine.Machine) (Resolved, error) {
	return Resolved{}, errors.New("not built yet")
}

// SettingsFor returns the Memory QoS rules for pods of a namespace.
func (r Resolved) SettingsFor(namespace string) memoryqos.Settings { return r.QoS }
