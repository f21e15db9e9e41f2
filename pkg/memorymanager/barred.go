package memorymanager

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Holder is a container whose allocation keeps others from NUMA nodes that have room.
type Holder struct {
	Pod, Container string // UID and name
	Nodes          nodeset.Set
	// More is how many containers beyond those named have the same nodes. It is set for the last one named.
	More int
}

// barred says which nodes have a request free although the policy or the groups keep the container from them, with the containers on each group
// that does, and what helps; "" where memory is missing. Groups are the kubelet's rule: see Manager.
func (m *Manager) barred(c Container) (text, helps string, holders []Holder) {
	h, known := m.hintsFor(c.Pod, c.Request)
	nodes, insists := h.roomiest(), "policy"
	if c.Required && !m.rules.Insists {
		insists = "annotation numa: required"
	}
	switch {
	case !known || nodes.Empty() || h.lawful(nodes) && nodes.Len() == 1:
		return "", "", nil
	case m.rules.OneNode && nodes.Len() > 1:
		return fmt.Sprintf("%s together have room, but the policy admits one node", nodes.Named()), "a request that one NUMA node has free", nil
	case (m.rules.Insists || c.Required && m.rules.Aligns) && !h.minimal(nodes.Len()):
		helps = "a request that fewer NUMA nodes have free"
		if _, holders = m.holdersOn(nodes, 2); len(holders) > 0 { // what a node in a group has free is for none that needs fewer nodes
			helps = "all of these containers end, or a request that fewer NUMA nodes beside theirs have free"
		}
		return fmt.Sprintf("%s together have room, but the %s admits no more nodes than an empty machine needs", nodes.Named(), insists), helps, holders
	case h.lawful(nodes):
		return "", "", nil
	}
	used, holders := m.holdersOn(nodes&^h.unused, 1)
	if nodes.Len() == 1 {
		return fmt.Sprintf("%s has room, but containers use it together with the rest of nodes %s: only a container that gets all of these may join them",
			nodes.Named(), used), "all of these containers end", holders
	}
	return fmt.Sprintf("%s together have room, but containers use a part of them (%s) already: a container gets several nodes only where nobody is, or where "+
			"all who are there have exactly these nodes", nodes.Named(), used.Named()),
		"all of these containers end and start again later, or a request that one NUMA node has free", holders
}

// roomiest are the fewest nodes that have the request free, or about the fewest where it is of several types, whatever policy and groups say. It
// is empty where there are none.
func (h *hints) roomiest() (nodes nodeset.Set) {
	for !h.fits(nodes) {
		var best int
		var gain uint64
		for id := range (h.m.all &^ nodes).All() {
			for t, c := range h.columns {
				if c.freeOf(nodes) < h.want[t] && c.free(id) > gain {
					best, gain = id, c.free(id)
				}
			}
		}
		if gain == 0 {
			return 0
		}
		nodes |= nodeset.Of(best)
	}
	return nodes
}

// namedHolders bounds the containers that a rejection names for each group.
const namedHolders = 3

// holdersOn are the containers on the groups of so many nodes at least that have a part of these, and all nodes of these groups.
func (m *Manager) holdersOn(nodes nodeset.Set, least int) (groups nodeset.Set, holders []Holder) {
	for ; !nodes.Empty(); nodes &^= m.groups[nodes.First()] {
		if group := m.groups[nodes.First()]; group.Len() >= least {
			groups |= group
			holders = append(holders, m.holders(group)...)
		}
	}
	return groups, holders
}

// holders are the containers on exactly these nodes, those with the lowest pod UIDs by name.
func (m *Manager) holders(nodes nodeset.Set) (named []Holder) {
	for _, p := range m.pods {
		for _, c := range p.containers {
			switch {
			case span(c.blocks) != nodes:
			case len(named) < namedHolders:
				named = append(named, Holder{Pod: p.uid, Container: c.name, Nodes: nodes})
			default:
				named[namedHolders-1].More++
			}
		}
	}
	return named
}
