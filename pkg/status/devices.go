package status

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Device is what is known of one resource of a container's devices.
type Device struct {
	// Resource is a device plugin's resource, or the kind of the device nodes.
	Resource string   `json:"resource"`
	IDs      []string `json:"ids,omitempty"`
	// NUMANodes are empty for devices of no node.
	NUMANodes []int `json:"numaNodes"`
	// Any is set when the devices are near each of the nodes.
	Any bool `json:"any,omitempty"`
	// Source is kubelet (PodResources), sysfs or resourceslice.
	Source string `json:"source"`
}

// String is the device in a line, "vendor.com/gpu gpu-1 on node 1 (kubelet)".
func (d Device) String() string {
	device := topologymanager.Device{Resource: d.Resource, IDs: d.IDs, Nodes: nodeset.Of(d.NUMANodes...), Any: d.Any}
	return fmt.Sprintf("%s (%s)", device, d.Source)
}

func devices(found []topologymanager.Device) (list []Device) {
	for _, d := range found {
		list = append(list, Device{Resource: d.Resource, IDs: d.IDs, NUMANodes: d.Nodes.IDs(), Any: d.Any, Source: d.Source})
	}
	return list
}
