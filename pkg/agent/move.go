package agent

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

const (
	// movesPerLook is how many containers one periodic look moves, one after the other.
	movesPerLook = 10
	// movesRead is how many containers' pages are counted at one periodic look, so that its cost does not grow with the node.
	movesRead = 100
)

// dissolveGroups moves containers off groups of NUMA nodes that are not needed any more. The next one begins once the memory of the
// former was observed on its node, or it is known that some of it stays.
func (a *Agent) dissolveGroups(ctx context.Context) {
	if a.writer == nil { // an allocation is on disk before its container moves
		return
	}
	for range movesPerLook {
		if ctx.Err() != nil || !a.finishMove(ctx, a.work) || !a.beginMove() {
			return
		}
	}
	a.finishMove(ctx, a.work)
}

// beginMove begins the first move of a group whose containers may all be moved, and reports whether there was one. Those that may
// not are named: with them the group stays.
func (a *Agent) beginMove() bool {
	a.mu.Lock()
	groups, generation := a.ledger.GroupMoves(a.now()), a.ledger.Generation()
	a.mu.Unlock()
	count := 0
	for _, moves := range groups {
		if count += len(moves); count > movesRead {
			return false
		}
		events, counted := a.count(moves)
		if !counted {
			continue
		}
		a.mu.Lock()
		if a.ledger.Generation() != generation { // the next look decides by what there is then
			a.mu.Unlock()
			return false
		}
		most, begins := a.ledger.Config().Config.Migration.Most(), true
		var notes []ledger.Note
		for _, e := range events {
			if e.Bytes > most {
				begins = false
				notes = append(notes, a.stepLocked(e).Notes...)
			}
		}
		if begins {
			notes = a.stepLocked(events[0]).Notes
		}
		began := begins && a.ledger.Generation() != generation
		generation = a.ledger.Generation()
		a.mu.Unlock()
		a.logNotes(notes)
		if began {
			return true
		}
	}
	return false
}

// count counts what the kernel has to move for each of the moves; false where that cannot be known, or the kernel has no room for it,
// and nothing is moved.
func (a *Agent) count(moves []ledger.Move) (events []ledger.MoveContainer, counted bool) {
	for _, move := range moves {
		e := ledger.MoveContainer{Move: move}
		if move.Cgroup != "" {
			mapped, err := a.tree.Mapped(move.Cgroup)
			if err != nil {
				a.log.WithError(err).WithField("cgroup", move.Cgroup).Debug("a container is not moved whose memory cannot be counted")
				return nil, false
			}
			if e.Bytes = mapped.Migration(move.To).Bytes; !a.roomFor(e.Bytes, move.To) {
				a.log.WithFields(logrus.Fields{"cgroup": move.Cgroup, "to": move.To, "bytes": e.Bytes}).Debug("a container is not moved to nodes without free memory")
				return nil, false
			}
		}
		events = append(events, e)
	}
	return events, true
}

// roomFor reports whether the kernel has so many bytes on the nodes, as far as that is known: what others have taken there is in no
// node map.
func (a *Agent) roomFor(bytes uint64, nodes nodeset.Set) bool {
	sample := a.coverage.last.Load()
	if !sample.Known() {
		return true
	}
	var room uint64
	for _, node := range sample.Nodes {
		if nodes.Has(node.ID) {
			room += node.Cover()
		}
	}
	return room >= bytes
}

// finishMove brings the container on its way to its nodes, and reports whether none is on its way any more. Its allocation is on
// disk before its cpuset.mems is written: after a crash both are as before, or the file follows the allocation. write is how the
// files of the levels above are written.
func (a *Agent) finishMove(ctx context.Context, write func(context.Context)) bool {
	a.mu.Lock()
	cgroup, to, stored, moving := a.ledger.Moving()
	ticket := a.outbox.newest
	a.mu.Unlock()
	if !moving {
		return true
	}
	if !stored {
		waiting, cancel := context.WithTimeout(ctx, slowDisk)
		defer cancel()
		if a.writer == nil || ticket.Wait(waiting) != nil && !a.allStored() {
			return false // the next look tries again
		}
		a.step(ledger.MoveStored{})
	}
	if cgroup != "" {
		write(ctx)
		_ = a.protector.Check(ctx, cgroup) // what fails is logged, counted and tried again
	}
	a.logNotes(a.step(ledger.MoveObserved{Elsewhere: a.elsewhere(cgroup, to)}).Notes)
	a.mu.Lock()
	defer a.mu.Unlock()
	_, _, _, moving = a.ledger.Moving()
	return !moving
}

// allStored reports whether nothing waits for the state file.
func (a *Agent) allStored() bool {
	stats := a.writer.Stats()
	return !stats.Pending && stats.LastError == ""
}

// elsewhere is what a container has on other nodes than these, of what the kernel can move; nil where that cannot be counted.
func (a *Agent) elsewhere(cgroup string, nodes nodeset.Set) *uint64 {
	mapped, err := a.tree.Mapped(cgroup)
	if err != nil {
		return nil
	}
	var bytes uint64
	for node, on := range mapped.Bytes {
		if !nodes.Has(node) {
			bytes += on
		}
	}
	return &bytes
}

// relieve makes moves that make room for a container that is about to be created, one after the other: all of them, or none where
// one would move too much. What is not done in time is done by Run, and the kubelet's next try finds the room.
func (a *Agent) relieve(ctx context.Context, moves []ledger.Move) {
	events, counted := a.count(moves)
	if !counted || a.writer == nil {
		return
	}
	a.mu.Lock()
	most := a.ledger.Config().Config.Migration.Most()
	a.mu.Unlock()
	for _, e := range events {
		if e.Bytes > most {
			return
		}
	}
	for _, e := range events {
		a.logNotes(a.step(e).Notes)
		if !a.finishMove(ctx, a.protect) {
			return
		}
	}
}
