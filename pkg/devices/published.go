package devices

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

type published struct {
	slice, driver, pool string
	generation          int64
	nodes               map[string]nodeset.Set // by device; one that is on no node is left out
	strange             string                 // names a device on a node that the machine does not have, which is left out
}

// numaAttributes are the names of the attribute with a device's NUMA node, in their order: Kubernetes' own, standard from 1.37, the
// driver's, and the one that network and CPU drivers have agreed on before. A name without a domain is in the driver's.
func numaAttributes(driver string) []resourceapi.QualifiedName {
	return []resourceapi.QualifiedName{
		"resource.kubernetes.io/numaNode", resourceapi.QualifiedName(driver + "/numaNode"), "numaNode", "dra.net/numaNode",
	}
}

func (s *Slices) read(slice *resourceapi.ResourceSlice) published {
	kept := published{slice: slice.Name, driver: slice.Spec.Driver, pool: slice.Spec.Pool.Name, generation: slice.Spec.Pool.Generation}
	names := numaAttributes(kept.driver)
	for i := range slice.Spec.Devices[:min(len(slice.Spec.Devices), resourceapi.ResourceSliceMaxDevices)] {
		device := &slice.Spec.Devices[i]
		nodes, err := numaNodes(device.Attributes, names, s.Nodes)
		switch {
		case err != nil:
			kept.strange = fmt.Sprintf("device %s in pool %s: %v", device.Name, kept.pool, err)
		case !nodes.Empty():
			if kept.nodes == nil {
				kept.nodes = map[string]nodeset.Set{}
			}
			kept.nodes[device.Name] = nodes
		}
	}
	return kept
}

// numaNodes reads the first of the attributes that is there: a node, or a list of nodes that the device is near. Drivers publish -1
// for a device of no node, as the kernel does.
func numaNodes(attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, names []resourceapi.QualifiedName, machine nodeset.Set) (nodes nodeset.Set, err error) {
	for _, name := range names {
		attribute := attributes[name]
		values := attribute.IntValues
		if attribute.IntValue != nil {
			values = []int64{*attribute.IntValue}
		}
		for _, value := range values {
			switch {
			case value == -1:
			case value < 0 || value >= nodeset.Max || !machine.Has(int(value)):
				return 0, fmt.Errorf("attribute %s is %d, this machine has the NUMA nodes %s", name, value, machine)
			default:
				nodes |= nodeset.Of(int(value))
			}
		}
		if len(values) > 0 {
			return nodes, nil
		}
	}
	return 0, nil
}
