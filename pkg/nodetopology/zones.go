// Package nodetopology exports this node's NUMA map as a NodeResourceTopology object (topology.node.k8s.io/v1alpha2), so
// that the scheduler's NodeResourceTopologyMatch plugin stops sending pods to nodes that would reject them. Kept writes such objects.
package nodetopology

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/k8stopologyawareschedwg/podfingerprint"
	kresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// zones returns one zone per NUMA node with its CPUs, memory and huge pages: what it has, what pods may have of it and what
// is available, and the SLIT distances as costs. The scheduler takes a resource that no zone has for one that no zone can
// give: without CPUs it would place no pod that requests any.
func zones(view *ledger.View, hardware machine.Machine) []Zone {
	exclusive := exclusiveCPUs(view)
	zones := make([]Zone, 0, len(view.Nodes))
	for _, node := range view.Nodes {
		zone := Zone{Name: zoneName(node.ID), Type: "Node"}
		if i := slices.IndexFunc(hardware.Nodes, func(n machine.Node) bool { return n.ID == node.ID }); i >= 0 {
			cpus := hardware.Nodes[i].CPUs.Size()
			zone.Costs = costs(hardware.Nodes[i].Distances, hardware.Nodes)
			zone.Resources = append(zone.Resources, Resource{
				Name: "cpu", Capacity: number(cpus), Allocatable: number(cpus), Available: number(max(cpus-exclusive[node.ID], 0))})
		}
		for _, table := range node.Memory {
			zone.Resources = append(zone.Resources, Resource{
				Name:        string(table.Type),
				Capacity:    quantity(table.Total),
				Allocatable: quantity(table.Allocatable),
				Available:   quantity(table.Free),
			})
		}
		zone.Attributes = append(groupAttributes(node), deficitAttributes(view.NodeMemory.Node(node.ID))...)
		zones = append(zones, zone)
	}
	return zones
}

// groupAttributes say which containers a used zone bars, whatever it has available (the Memory Manager's groups,
// pkg/kubelet/cm/memorymanager). A container may be on a set of zones if none of them has the attributes, or if that set is the
// memoryGroup of each of them.
func groupAttributes(node memorymanager.NodeState) []Attribute {
	if node.Assignments == 0 {
		return nil
	}
	var members []string
	for id := range node.Cells.All() {
		members = append(members, zoneName(id))
	}
	bars := "multi-numa-node"
	if node.Grouped() {
		bars = "single-numa-node"
	}
	return []Attribute{{Name: "memoryGroup", Value: strings.Join(members, ",")}, {Name: "memoryGroupBars", Value: bars}}
}

// deficitStep is what a deficit is rounded up to, so that the object does not change with every page.
const deficitStep = 256 << 20

// deficitAttributes say by how much a zone is overcommitted. There are none if its memory suffices for its pinned containers.
func deficitAttributes(node *deficit.NodeMemory) []Attribute {
	if node == nil || node.Deficit() == 0 {
		return nil
	}
	steps := (node.Deficit()-1)/deficitStep + 1
	return []Attribute{{Name: "memoryDeficit", Value: strconv.FormatUint(steps*deficitStep, 10)}}
}

// costs are a node's distances to all nodes, where they are known.
func costs(distances []int, nodes []machine.Node) (list []Cost) {
	if len(distances) != len(nodes) {
		return nil
	}
	for i, distance := range distances {
		list = append(list, Cost{Name: zoneName(nodes[i].ID), Value: int64(distance)})
	}
	return list
}

// exclusiveCPUs counts the CPUs of each NUMA node that the kubelet's CPU manager has assigned to living containers.
func exclusiveCPUs(view *ledger.View) map[int]int {
	count := map[int]int{}
	for _, container := range view.Containers() {
		if !container.State.Alive() {
			continue
		}
		for node, cpus := range container.CPUs {
			count[node] += cpus
		}
	}
	return count
}

// attributes give the scheduler the rule this node admits by, and which pods the zones account for.
func attributes(view *ledger.View) []Attribute {
	return []Attribute{
		{Name: "topologyManagerPolicy", Value: string(view.Config.Manager.Policy)},
		{Name: "topologyManagerScope", Value: string(view.Config.Manager.Scope)},
		{Name: podfingerprint.AttributeMethod, Value: podfingerprint.MethodAll},
		{Name: podfingerprint.Attribute, Value: fingerprint(view)},
	}
}

// fingerprint is a hash of the node's pods. A scheduler that keeps a cache charges the pods that it sends here to every zone,
// until it finds its own fingerprint of the node's running pods in the object. A pod counts from its sandbox on, so that no
// charge is dropped before the zones have it, but not while its only containers are refused: such a pod never runs.
func fingerprint(view *ledger.View) string {
	refused := map[string]bool{}
	for _, rejection := range view.Rejections {
		refused[rejection.UID] = refused[rejection.UID] || rejection.Refused
	}
	print := podfingerprint.NewFingerprint(len(view.Pods))
	for _, pod := range view.Pods {
		if len(pod.Containers) > 0 || !refused[pod.UID] {
			_ = print.Add(pod.Namespace, pod.Name) // never fails
		}
	}
	return print.Sign()
}

func zoneName(id int) string { return fmt.Sprintf("node-%d", id) }

func quantity(bytes uint64) kresource.Quantity {
	return *kresource.NewQuantity(int64(min(bytes, math.MaxInt64)), kresource.BinarySI)
}

func number(n int) kresource.Quantity { return *kresource.NewQuantity(int64(n), kresource.DecimalSI) }
