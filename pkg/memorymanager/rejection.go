package memorymanager

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Reasons of a Rejection, a bounded set for metrics.
const (
	// TopologyAffinityError: there is room, but not as the Topology Manager policy or the groups want it.
	TopologyAffinityError = "TopologyAffinityError"
	// UnexpectedAdmissionError: there is no room in any set of nodes.
	UnexpectedAdmissionError = "UnexpectedAdmissionError"
	// EmptyPodSharedPoolError: containers without a request of their own would share nothing (pod-level resources).
	EmptyPodSharedPoolError = "EmptyPodSharedPoolError"
	// InvalidRequest: the request itself is wrong.
	InvalidRequest = "InvalidRequest"
	// ResizeInfeasible: a running container can not grow where it is.
	ResizeInfeasible = "ResizeInfeasible"
)

// Rejection is the reason why a container is not placed.
type Rejection struct {
	// Container is what asked; its Name is empty when a whole pod asked.
	Container Container
	// Policy and Scope it was judged by.
	Policy topologymanager.Policy
	Scope  topologymanager.Scope
	// Cause in one clause.
	Cause string
	// Affinity is the merged hint when the policy admitted it, and what failed came after.
	Affinity *topologymanager.Hint
	// Nodes says per node why it did not do.
	Nodes []NodeReason

	reason string
}

// NodeReason is one node's part in a rejection.
type NodeReason struct {
	Node int
	// Group is the node's group; the node alone when it is in none.
	Group nodeset.Set
	// Memory has the tables of the requested types.
	Memory []TypeTable
	// Why it did not do by itself.
	Why string
}

// Reason is one of the constants above.
func (r *Rejection) Reason() string { return r.reason }

// Error is the text for the runtime's error, the pod's events and the log, in one line. Whoever asked is named by those, which
// know the pod's name.
func (r *Rejection) Error() string { return strings.ReplaceAll(r.Text(), "\n", " ") }

// Text is the same with a line for each node, for status and explain.
func (r *Rejection) Text() string {
	who := "it asks"
	if r.Container.Name == "" {
		who = "the pod's containers ask together"
	}
	text := fmt.Sprintf("%s for %s; policy %s, scope %s: %s", who, r.Container.Request, r.Policy, r.Scope, r.Cause)
	for i, node := range r.Nodes {
		text += []string{":", ";"}[min(i, 1)] + fmt.Sprintf("\nnode %d (group %s)", node.Node, node.Group)
		for _, table := range node.Memory {
			text += fmt.Sprintf(" %s allocatable %d free %d,", table.Type, table.Allocatable, table.Free)
		}
		text += " " + node.Why
	}
	return text
}

// String lists the request with exact bytes, "memory 161061273600 (150Gi)".
func (r Request) String() string {
	var parts []string
	for _, amount := range r {
		text := strconv.FormatUint(amount.Bytes, 10)
		if short := quantity.Format(amount.Bytes); short != text {
			text += " (" + short + ")"
		}
		parts = append(parts, string(amount.Type)+" "+text)
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func (m *Manager) reject(c Container, reason, cause string) *Rejection {
	c.Request = append(Request(nil), c.Request...)
	r := &Rejection{Container: c, Policy: m.policy, Scope: m.scope, Cause: cause, reason: reason}
	for id := range m.all.All() {
		node := NodeReason{Node: id, Group: m.groups[id], Why: m.why(nodeset.Of(id), c)}
		if node.Why == "" {
			node.Why = "has room"
		}
		for _, amount := range c.Request {
			if column := m.column(amount.Type); column != nil {
				node.Memory = append(node.Memory, TypeTable{Type: amount.Type, Table: column.table(id)})
			}
		}
		r.Nodes = append(r.Nodes, node)
	}
	return r
}

// why says what keeps a container from living on exactly these nodes; empty when nothing does.
func (m *Manager) why(nodes nodeset.Set, c Container) string {
	for _, amount := range c.Request {
		column := m.column(amount.Type)
		if column == nil || nodes&column.listed == 0 {
			return fmt.Sprintf("has no %s", amount.Type)
		}
		if has := column.allocatableOf(nodes); has < amount.Bytes {
			return fmt.Sprintf("too small: %s allocatable %d < %d", amount.Type, has, amount.Bytes)
		}
	}
	if !nodes.SubsetOf(m.unused) && m.groups[nodes.First()] != nodes {
		if nodes.Len() == 1 {
			return fmt.Sprintf("is in the group %s", m.groups[nodes.First()])
		}
		return "cuts through a group, or joins nodes in use"
	}
	for _, amount := range c.Request {
		free := m.column(amount.Type).freeOf(nodes)
		if free < amount.Bytes && free+m.reusable(c.Pod, nodes, amount.Type) < amount.Bytes {
			return fmt.Sprintf("too full: %s free %d < %d", amount.Type, free, amount.Bytes)
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
	case m.rules.OneNode && nodes.Len() > 1:
		return fmt.Sprintf("only nodes %s together have room, not one by itself", nodes)
	case !h.minimal(nodes.Len()):
		return fmt.Sprintf("only nodes %s together have room, although fewer nodes would hold the request if they were free", nodes)
	}
	return fmt.Sprintf("there is room on %s, but not with the container's CPUs", nodes.Named())
}
