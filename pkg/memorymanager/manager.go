package memorymanager

import (
	"errors"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Manager keeps the node map and the bookings. It is not safe for concurrent use: its owner holds one lock.
type Manager struct{}

var errNotBuilt = errors.New("not built yet")

// New returns a manager of the given nodes without bookings. It refuses node ids that are out of range or there twice,
// and a node whose reservation and huge page pools together exceed its memory.
func New(nodes []NodeCapacity, opts Options) (*Manager, error) { return nil, errNotBuilt }

// Admit places and books a container. A container that has blocks keeps them. The error is a *Rejection and leaves the
// state as it was.
func (m *Manager) Admit(c Container) (Placement, error) { return Placement{}, errNotBuilt }

// AdmitPod decides the affinity of a whole pod (scope pod); the Admit calls of its containers then use it.
// The containers are in pod order, init containers first. cpus are the NUMA nodes of the pod's exclusive CPUs.
// Without AdmitPod, Admit aligns each container by itself. The error is a *Rejection.
func (m *Manager) AdmitPod(pod string, containers []Container, cpus nodeset.Set) (topologymanager.Hint, error) {
	return topologymanager.Hint{}, errNotBuilt
}

// Release ends a container's booking; false when there was none.
func (m *Manager) Release(pod, container string) bool { return false }

// ReleasePod ends all bookings of a pod and forgets its affinity; false when there were no bookings.
func (m *Manager) ReleasePod(pod string) bool { return false }

// Resize changes the request of a running container: less frees, more grows in place, else, when mayMove is set, onto a
// superset of its nodes that keeps the group rules. The error is a *Rejection and leaves the booking as it was.
func (m *Manager) Resize(c Container, mayMove bool) (Placement, error) {
	return Placement{}, errNotBuilt
}

// Adopt books a running container that was found on these nodes (its cpuset.mems) as it is. What does not fit is booked
// all the same and reported in Overcommitted. The error is for nodes that this machine does not have.
func (m *Manager) Adopt(pod, container string, request Request, nodes nodeset.Set) (Placement, error) {
	return Placement{}, errNotBuilt
}

// DefaultTolerance is how far a node's memory may move between two starts without a word, in bytes.
const DefaultTolerance = 64 << 20

// RestoreReport says what became of a stored state.
type RestoreReport struct {
	// Restored counts the entries that are booked again.
	Restored int
	// Drifted lists the nodes whose memory differs from the stored state.
	Drifted []Drift
	// Lost lists what running containers have booked beyond what their nodes now have.
	Lost []NodeShortage
	// Vanished are nodes of entries that this machine no longer has.
	Vanished nodeset.Set
	// Problems are one line each, about entries or nodes that were not as they should be.
	Problems []string
}

// Drift is a change of a node's memory of one type since the state was stored.
type Drift struct {
	Node int
	Type MemoryType
	// Stored and Now are allocatable bytes.
	Stored, Now uint64
	// Tolerated is set when the difference is within the tolerance.
	Tolerated bool
}

// Restore takes over the entries of a stored state, replacing all bookings. tolerance is in bytes per node.
// Running containers keep their nodes whatever the machine has become; the report says what no longer fits.
// The error is for a state that contradicts itself; the manager is then as it was.
func (m *Manager) Restore(s State, tolerance uint64) (RestoreReport, error) {
	return RestoreReport{}, errNotBuilt
}

// State returns a deep copy of nodes and bookings.
func (m *Manager) State() State { return State{} }

// Nodes returns the node map, by id.
func (m *Manager) Nodes() []NodeState { return nil }

// Generation changes with every change of the state.
func (m *Manager) Generation() uint64 { return 0 }

// Blocks returns a container's bookings sorted by type; nil when it has none. PerNode is left out.
func (m *Manager) Blocks(pod, container string) []Block { return nil }

// Bounded counts the decisions that ran into the search budget.
func (m *Manager) Bounded() uint64 { return 0 }
