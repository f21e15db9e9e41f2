package agent

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// reconcile is the periodic check for what events and inotify may have missed: pods that ended, limits that differ from the last update,
// claims that have passed to another pod, and cgroups that could not be written.
func (a *Agent) reconcile(ctx context.Context) {
	a.logStorage()
	var watched map[string]bool // nil in a dry run: the protector does not run
	if !a.dryRun() {
		watched = a.protector.Watched()
	}
	a.mu.Lock()
	refs, again := a.ledger.CgroupsDue(a.reconciles, watched), a.ledger.CgroupsOf(a.unread)
	living := map[string]bool{}
	for _, ref := range again {
		if a.unread[ref.Cgroup] { // not one beside it
			living[ref.Cgroup] = true
		}
	}
	a.unread, refs = living, append(refs, again...)
	a.reconciles++
	a.mu.Unlock()
	if a.checkCgroups(ctx, refs); ctx.Err() != nil {
		return
	}
	a.logNotes(a.gatherAndStep(ctx, ledger.FinishUpdate{}, nil).Notes)
	for _, dir := range a.protector.Unwritable() {
		a.step(ledger.Resend{Cgroup: dir})
	}
	a.protect(ctx)
	_ = a.restoreFiles(ctx) // failures are logged, counted and retried
	a.protector.Prune()
	a.followMachine(ctx)
}

// checkCgroups checks whether cgroups exist, and reads limits.
func (a *Agent) checkCgroups(ctx context.Context, refs []ledger.CgroupRef) {
	if len(refs) > 0 {
		a.endGone(refs)
	}
	for _, ref := range refs {
		if ref.Files && ctx.Err() == nil {
			a.readLimit(ref)
		}
	}
}

// changeDelay is how long inotify's reports are collected: the end of a container causes several, and usually an event of the runtime.
const changeDelay = 100 * time.Millisecond

// noteChanges collects inotify's reports about cgroups.
func (a *Agent) noteChanges(reported map[cgroupfs.Change]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range reported {
		if c.File != "" && !c.Limits() {
			continue
		}
		if len(a.outbox.changed) == 0 {
			a.outbox.changed = map[string]bool{}
			time.AfterFunc(changeDelay, a.poke)
		}
		a.outbox.changed[c.Cgroup] = true
	}
}

// readChanged checks the pods and containers whose cgroups inotify reported.
func (a *Agent) readChanged(ctx context.Context) {
	a.mu.Lock()
	refs := a.ledger.CgroupsOf(a.outbox.changed)
	a.outbox.changed = nil
	a.mu.Unlock()
	a.checkCgroups(ctx, refs)
}

// cgroupOf returns where a container's files are; false if it does not live or has no cgroup.
func (a *Agent) cgroupOf(id string) (ledger.CgroupRef, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.CgroupOf(id)
}

// readDueLimits reads the limits that the ledger asks for.
func (a *Agent) readDueLimits(ctx context.Context) {
	a.mu.Lock()
	refs := a.outbox.limits
	a.outbox.limits = nil
	a.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(refs)) {
		a.readLimit(refs[id])
	}
	if len(refs) > 0 {
		a.protect(ctx)
	}
}

// readLimit reads the memory.max of a container or a pod. It is the only file that shows what the runtime wrote: in all others the daemon
// restores the desired values.
func (a *Agent) readLimit(ref ledger.CgroupRef) {
	limit, err := a.tree.Limit(ref.Cgroup)
	a.mu.Lock()
	mayBeOwn := a.unread[ref.Cgroup]
	delete(a.unread, ref.Cgroup)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.unread[ref.Cgroup] = true
	}
	a.mu.Unlock()
	if err != nil {
		return
	}
	a.logNotes(a.step(ledger.Observed{UID: ref.UID, ID: ref.ID, Revision: ref.Revision, Limit: limit, Own: mayBeOwn && a.isOwn(ref.Cgroup)}).Notes)
}

// endPods ends the pods without a sandbox whose cgroups are gone, and reports whether any are left.
func (a *Agent) endPods(ctx context.Context) (left bool) {
	ending := a.ending()
	if len(ending) == 0 {
		return false
	}
	gone := a.endGone(ending)
	if gone > 0 {
		a.protect(ctx)
	}
	return gone < len(ending)
}

// ending returns the pods without a sandbox, which end with their cgroups.
func (a *Agent) ending() []ledger.CgroupRef {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Needs(nil, &ledger.Gathered{}).Ended
}

// endGone ends the pods and containers whose cgroups are gone, and returns their number.
func (a *Agent) endGone(refs []ledger.CgroupRef) (gone int) {
	presence := a.present(refs)
	a.logNotes(a.step(presence).Notes)
	return len(presence.Gone)
}

// present checks whether cgroups exist.
func (a *Agent) present(refs []ledger.CgroupRef) (presence ledger.Presence) {
	var unknown error
	for _, ref := range refs {
		switch there, err := a.tree.Exists(ref.Cgroup); {
		case err != nil:
			unknown = err
		case there:
			presence.Present = append(presence.Present, ref)
		default:
			presence.Gone = append(presence.Gone, ref)
		}
	}
	if unknown != nil {
		a.log.WithError(unknown).Debug("cgroups cannot be read: their pods and containers are kept")
	}
	return presence
}

// readFiles reads the files of a container's cgroup. Unreadable values are unknown; a missing file or cgroup is no error.
func (a *Agent) readFiles(dir string) (ledger.Files, error) {
	v, err := a.tree.Values(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	populated, unknown := a.tree.Populated(dir)
	return ledger.Files{
		Min: v.Min, Low: v.Low, High: v.High, Limit: v.Limit, Mems: v.Mems, Journaled: a.journaled(dir), Own: a.isOwn(dir), Empty: unknown == nil && !populated,
	}, err
}

// isOwn reports whether this process is in a container's cgroup. If that cannot be read, the next check tries again.
func (a *Agent) isOwn(dir string) bool {
	if own := a.ownCgroup.Load(); own != nil {
		return *own == dir
	}
	holds, err := a.tree.Holds(dir, os.Getpid())
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case holds:
		a.ownCgroup.Store(&dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		a.unread[dir] = true
	}
	return holds
}

// journaled returns the files of a cgroup that this plugin has written.
func (a *Agent) journaled(dir string) map[cgroup.Knob]bool {
	if a.journal == nil {
		return nil
	}
	return a.journal.Written(dir)
}

// observeAll reads the cgroups of pods and containers, including containers that the runtime did not list.
func (a *Agent) observeAll(needs ledger.Needs) ledger.Found {
	found := ledger.Found{
		Gone: map[string]bool{}, Seen: map[string]bool{}, PodLimits: map[string]uint64{}, Files: map[string]ledger.Files{}, Populated: map[string]bool{},
	}
	for _, ref := range needs.Listed {
		files, _ := a.readFiles(ref.Cgroup) // unreadable values are unknown
		found.Files[ref.ID], found.Seen[ref.Cgroup] = files, files.Limit != nil
	}
	for _, ref := range a.present(needs.Sandboxes).Gone {
		found.Gone[ref.ID] = true
	}
	for _, ref := range needs.Sandboxes {
		if !ref.Files {
			continue
		}
		if limit, err := a.tree.Limit(ref.Cgroup); err == nil {
			found.PodLimits[ref.ID] = limit
		}
	}
	for _, ref := range needs.Unlisted {
		if lives, err := a.tree.Populated(ref.Cgroup); err == nil && lives {
			found.Populated[ref.ID] = true
		}
	}
	return found
}
