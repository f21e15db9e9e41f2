package agent

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

const (
	// movesPerLook is how many containers one periodic look moves, one after the other.
	movesPerLook = 10
	// movePeriod is the time between two looks at the memory of a container that somebody waits for.
	movePeriod = 200 * time.Millisecond
	// journalTimeout bounds the wait for the journal before memory is moved.
	journalTimeout = 5 * time.Second
)

// sampled has the ledger decide by what the kernel shows, and reads what it asks for.
func (a *Agent) sampled(ctx context.Context, event ledger.NodeMemorySampled) ledger.Effects {
	for {
		a.mu.Lock()
		a.deficits.seen = event.Nodes
		effects := a.stepLocked(event)
		a.mu.Unlock()
		a.logNotes(effects.Notes)
		if effects.Again == nil || ctx.Err() != nil {
			return effects
		}
		event.Usage = a.measure(ctx, event.Usage, effects.Again.Measure)
	}
}

// lastSample is an event with the nodes as they were sampled last.
func (a *Agent) lastSample() (event ledger.NodeMemorySampled) {
	if sample := a.deficits.last.Load(); sample.Known() {
		event.Nodes = sample.Nodes
	}
	return event
}

// measure reads what cgroups use, and returns it with what is known of others.
func (a *Agent) measure(ctx context.Context, known map[string]ledger.Usage, cgroups []string) map[string]ledger.Usage {
	all := make(map[string]ledger.Usage, len(known)+len(cgroups))
	maps.Copy(all, known)
	for dir, counted := range a.tree.Count(ctx, cgroups...) {
		all[dir] = a.usage(dir, counted)
	}
	return all
}

func (a *Agent) usage(dir string, counted cgroupfs.Counted) ledger.Usage {
	u := ledger.Usage{Mapped: counted.Mapped}
	if err := counted.Err; err != nil {
		u.Unread, u.Gone = err.Error(), errors.Is(err, fs.ErrNotExist)
	}
	u.Mems, _ = a.tree.Mems(dir) // what cannot be read is none
	if nodes, err := a.tree.EffectiveNodes(dir); err == nil && !nodes.Empty() {
		u.Nodes = nodes
	}
	if pressure, known, err := a.tree.Pressure(dir); err == nil && known {
		u.Pressure = pressure.Full.Avg10
	}
	return u
}

// usageOfMove is that of the container whose memory is on its way; empty when there is none.
func (a *Agent) usageOfMove(ctx context.Context) map[string]ledger.Usage {
	_, dir, _ := a.moving()
	if dir == "" {
		return nil
	}
	usage := a.measure(ctx, nil, []string{dir})
	u := usage[dir]
	u.Blocked = a.Migrations()[dir].Blocked
	usage[dir] = u
	return usage
}

// moving is the move under way with its container's cgroup, and the ticket of the newest decision; nil when there is none.
func (a *Agent) moving() (*ledger.Move, string, checkpoint.Ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	move, dir := a.ledger.Moving()
	return move, dir, a.outbox.newest
}

// consolidate moves containers off groups of NUMA nodes that are not needed any more, and brings a move to its end that others have
// begun.
func (a *Agent) consolidate(ctx context.Context) {
	for range movesPerLook {
		if ctx.Err() != nil || !a.advanceMove(ctx, a.work) {
			return
		}
		a.mu.Lock()
		heeds := a.ledger.HeedsGroups(a.now())
		a.mu.Unlock()
		if !heeds {
			return
		}
		event := a.lastSample()
		event.Groups = true
		if effects := a.sampled(ctx, event); len(effects.Allocations) == 0 {
			return
		}
	}
	a.advanceMove(ctx, a.work)
}

// advanceMove carries out the next stage of the move under way, and reports whether none is under way any more. What is decided is on
// disk before cpuset.mems is written: after a crash both are as before, or the file follows. write is how the files of the levels
// above are written.
func (a *Agent) advanceMove(ctx context.Context, write func(context.Context)) bool {
	move, dir, ticket := a.moving()
	if move == nil {
		return true
	}
	if move.Stage == ledger.Allocated && !a.storeMove(ctx, move, dir, ticket) {
		return false // the next look tries again
	}
	if dir != "" {
		write(ctx)
		if move.Allocates() {
			_ = a.protector.Check(ctx, dir) // what fails is logged, counted and tried again
		}
	}
	event := a.lastSample()
	event.Usage = a.usageOfMove(ctx)
	a.sampled(ctx, event)
	move, _, _ = a.moving()
	return move == nil
}

// storeMove has the move on disk: in the state file, or in the journal where no allocation changes.
func (a *Agent) storeMove(ctx context.Context, move *ledger.Move, dir string, ticket checkpoint.Ticket) bool {
	var stored ledger.MoveStored
	if move.Allocates() {
		waiting, cancel := context.WithTimeout(ctx, slowDisk)
		defer cancel()
		if a.writer == nil || ticket.Wait(waiting) != nil && !a.allStored() {
			return false
		}
	} else if err := a.noteBefore(ctx, dir); err != nil {
		stored.Err = err.Error()
	}
	a.logNotes(a.step(stored).Notes)
	return true
}

// allStored reports whether nothing waits for the state file.
func (a *Agent) allStored() bool {
	stats := a.writer.Stats()
	return !stats.Pending && stats.LastError == ""
}

// noteBefore has the journal on disk know that a cgroup's cpuset.mems is written: nothing else on disk says that it is ours, where
// the container has no allocation.
func (a *Agent) noteBefore(ctx context.Context, path string) error {
	if a.journal == nil {
		return errors.New("there is no journal, so that rollback would not know of it")
	}
	a.journal.Note(protect.Entry{Cgroup: path, Knob: cgroup.CpusetMems})
	ctx, cancel := context.WithTimeout(ctx, journalTimeout)
	defer cancel()
	return a.journal.Flush(ctx)
}

// awaitMove waits until no move is under way; false past the deadline, and then Run goes on with it.
func (a *Agent) awaitMove(ctx context.Context) bool {
	ticker := time.NewTicker(movePeriod)
	defer ticker.Stop()
	for !a.advanceMove(ctx, a.protect) {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

// includeAll lets all containers use all nodes again before a dry run begins, which writes nothing.
func (a *Agent) includeAll(ctx context.Context) {
	view := a.View()
	effects := a.step(ledger.IncludeAll{})
	a.logNotes(effects.Notes)
	a.protect(ctx)
	for _, pod := range view.Pods {
		for i := range pod.Containers {
			if c := &pod.Containers[i]; c.KeptOff != nil {
				_ = a.protector.Check(ctx, c.Cgroup) // what fails is logged
			}
		}
	}
}
