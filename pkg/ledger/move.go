package ledger

import (
	"fmt"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Everything that changes the NUMA nodes of memory in use is a Move, and there is one at a time:
//
//	proposed    why it should be made follows from the state and a sample; the gates are asked (move_gates.go)
//	allocated   it is decided, and on its way to the disk; the container has the cpuset.mems that it had
//	written     it is on disk, and its cpuset.mems is desired; the kernel moves the pages
//	done        its pages were seen on the new nodes, or incomplete where some were not in time
//
// What a gate keeps where it is stands in NotMoved, with the reason.

// MoveReason is why memory is moved.
type MoveReason int

// The reasons of moves, in the order in which they are looked at.
const (
	// Admission makes room for a new container.
	Admission MoveReason = iota
	// Deficit takes memory off nodes that are overcommitted.
	Deficit
	// Consolidation ends a group of nodes that is not needed any more.
	Consolidation
	// Resumption is none of its own: the move was under way when the plugin ended.
	Resumption
)

// reasons say what a move for a reason does. One that allocates changes where a container has its allocation; the others keep
// one without an allocation off nodes.
var reasons = [...]struct {
	name      string
	allocates bool
}{
	Admission:     {"admission", true},
	Deficit:       {"deficit", false},
	Consolidation: {"consolidation", true},
	Resumption:    {"resumption", true},
}

// String is the reason's name.
func (r MoveReason) String() string { return reasons[r].name }

// MoveStage is how far a move is.
type MoveStage int

// The stages of a move that is under way.
const (
	Allocated MoveStage = iota
	Written
)

// Move is a container whose memory is on its way to other nodes.
type Move struct {
	// UID is its pod's Key, ID the container's.
	UID, Container, ID string
	Reason             MoveReason
	// From and To are the cpuset.mems before and after.
	From, To nodeset.Set
	// Why is the rest of a sentence that begins with its move.
	Why string
	// Bytes are what the kernel had to move when it was decided.
	Bytes uint64
	Stage MoveStage
	// Since is the beginning of the stage.
	Since time.Time
}

// Allocates reports whether the move is one of the allocation, which the state file has. Another one is in the journal only.
func (m *Move) Allocates() bool { return reasons[m.Reason].allocates }

// moveResult is how a move ended, an index of MoveResults.
type moveResult int

const (
	// moveDone: the container's memory is on its new nodes.
	moveDone moveResult = iota
	// moveIncomplete: some of it stays on others.
	moveIncomplete
)

// MoveResults are the results of moves, for metrics.
var MoveResults = [...]string{moveDone: "done", moveIncomplete: "incomplete"}

const (
	// moveTakes is how long a container's memory may take to its new nodes before the next one is moved.
	moveTakes = time.Minute
	// staysBehind is how many bytes may stay on other nodes: the kernel moves no page that is pinned, or that others have mapped.
	staysBehind = 4 << 20
)

// begin begins a move that all gates let pass. It returns false where the memory manager does not.
func (l *Ledger) begin(m *candidate) bool {
	c, move := m.c, m.Move
	move.Since = l.step.now
	if !move.Allocates() {
		l.state.Move = &move
		return true
	}
	blocks := l.manager.Blocks(move.UID, c.Name)
	if !l.manager.Move(move.UID, c.Name, move.To) {
		return false
	}
	c.MovedTo = move.To
	c.Moved = fmt.Sprintf("moved from %s: %s", move.From.Named(), move.Why)
	l.hasChanged(c.pod)
	if !c.alive() { // its next start finds its nodes
		c.Nodes = move.To
		l.state.Counters.moved(moveDone)
		return true
	}
	l.state.Move, l.state.Leaving = &move, blocks
	l.leave()
	l.note(Info, "moving the memory of a container to other NUMA nodes", l.moveFields(c, &move, move.Bytes), nil)
	return true
}

// leave has the manager allocate nobody what the pages of a move have not left yet.
func (l *Ledger) leave() {
	switch {
	case l.manager == nil:
	case l.state.Move == nil:
		l.manager.Leave(0, nil)
	default:
		l.manager.Leave(l.state.Move.From.Minus(l.state.Move.To), l.state.Leaving)
	}
}

// MoveStored is the move under way that is on disk: from now on its container has the cpuset.mems of it. Err is why the journal cannot
// store it, and the move is not made; a state file is tried until it does.
type MoveStored struct{ Err string }

func (e MoveStored) apply(l *Ledger) {
	move := l.state.Move
	if move == nil || move.Stage != Allocated {
		return
	}
	c := l.containers[move.ID]
	if e.Err != "" {
		if c != nil {
			l.keepWhereItIs(move.Reason, []NotMoved{l.notMovedOf(move.Reason, c, "storage", e.Err)})
		}
		l.endMove()
		return
	}
	move.Stage, move.Since = Written, l.step.now
	switch {
	case c == nil || l.manager == nil:
	case !move.Allocates():
		if !l.exclude(c, l.allNodes.Minus(move.To), move.Bytes) {
			l.endMove()
		}
	case len(c.PendingResize) == 0:
		l.hasChanged(c.pod)
		c.Nodes = nodesOf(l.manager.Blocks(c.pod.key(), c.Name))
	}
}

// storedNodes are the nodes of a container with an allocation on nodes: those that it had until a move is on disk.
func (l *Ledger) storedNodes(c *container, nodes nodeset.Set) nodeset.Set {
	if l.state.Move != nil && l.state.Move.ID == c.ID && l.state.Move.Stage == Allocated && nodes == l.state.Move.To {
		return l.state.Move.From
	}
	return nodes
}

// resumeMove goes on with the move of an earlier run: its container is found with other nodes than it is allocated on, so that its pages
// are still to leave them.
func (l *Ledger) resumeMove(taken []*container) {
	config := l.state.Resolved.Config
	if l.state.Move != nil || !config.Rebalance.Consolidate || config.DryRun() || l.state.MemoryOnly || l.manager == nil || !l.manager.Movable() {
		return
	}
	for _, c := range inOrder(taken) {
		blocks := l.manager.Blocks(c.pod.key(), c.Name)
		from, err := nodeset.Parse(c.FoundMems)
		m := candidate{l: l, c: c, now: l.step.now, Move: Move{
			UID: c.pod.key(), Container: c.Name, ID: c.ID, Reason: Resumption, From: from.Intersect(l.allNodes), To: nodesOf(blocks),
			Why: "it was on its way when the plugin ended", Stage: Written, Since: l.step.now,
		}}
		if _, blocked := m.blocked(standing); blocked || err != nil || m.From.Empty() || blocks == nil || m.From == m.To || c.Nodes != m.To {
			continue
		}
		l.state.Move, l.state.Leaving = &m.Move, blocks
		l.leave()
		return
	}
}

// observeMove ends the move under way where its memory has arrived, or has had its time.
func (l *Ledger) observeMove(usage map[string]Usage) {
	move := l.state.Move
	if move == nil || move.Stage != Written || l.state.Resolved.Config.DryRun() {
		return
	}
	c := l.containers[move.ID]
	if c == nil {
		l.endMove()
		return
	}
	used, measured := usage[c.Cgroup]
	known := measured && used.Unread == ""
	elsewhere := used.elsewhere(move.To)
	switch {
	case known && elsewhere <= staysBehind:
		if move.Allocates() {
			l.state.Counters.moved(moveDone)
			l.note(Info, "the memory of a container is on its new NUMA nodes", l.moveFields(c, move, elsewhere), nil)
		}
	case measured && used.Blocked && !move.Allocates(): // nothing is written until it would move less
	case l.step.now.Sub(move.Since) < moveTakes:
		return
	default:
		if move.Allocates() {
			l.state.Counters.moved(moveIncomplete)
		}
		l.note(Warn, "not all memory of a container is on its new NUMA nodes", l.moveFields(c, move, elsewhere), nil)
	}
	l.endMove()
}

// endMove has nothing under way, and what the move has left may be allocated.
func (l *Ledger) endMove() {
	l.state.Move, l.state.Leaving = nil, nil
	l.leave()
}

func (l *Ledger) moveFields(c *container, m *Move, bytes uint64) map[string]any {
	return with(with(with(l.fields(c), "to", m.To.String()), "why", m.Why), "bytes", quantity.Log(bytes))
}

// Moving is the move under way and its container's cgroup; nil when there is none, and in a dry run, which leaves it where it is.
func (l *Ledger) Moving() (move *Move, cgroup string) {
	if l.state.Move == nil || l.state.Resolved.Config.DryRun() {
		return nil, ""
	}
	if c := l.containers[l.state.Move.ID]; c != nil {
		cgroup = c.Cgroup
	}
	copied := *l.state.Move
	return &copied, cgroup
}

// howPinned is how a container got its nodes, and why it is on others since.
func (c *container) howPinned(blocks []memorymanager.Block) string {
	if c.Moved == "" || nodesOf(blocks) != c.MovedTo {
		return c.Pinning
	}
	return strings.TrimPrefix(c.Pinning+", "+c.Moved, ", ")
}

func (c *Counters) moved(result moveResult) { c.Moves[MoveResults[result]]++ }
