package memorymanager

import (
	"maps"
	"slices"
)

// Reason is why a container is not placed. NewReason alone makes one, so that no reason is missing in Reasons: metrics count
// each from 0 on, because an alert on a counter's increase does not see the first event of a series that begins with it.
type Reason struct{ name string }

// reasons has every Reason of the program. Only package initialization adds to it.
var reasons = map[string]Reason{}

// NewReason adds a reason. It is for the variables of packages.
func NewReason(name string) Reason {
	if _, there := reasons[name]; there {
		panic("two reasons have the name " + name)
	}
	reasons[name] = Reason{name}
	return reasons[name]
}

// Reasons are the names of all reasons, sorted.
func Reasons() []string { return slices.Sorted(maps.Keys(reasons)) }

// String is the reason's name, the kubelet's where it has the reason, too.
func (r Reason) String() string { return r.name }
