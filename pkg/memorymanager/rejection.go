package memorymanager

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Rejection is the reason why a container is not placed.
type Rejection struct {
	// Container is what asked.
	Container Container
	// Policy and Scope it was judged by.
	Policy topologymanager.Policy
	Scope  topologymanager.Scope
	// Cause in one clause.
	Cause string
	// Nodes says per node why it did not do.
	Nodes []NodeReason

	reason string
}

// NodeReason is one node's part in a rejection.
type NodeReason struct {
	Node int
	// Group is the node's group; the node alone when it is in none.
	Group nodeset.Set
	// Memory has the allocatable and free bytes of the requested types.
	Memory []TypeTable
	// Why it did not do.
	Why string
}

// Reasons of a Rejection, a bounded set for metrics.
const (
	// TopologyAffinityError: there is room, but not as the Topology Manager policy wants it.
	TopologyAffinityError = "TopologyAffinityError"
	// UnexpectedAdmissionError: there is no room in any set of nodes.
	UnexpectedAdmissionError = "UnexpectedAdmissionError"
	// InvalidRequest: the request itself is wrong.
	InvalidRequest = "InvalidRequest"
	// ResizeInfeasible: a running container can not grow where it is.
	ResizeInfeasible = "ResizeInfeasible"
)

// Error is the text for the pod's events, the log and explain.
func (r *Rejection) Error() string { return r.Cause }

// Reason is one of the constants above.
func (r *Rejection) Reason() string { return r.reason }

// Explanation is how a container would be placed now.
type Explanation struct {
	// Placement is the outcome; Err the rejection instead.
	Placement Placement
	Err       error
	// Candidates are the sets of nodes that were considered, best first, a bounded number.
	Candidates []Candidate
	// Omitted counts candidates beyond the bound; -1 when their number is not known.
	Omitted int
}

// Candidate is one set of nodes.
type Candidate struct {
	Nodes nodeset.Set
	// Preferred as in the Topology Manager's hints.
	Preferred bool
	// Chosen is set for the one that was taken.
	Chosen bool
	// Why it was not taken; empty when it was.
	Why string
}

// Explain says how a container would be placed, and why not elsewhere, without booking anything.
func (m *Manager) Explain(c Container) Explanation { return Explanation{Err: errNotBuilt} }
