package topologymanager

import (
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Device is what the device provider knows of one resource of a container: the NUMA nodes of its devices.
type Device struct {
	// Resource names the resource, for example "nvidia.com/gpu"; what has the same name has one list of hints.
	Resource string `json:"resource"`
	// IDs name the devices, as their source does.
	IDs []string `json:"ids,omitempty"`
	// Nodes are the nodes of the devices; empty when they are on none.
	Nodes nodeset.Set `json:"numaNodes"`
	// Any is set when the devices are near each of the nodes, so that any of them will do.
	Any bool `json:"any,omitempty"`
	// Source says where the nodes come from.
	Source string `json:"source,omitempty"`
}

// NewDevice is one device: of one node, or near any of several.
func NewDevice(resource, id, source string, nodes nodeset.Set) Device {
	return Device{Resource: resource, IDs: []string{id}, Nodes: nodes, Any: nodes.Len() > 1, Source: source}
}

// String names the devices and their nodes, "nvidia.com/gpu gpu-1 on node 1".
func (d Device) String() string {
	where := "on no NUMA node"
	switch {
	case d.Any:
		where = "near any of " + d.Nodes.Named()
	case !d.Nodes.Empty():
		where = "on " + d.Nodes.Named()
	}
	return strings.TrimSpace(d.Resource+" "+strings.Join(d.IDs, ", ")) + " " + where
}

// Join has one list for each resource, in the order of their names. Devices of one resource are near the nodes that all of
// them are near; where there are none, the resource is on the nodes of all of them together.
func Join(devices []Device) (joined []Device) {
	for _, device := range devices {
		same := func(other Device) bool { return other.Resource == device.Resource }
		if i := slices.IndexFunc(joined, same); i >= 0 {
			joined[i] = joined[i].join(device)
		} else {
			joined = append(joined, device)
		}
	}
	slices.SortFunc(joined, func(a, b Device) int { return strings.Compare(a.Resource, b.Resource) })
	return joined
}

func (d Device) join(other Device) Device {
	joined := Device{Resource: d.Resource, Source: d.Source, IDs: slices.Clone(d.IDs)}
	for _, id := range other.IDs {
		if !slices.Contains(joined.IDs, id) {
			joined.IDs = append(joined.IDs, id)
		}
	}
	both := d.Nodes & other.Nodes
	switch {
	case d.Nodes.Empty() || other.Nodes.Empty():
		joined.Nodes, joined.Any = d.Nodes|other.Nodes, d.Any || other.Any
	case both.Empty() || !d.Any && !other.Any:
		joined.Nodes = d.Nodes | other.Nodes
	case d.Any && other.Any:
		joined.Nodes, joined.Any = both, both.Len() > 1
	case d.Any:
		joined.Nodes = other.Nodes
	default:
		joined.Nodes = d.Nodes
	}
	return joined
}

// AlignTo says what memory is aligned to where exclusive CPUs and devices are on different NUMA nodes.
type AlignTo string

// What memory is aligned to.
const (
	// AlignToKubelet merges the hints of CPUs, devices and memory as the kubelet does: what disagrees is not preferred.
	AlignToKubelet AlignTo = "Kubelet"
	// AlignToCPUs merges memory with the CPUs.
	AlignToCPUs AlignTo = "CPUs"
	// AlignToDevices merges memory with the devices.
	AlignToDevices AlignTo = "Devices"
)

// Agree reports whether the CPUs and all devices prefer the same nodes, so that there is nothing to choose between them.
func (in Providers) Agree() bool {
	w := in.wants()
	if !w.listed {
		return !w.near.Empty()
	}
	_, ok := w.common()
	return ok
}

// Everywhere reports whether the devices together are on all nodes of the machine.
func (in Providers) Everywhere() bool { return in.deviceNodes() == in.All }

func (in Providers) deviceNodes() (nodes nodeset.Set) {
	for _, device := range in.Devices {
		nodes |= device.Nodes
	}
	return nodes
}

// Aligned leaves out what memory is not aligned to: the CPUs or the devices, where these do not agree. Devices that do not
// agree among themselves have one list, of the nodes of all of them.
func (in Providers) Aligned(to AlignTo) Providers {
	if to != AlignToCPUs && to != AlignToDevices || in.Agree() {
		return in
	}
	if !in.CPUs.Empty() && to == AlignToCPUs {
		in.Devices = nil
		return in
	}
	devices := Providers{All: in.All, Devices: in.Devices}
	if !devices.Agree() {
		in.Devices = []Device{{Nodes: devices.deviceNodes()}}
	}
	if !in.Agree() {
		in.CPUs = 0
	}
	return in
}
