// Package dra is the driver for resource claims on NUMA nodes (Dynamic Resource Allocation): it publishes the share of each node
// that claims may have, prepares and unprepares claims for the kubelet, and names them to the runtime by CDI devices. The
// scheduler decides where a claim is; what it gets there is the ledger's.
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
package dra

import (
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	kresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// numaAttributes say the NUMA node of a device, for constraints with the devices of other drivers. The first is this driver's own,
// the second Kubernetes' (standard from 1.37), and the others are dra-driver-memory's; dra-driver-cpu v0.2.0 has the last.
var numaAttributes = []resourceapi.QualifiedName{"numaNode", "resource.kubernetes.io/numaNode", "dra.cpu/numaNode", "dra.net/numaNode"}

// mostAttributes is the API's bound of attributes and capacities of a device together.
const mostAttributes = resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice

// sliceDevices returns a device for each NUMA node of which claims may have something, in the given order of nodes. Claims share a
// device by its capacities. If mapped, a capacity counts as the node's resource of the same type.
func sliceDevices(claimable []claims.Capacity, hardware machine.Machine, order []int, mapped bool) []resourceapi.Device {
	devices := make([]resourceapi.Device, 0, len(order))
	for _, id := range order {
		device := resourceapi.Device{
			Name: claims.Device(id), AllowMultipleAllocations: new(true),
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
		}
		for _, c := range claimable {
			if c.Node != id || c.Capacity == 0 {
				continue
			}
			name := resourceapi.QualifiedName(claims.CapacityName(c.Type))
			device.Capacity[name] = capacity(c)
			if mapped {
				if device.NodeAllocatableResources == nil {
					device.NodeAllocatableResources = map[corev1.ResourceName]resourceapi.NodeAllocatableResource{}
				}
				device.NodeAllocatableResources[corev1.ResourceName(c.Type)] = resourceapi.NodeAllocatableResource{
					Mapping: &resourceapi.NodeAllocatableMapping{CapacityKey: &name, CapacityMultiplier: kresource.NewQuantity(1, kresource.DecimalSI)},
				}
			}
		}
		if len(device.Capacity) > 0 {
			device.Attributes = attributes(id, hardware, mostAttributes-len(device.Capacity))
			devices = append(devices, device)
		}
	}
	return devices
}

// tier is 0 for memory beside CPUs, and 1 for a node without CPUs.
func tier(id int, hardware machine.Machine) int {
	if slices.ContainsFunc(hardware.Nodes, func(n machine.Node) bool { return n.ID == id && n.CPUs.IsEmpty() }) {
		return 1
	}
	return 0
}

// capacity is consumed in whole steps. Without an amount of its own a claim has one step of memory, so that none is free, and no
// huge pages.
func capacity(c claims.Capacity) resourceapi.DeviceCapacity {
	step := claims.Step(c.Type)
	least := uint64(0)
	if c.Type == memorymanager.Memory {
		least = step
	}
	return resourceapi.DeviceCapacity{Value: bytes(c.Capacity), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default:    new(bytes(least)),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(bytes(least)), Step: new(bytes(step))},
	}}
}

func bytes(n uint64) kresource.Quantity {
	return *kresource.NewQuantity(int64(min(n, math.MaxInt64)), kresource.BinarySI)
}

// attributes are the device's NUMA node, its tier (0 is memory beside CPUs, 1 a node without), and the distances to all nodes as
// far as there is room for them.
func attributes(id int, hardware machine.Machine, room int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	all := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	number := func(name resourceapi.QualifiedName, value int) {
		all[name] = resourceapi.DeviceAttribute{IntValue: new(int64(value))}
	}
	for _, name := range numaAttributes {
		number(name, id)
	}
	at := slices.IndexFunc(hardware.Nodes, func(n machine.Node) bool { return n.ID == id })
	if at < 0 {
		return all
	}
	node := hardware.Nodes[at]
	number("tier", tier(id, hardware))
	if len(node.Distances) == len(hardware.Nodes) && len(all)+len(node.Distances) <= room {
		for i, distance := range node.Distances {
			number(resourceapi.QualifiedName(fmt.Sprint("distance", hardware.Nodes[i].ID)), distance)
		}
	}
	return all
}
