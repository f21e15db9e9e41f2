// Package nodetopology exports this node's NUMA map as a NodeResourceTopology object (topology.node.k8s.io/v1alpha2), so
// that the scheduler's NodeResourceTopologyMatch plugin stops sending pods to nodes that would reject them.
package nodetopology

import (
	"fmt"
	"math"

	topology "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha2"
	kresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Zones returns one zone per NUMA node with its memory and huge pages: capacity, allocatable and available bytes, and the
// SLIT distances as costs.
func Zones(nodes []memorymanager.NodeState, hardware machine.Machine) topology.ZoneList {
	zones := make(topology.ZoneList, 0, len(nodes))
	for _, node := range nodes {
		zone := topology.Zone{Name: zoneName(node.ID), Type: "Node"}
		for _, table := range node.Memory {
			zone.Resources = append(zone.Resources, topology.ResourceInfo{
				Name:        string(table.Type),
				Capacity:    quantity(table.Total),
				Allocatable: quantity(table.Allocatable),
				Available:   quantity(table.Free),
			})
		}
		zone.Costs = costs(node.ID, hardware)
		zones = append(zones, zone)
	}
	return zones
}

func costs(id int, hardware machine.Machine) topology.CostList {
	for _, node := range hardware.Nodes {
		if node.ID != id || len(node.Distances) != len(hardware.Nodes) {
			continue
		}
		list := make(topology.CostList, 0, len(node.Distances))
		for i, distance := range node.Distances {
			list = append(list, topology.CostInfo{Name: zoneName(hardware.Nodes[i].ID), Value: int64(distance)})
		}
		return list
	}
	return nil
}

// attributes tell the scheduler which rule this node admits by.
func attributes(view *agent.View) topology.AttributeList {
	return topology.AttributeList{
		{Name: "topologyManagerPolicy", Value: string(view.Config.Manager.Policy)},
		{Name: "topologyManagerScope", Value: string(view.Config.Manager.Scope)},
	}
}

func zoneName(id int) string { return fmt.Sprintf("node-%d", id) }

func quantity(bytes uint64) kresource.Quantity {
	return *kresource.NewQuantity(int64(min(bytes, math.MaxInt64)), kresource.BinarySI)
}
