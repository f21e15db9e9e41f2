package memorymanager

import (
	"fmt"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Reasons of an AllocationError.
var (
	// TopologyAffinityError: there is room, but not as the Topology Manager policy or the groups want it.
	TopologyAffinityError = NewReason("TopologyAffinityError")
	// NotPreferred: the pod requires its NUMA nodes, and only more nodes than needed had room.
	NotPreferred = NewReason("NotPreferred")
	// UnexpectedAdmissionError: there is no room in any set of nodes.
	UnexpectedAdmissionError = NewReason("UnexpectedAdmissionError")
	// EmptyPodSharedPoolError: containers without a request of their own would share nothing (pod-level resources).
	EmptyPodSharedPoolError = NewReason("EmptyPodSharedPoolError")
	// InvalidRequest: the request itself is wrong.
	InvalidRequest = NewReason("InvalidRequest")
	// ResizeInfeasible: a running container can not grow where it is.
	ResizeInfeasible = NewReason("ResizeInfeasible")
)

// AllocationError is the reason why a container is not placed.
type AllocationError struct {
	// Container is what asked; its Name is empty when a whole pod asked.
	Container Container
	Reason    Reason
	// Policy and Scope it was judged by.
	Policy topologymanager.Policy
	Scope  topologymanager.Scope
	// Cause in one clause.
	Cause string
	// Affinity is the merged hint when the policy admitted it, and what failed came after.
	Affinity *topologymanager.Hint
	// Nodes are what each node has of the request; empty when no node could have changed the outcome.
	Nodes []NodeAvailability
	// Holders are containers that keep this one from nodes with room, a few of each group.
	Holders []Holder
	// Helps is what would have it placed; empty where nodes have no room.
	Helps string
}

// NodeAvailability is what one node has of a request.
type NodeAvailability struct {
	Node int
	// Group is the node's group; the node alone when it is in none.
	Group        nodeset.Set
	Availability []Availability
}

// Availability is what nodes have of one type of memory that is asked for, in bytes.
type Availability struct {
	Type MemoryType
	// Allocatable is 0 where the nodes have no such memory. Free counts what the pod's init containers leave behind.
	Allocatable, Free, Needed uint64
	// More is set where Needed is beyond what the container has already.
	More bool
}

// Error is Text in one line, for the runtime's error, which becomes the pod's message. Whoever asked is named by those who have the error.
func (r *AllocationError) Error() string { return InLine(r.Text()) }

// Text is the cause, with a line for each node.
func (r *AllocationError) Text() string {
	var b strings.Builder
	if r.Container.Name == "" {
		b.WriteString("the pod's containers together, ")
	}
	fmt.Fprintf(&b, "policy %s, scope %s: %s", r.Policy, r.Scope, r.Cause)
	for i, node := range r.Nodes {
		if i == 0 {
			b.WriteString(":")
		}
		b.WriteString("\n" + node.String())
	}
	return b.String()
}

// String is the node's line in a rejection, "node 0 (group 0-1): 0 of 122.7Gi free, 130Gi needed".
func (n NodeAvailability) String() string {
	name := nodeset.Of(n.Node).Named()
	if n.Group.Len() > 1 {
		name += " (group " + n.Group.String() + ")"
	}
	available := make([]string, len(n.Availability))
	for i, r := range n.Availability {
		available[i] = r.text(len(n.Availability) > 1)
	}
	return name + ": " + strings.Join(available, ", ")
}

// String is what there is of what is needed, "hugepages-2Mi 0 of 2Gi free, 1Gi needed"; memory is named by no type.
func (r Availability) String() string { return r.text(false) }

func (r Availability) text(named bool) string {
	if r.Allocatable == 0 && r.Type != Memory {
		return "no " + string(r.Type)
	}
	sizes, of, more := quantity.Apart(r.Free, r.Allocatable, r.Needed), "", ""
	if r.Type != Memory || named {
		of = string(r.Type) + " "
	}
	if r.More {
		more = "more "
	}
	return fmt.Sprintf("%s%s of %s free, %s %sneeded", of, sizes[0], sizes[1], sizes[2], more)
}

// longestLine bounds a rejection in one line: a pod's message and its events are no place for 64 nodes.
const longestLine = 600

// InLine joins the lines of Text, as far as they are no longer together than people read.
func InLine(text string) string {
	lines := strings.Split(text, "\n")
	line := lines[0]
	for i, node := range lines[1:] {
		switch {
		case i == 0:
			line += " " + node
		case len(line)+len(node) > longestLine:
			return fmt.Sprintf("%s; and %d more", line, len(lines)-1-i)
		default:
			line += "; " + node
		}
	}
	return line
}

// String lists a request for people, "150Gi of memory, 1Gi of hugepages-1Gi".
func (r Request) String() string {
	if len(r) == 0 {
		return "nothing"
	}
	parts := make([]string, len(r))
	for i, amount := range r {
		parts[i] = quantity.Short(amount.Bytes) + " of " + string(amount.Type)
	}
	return strings.Join(parts, ", ")
}

func (m *Manager) reject(c Container, reason Reason, cause string) *AllocationError {
	c.Request = append(Request(nil), c.Request...)
	return &AllocationError{Container: c, Reason: reason, Policy: m.options.Policy, Scope: m.options.Scope, Cause: cause}
}

// refusal is why a container is not placed, before the nodes are looked at for its AllocationError.
type refusal struct {
	reason Reason
	cause  string
	// towards are the nodes that the container's CPUs, its devices or its affinity lead to.
	towards nodeset.Set
	// affinity is the merged hint when the policy admitted it.
	affinity *topologymanager.Hint
}

// rejectNodes rejects a container for what the nodes have free, which it lists, with the containers that keep it from some.
func (m *Manager) rejectNodes(c Container, why *refusal) *AllocationError {
	r := m.reject(c, why.reason, why.cause)
	r.Affinity = why.affinity
	if m.missing(c.Request) != "" {
		return r
	}
	barred, smaller, groups := m.barred(c, why.towards)
	if smaller != "" && !m.admitsLess(c) {
		smaller = ""
	}
	switch holders, ends := m.holders(groups, c); {
	case ends:
		r.Cause, r.Holders = strings.TrimSuffix(r.Cause+": "+barred, ": "), holders
		r.Helps = strings.TrimSuffix("all of these containers end, or "+smaller, ", or ")
	case barred != "" && (r.Cause == noRoom || len(groups) > 0 && len(holders) == 0): // the pod's own containers have the groups
		if where := m.misaligned(c); where != "" && r.Cause == noRoom {
			barred += ", and " + where
		}
		r.Cause, r.Helps = r.Cause+": "+barred, smaller
	}
	r.Cause = strings.TrimPrefix(r.Cause, noRoom+": ")
	for id := range m.all.All() {
		node := NodeAvailability{Node: id, Group: m.groups[id]}
		for _, amount := range c.Request {
			node.Availability = append(node.Availability, m.availability(nodeset.Of(id), c, amount))
		}
		r.Nodes = append(r.Nodes, node)
	}
	return r
}

// availability is what nodes have of an amount that a container asks for.
func (m *Manager) availability(nodes nodeset.Set, c Container, amount Amount) Availability {
	available := Availability{Type: amount.Type, Needed: amount.Bytes}
	if column := m.column(amount.Type); column != nil && nodes&column.listed != 0 {
		available.Allocatable = column.allocatableOf(nodes)
		available.Free = min(plus(column.freeOf(nodes), m.reusable(c.Pod, nodes, amount.Type)), available.Allocatable)
	}
	if existing := m.container(c.Pod, c.Name); existing != nil {
		available.Needed, available.More = minus(amount.Bytes, size(existing.blocks, span(existing.blocks), amount.Type)), true
	}
	return available
}

// missing names the type of a request that no node has; empty when there is none.
func (m *Manager) missing(request Request) string {
	for _, amount := range request {
		if m.column(amount.Type) == nil {
			return "no NUMA node has " + string(amount.Type)
		}
	}
	return ""
}

// why says what keeps a container from living on exactly these nodes; empty when nothing does.
func (m *Manager) why(nodes nodeset.Set, c Container) string {
	full := ""
	for _, amount := range c.Request {
		available := m.availability(nodes, c, amount)
		if available.Allocatable < amount.Bytes || available.Allocatable == 0 {
			return available.String()
		}
		if full == "" && available.Free < amount.Bytes {
			full = available.String()
		}
	}
	if !nodes.SubsetOf(m.unused) && !m.isGroup(nodes) {
		if nodes.Len() == 1 {
			return fmt.Sprintf("is in the group %s", m.groups[nodes.First()])
		}
		return "cuts through a group, or joins nodes in use"
	}
	return full
}

// misaligned says where a container's CPUs and devices are.
func (m *Manager) misaligned(c Container) string {
	var where []string
	if cpus, _ := m.near(c.CPUs, false); !cpus.Empty() {
		where = append(where, "its exclusive CPUs are on "+m.named(c.CPUs))
	}
	for _, device := range topologymanager.Join(c.Devices) {
		if !m.onMap(device).Nodes.Empty() {
			where = append(where, "its device "+m.describe(device))
		}
	}
	return strings.Join(where, ", ")
}

// awayFromDevices says what keeps a container from its devices; empty when they are not the reason.
func (m *Manager) awayFromDevices(c Container, h *hints) string {
	in := m.providers(c)
	aligned := m.aligned(c, in)
	if len(aligned.Devices) == 0 {
		return ""
	}
	if aligned.CPUs.Empty() {
		in.CPUs, c.CPUs = 0, 0
	}
	if !in.Agree() {
		return m.misaligned(c) + ": not the same NUMA nodes"
	}
	for _, where := range topologymanager.Join(c.Devices) {
		device, text := m.onMap(where), "its device "+m.describe(where)
		wide := !device.Any && device.Nodes.Len() > 1
		switch missing := m.why(device.Nodes, c); {
		case device.Nodes.Empty():
		case missing != "":
			return text + ": " + missing
		case wide && m.rules.OneNode:
			return text + ", more than the policy admits"
		case wide && !h.minimal(device.Nodes.Len()):
			return text + ", although fewer nodes would hold the request"
		}
	}
	return ""
}

// unpreferred says why the policy turns down hints that exist.
func (m *Manager) unpreferred(c Container, h *hints) string {
	nodes := h.narrow()
	switch {
	case nodes.Empty():
		return noRoom
	case m.tooWide(c, h):
		return m.wayOut(c)
	case m.awayFromDevices(c, h) != "":
		return m.awayFromDevices(c, h)
	case m.rules.OneNode && nodes.Len() > 1:
		return fmt.Sprintf("only nodes %s together have room, not one by itself", nodes)
	case !h.minimal(nodes.Len()):
		return fmt.Sprintf("only nodes %s together have room, although fewer nodes would hold the request if they were free", nodes)
	}
	return fmt.Sprintf("there is room on %s, but %s", nodes.Named(), m.misaligned(c))
}
