package memorymanager

import (
	"fmt"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// A container may have CPUs or devices on a NUMA node that is not in the node map. They count for the nearest nodes of the map. A kubelet
// has nodes without memory in its map: it prefers them for such a container, together with memory of any other node.

// Nearest is about a NUMA node that is not in the node map.
type Nearest struct {
	// Nodes are the nodes of the map at the smallest distance; empty if distances are not known.
	Nodes nodeset.Set
	// Why it is not in the map, "has no memory".
	Why string
}

// near maps nodes of the machine to nodes of the map: to themselves, or to the nearest. anyOf means that any one of the nodes is as good as
// all of them, in the argument and in the result.
func (m *Manager) near(nodes nodeset.Set, anyOf bool) (nodeset.Set, bool) {
	on, off := nodes&m.all, nodes&^m.all
	if off.Empty() || anyOf && !on.Empty() {
		return on, anyOf
	}
	common, near := m.all, on
	for id := range off.All() {
		nearest := m.options.Nearest[id].Nodes
		if common &= nearest; nearest&on == 0 {
			near |= nearest
		}
	}
	switch {
	case anyOf:
		return near, near.Len() > 1
	case on.Empty() && !common.Empty():
		return common, common.Len() > 1
	}
	return near, false
}

// attached are the nodes of the container's CPUs and devices, in the map or not.
func (c Container) attached() (nodes nodeset.Set) {
	nodes = c.CPUs
	for _, device := range c.Devices {
		nodes |= device.Nodes
	}
	return nodes
}

// offMap says which of the nodes are not in the map, and which are nearest to them; empty where all are in it.
func (m *Manager) offMap(nodes nodeset.Set) string {
	var all []string
	for id := range (nodes &^ m.all).All() {
		if nearest, known := m.options.Nearest[id]; known && !nearest.Nodes.Empty() {
			verb := "is"
			if nearest.Nodes.Len() > 1 {
				verb = "are"
			}
			all = append(all, fmt.Sprintf("node %d %s: nearest %s %s", id, nearest.Why, verb, nearest.Nodes.Named()))
		}
	}
	return strings.Join(all, ", ")
}

// named describes nodes, with the nearest nodes of the map in parentheses.
func (m *Manager) named(nodes nodeset.Set) string { return parenthesis(nodes.Named(), m.offMap(nodes)) }

// describe is named for the nodes of a device.
func (m *Manager) describe(device topologymanager.Device) string {
	return parenthesis(device.String(), m.offMap(device.Nodes))
}

func parenthesis(text, more string) string {
	if more == "" {
		return text
	}
	return text + " (" + more + ")"
}

// Farther says how a container's memory on these nodes is farther than need be from its CPUs and devices on nodes that are not in the map;
// empty where it is not.
func (m *Manager) Farther(c Container, on nodeset.Set) string {
	off := m.offMap(c.attached())
	if off == "" || on.Empty() || !m.rules.Aligns {
		return ""
	}
	in := m.providers(c)
	near := in.CPUs
	for _, device := range in.Devices {
		near |= device.Nodes
	}
	if near&on != 0 {
		return ""
	}
	return off + ", and its memory is on " + on.Named()
}

// onMap is a device with the nodes of the map that it is on or nearest to.
func (m *Manager) onMap(device topologymanager.Device) topologymanager.Device {
	device.Nodes, device.Any = m.near(device.Nodes, device.Any)
	return device
}
