package memorymanager

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Holder is a container whose allocation keeps others from NUMA nodes that have room.
type Holder struct {
	Pod, Container string      // UID and name
	Nodes          nodeset.Set // the group; the container may have a part of it
	// More is how many containers beyond those named have nodes of the group. It is set for the last one named.
	More int
}

// barred says what keeps a container from nodes that have its request free: the policy, or the groups, which are the kubelet's rule: see
// Manager. smaller is a request that would be placed now. towards are the nodes that the container's CPUs, its devices or its affinity lead to.
func (m *Manager) barred(c Container, towards nodeset.Set) (why, smaller string, groups []nodeset.Set) {
	if existing := m.container(c.Pod, c.Name); existing != nil {
		return "", "", m.groupsOn(span(existing.blocks)) // why it cannot grow is known
	}
	h, known := m.hintsFor(c.Pod, c.Request)
	nodes, insists := h.roomiest(), "policy"
	if c.Required && !m.rules.Insists {
		insists = "annotation numa: required"
	}
	var outside string // what a node in a group has free is for none that needs fewer nodes
	wide := func(group nodeset.Set) bool { return group.Len() > 1 }
	if slices.ContainsFunc(m.groupsOn(nodes), wide) {
		outside = " outside of a group"
	}
	switch lawful := h.lawful(nodes); {
	case !known || nodes.Empty() || lawful && h.lawful(towards):
		return "", "", nil
	case m.rules.OneNode && nodes.Len() > 1:
		return nodes.Named() + " together have room, but the policy admits one node", "a request that one NUMA node" + outside + " has free", nil
	case (m.rules.Insists || c.Required && m.rules.Aligns) && !h.minimal(nodes.Len()):
		groups = slices.DeleteFunc(m.groupsOn(nodes), func(group nodeset.Set) bool { return !wide(group) })
		return fmt.Sprintf("%s together have room, but the %s admits no more nodes than an empty machine needs", nodes.Named(), insists),
			"a request that fewer NUMA nodes" + outside + " have free", groups
	case lawful:
		nodes = towards
	case nodes.Len() == 1:
		why = nodes.Named() + " has room, but "
	default:
		why, smaller = nodes.Named()+" together have room, but ", "a request that one NUMA node"+outside+" has free"
	}
	groups = m.groupsOn(nodes)
	if nodes.Len() == 1 {
		return fmt.Sprintf("%sonly a container that gets all of %s may join the containers there", why, groups[0].Named()), smaller, groups
	}
	used := make([]string, len(groups))
	for i, group := range groups {
		used[i] = group.Named()
	}
	return fmt.Sprintf("%scontainers use %s already: a container gets several nodes only if they are unused, or if all containers on them have exactly these nodes",
		why, strings.Join(used, " and ")), smaller, groups
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

// groupsOn are the groups in use that have a part of these nodes.
func (m *Manager) groupsOn(nodes nodeset.Set) (groups []nodeset.Set) {
	for nodes &^= m.unused; !nodes.Empty(); nodes &^= groups[len(groups)-1] {
		groups = append(groups, m.groups[nodes.First()])
	}
	return groups
}

// namedHolders bounds the containers that a rejection names for each group.
const namedHolders = 3

// holders are the containers of other pods on these groups, those with the lowest pod UIDs by name. ends is set where their end would let the
// container have what it asks for.
func (m *Manager) holders(groups []nodeset.Set, c Container) (named []Holder, ends bool) {
	if len(groups) == 0 {
		return nil, false
	}
	without := m.Clone()
	var freed []Block // all at once: a mixed group is allocated again for each release
	for _, group := range groups {
		count := 0
		for _, p := range m.pods {
			for _, other := range p.containers {
				if nodes := span(other.blocks); p.uid == c.Pod || nodes&group == 0 {
					continue
				}
				ended, there := without.take(p.uid, other.name)
				if !there {
					continue // groups overlap where one node of them was taken alone
				}
				freed = append(freed, ended...)
				if count++; count <= namedHolders {
					named = append(named, Holder{Pod: p.uid, Container: other.name, Nodes: group})
				} else {
					named[len(named)-1].More++
				}
			}
		}
	}
	without.freeBlocks(freed)
	return named, len(named) > 0 && without.admits(c)
}

// admits reports whether a container would be placed, or could grow.
func (m *Manager) admits(c Container) bool {
	if m.container(c.Pod, c.Name) != nil {
		_, err := m.Resize(c, true)
		return err == nil
	}
	_, _, refused := m.nodesFor(c)
	return refused == nil
}

// admitsLess reports whether a container would be placed if it asked for no more than a NUMA node has free.
func (m *Manager) admitsLess(c Container) bool {
	asked := c.Request
	for id := range m.all.All() {
		if m.groups[id].Len() > 1 {
			continue // what it has free is for containers on the whole group
		}
		c.Request = slices.Clone(asked)
		for i, amount := range asked {
			c.Request[i].Bytes = min(amount.Bytes, m.availability(nodeset.Of(id), c, amount).Free)
		}
		none := func(a Amount) bool { return a.Bytes == 0 }
		if !slices.ContainsFunc(c.Request, none) && m.admits(c) {
			return true
		}
	}
	return false
}
