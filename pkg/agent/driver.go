package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// outbox holds effects of Steps that are still to be carried out. A newer effect replaces older ones about the same thing.
type outbox struct {
	targets map[string]cgroup.Target    // changed targets
	ended   []string                    // cgroups that are no longer targets
	all     bool                        // pass all targets, not only the changed ones
	seen    map[string]cgroup.Seen      // values just read from containers' files, by cgroup; for the next pass of all
	sync    map[string]bool             // containers whose record in the runtime may be outdated
	limits  map[string]ledger.CgroupRef // containers whose memory.max must be read, by ID
	changed map[string]bool             // cgroups that inotify reported: their limit was written, or they were created or removed
	unasked []pods.Ref                  // pods that the pod APIs were not asked about yet
	tickets map[string]checkpoint.Ticket
	newest  checkpoint.Ticket // of all decisions that are being written
}

// step applies an event to the ledger.
func (a *Agent) step(event ledger.Event) ledger.Effects {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stepLocked(event)
}

// stepLocked applies an event and hands over those effects that must keep the order of the events. The caller holds the lock.
func (a *Agent) stepLocked(event ledger.Event) ledger.Effects {
	now := a.now()
	effects := a.ledger.Step(now, event)
	if a.recorder != nil {
		a.recorder.Record(now, a.ledger, event, effects)
	}
	if a.writer != nil {
		a.submitAll(effects.Allocations)
	}
	a.outbox.post(effects.Desired, effects.Later)
	if a.journal != nil {
		for _, dir := range effects.Removed {
			a.journal.End(dir)
		}
		a.noteInJournal(effects)
	}
	for _, ref := range effects.Forget {
		a.requests.Forget(ref)
	}
	if effects.HighChanged {
		signal(a.highChanged)
	}
	if !effects.ViewStays {
		a.viewStale = true
		signal(a.viewChanged)
	}
	if len(effects.Sync) > 0 { // the other effects are up to the caller
		a.poke()
	}
	return effects
}

// submitAll passes the changes of one Step to the writer of the state file. If all are about pods that are gone, they may wait for the next
// write. Otherwise none waits, because the node map of a Step includes all of its changes.
func (a *Agent) submitAll(deltas []ledger.Delta) {
	released := !slices.ContainsFunc(deltas, func(d ledger.Delta) bool { return d.State != nil || !d.Allocations.Empty() })
	for _, delta := range deltas {
		if released {
			a.writer.Release(delta.Nodes, delta.Allocations.Pod)
			delete(a.outbox.tickets, delta.Allocations.Pod)
		} else {
			a.submit(delta)
		}
	}
}

// submit passes a change of the allocations to the writer of the state file. A pod's ticket is kept while the pod has allocations, so that a
// second try of a create waits for the decision of the first.
func (a *Agent) submit(delta ledger.Delta) {
	o := &a.outbox
	if o.tickets == nil {
		o.tickets = map[string]checkpoint.Ticket{}
	}
	entries := delta.Allocations.Entries
	if delta.State != nil {
		o.newest, entries = a.writer.Replace(*delta.State), delta.State.Entries
	} else {
		o.newest = a.writer.Submit(delta.Nodes, delta.Allocations)
	}
	for _, pod := range delta.Pods {
		o.tickets[pod] = o.newest
	}
	allocated := make(map[string]bool, len(entries))
	for _, entry := range entries {
		allocated[entry.Pod] = true
	}
	if delta.State != nil {
		maps.DeleteFunc(o.tickets, func(pod string, _ checkpoint.Ticket) bool { return !allocated[pod] })
	} else if !allocated[delta.Pods[0]] {
		delete(o.tickets, delta.Pods[0])
	}
}

// post collects the effects that protect and Run carry out.
func (o *outbox) post(desired ledger.Desired, later ledger.Later) {
	if desired.AllFiles {
		o.all, o.targets, o.ended = true, nil, nil
	}
	if o.targets == nil {
		o.targets = map[string]cgroup.Target{}
	}
	for _, cgroup := range desired.Ended {
		delete(o.targets, cgroup)
		o.ended = append(o.ended, cgroup)
	}
	for _, target := range desired.Files {
		o.targets[target.Cgroup] = target
	}
	if o.sync == nil {
		o.sync = map[string]bool{}
	}
	if o.limits == nil {
		o.limits = map[string]ledger.CgroupRef{}
	}
	for _, id := range later.Sync {
		o.sync[id] = true
	}
	for _, ref := range later.ReadLimits {
		o.limits[ref.ID] = ref
	}
}

// noteInJournal adds container files to the journal before the runtime writes them.
func (a *Agent) noteInJournal(effects ledger.Effects) {
	for _, w := range effects.Journal {
		for file := range w.Adjustment.Unified {
			a.journal.Note(protect.Entry{Cgroup: w.Cgroup, Knob: cgroup.Knob(file), Restore: w.Asked[file]})
		}
		if w.Adjustment.CpusetMems != "" {
			a.journal.Note(protect.Entry{Cgroup: w.Cgroup, Knob: cgroup.CpusetMems})
		}
		if len(w.Wanted) > 0 {
			a.journal.SetRestore(w.Cgroup, w.Wanted)
		}
	}
}

// saveJournal waits until the journal's file has the notes, before the runtime gets the answer. A failure stops no container.
func (a *Agent) saveJournal(ctx context.Context) {
	if a.journal != nil && a.journal.Wait(ctx) != nil {
		a.logStorage()
	}
}

// slowDisk is how long a write may take before the file counts as failing.
const slowDisk = 10 * time.Second

// hangingWait is how long a decision waits for a disk that hangs.
const hangingWait = 50 * time.Millisecond

// waitStored waits until the state file has a decision. A failing disk degrades readiness but does not stop the container. A slow disk has
// half of the time that the runtime waits. Under the failure policy Fail it has all of the time, and the container is not created before
// its decision is stored: the kubelet's next try finds the decision. A disk that hangs counts as failing after slowDisk.
func (a *Agent) waitStored(ctx context.Context, ticket checkpoint.Ticket) error {
	if a.writer == nil {
		return nil
	}
	waiting, cancel := ctx, func() {}
	switch deadline, ok := ctx.Deadline(); {
	case a.hanging(a.writer.Stats()):
		waiting, cancel = context.WithTimeout(ctx, hangingWait)
	case !ok: // the agent's own work, which must go on
		waiting, cancel = context.WithTimeout(ctx, slowDisk)
	case a.config().FailurePolicy == config.Ignore:
		waiting, cancel = context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/2))
	}
	defer cancel()
	err := ticket.Wait(waiting)
	if err != nil && waiting.Err() != nil {
		a.counters.late.Add(1)
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("the state file was not written in time (a slow disk?), the decision is kept for the next try: %w", err)
	}
	if err != nil {
		a.logStorage()
	}
	return nil
}

// logDecision logs the decision about a container in one line.
func (a *Agent) logDecision(event string, effects ledger.Effects, err error, took time.Duration) {
	if effects.Decision == nil {
		return
	}
	fields := effects.Decision.Fields() // one map: logrus copies all fields for each added one
	fields["duration"] = took
	if effects.DryRun {
		fields["dryRun"] = true
	}
	if err != nil {
		a.log.WithFields(fields).WithError(err).Warn(event + ": refused")
		return
	}
	a.log.WithFields(fields).Info(event)
}

var levels = map[ledger.Level]logrus.Level{
	ledger.Debug: logrus.DebugLevel, ledger.Info: logrus.InfoLevel, ledger.Warn: logrus.WarnLevel, ledger.Error: logrus.ErrorLevel,
}

// logNotes logs the notes of the ledger.
func (a *Agent) logNotes(notes []ledger.Note) {
	for _, note := range notes {
		log := a.log.WithFields(note.Fields)
		if note.Err != nil {
			log = log.WithError(note.Err)
		}
		log.Log(levels[note.Level], note.Text)
	}
}
