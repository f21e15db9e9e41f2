package agent

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// podsPerLook is how many pods have their containers' files read at one periodic look, so that its cost does not grow with
// the node.
const podsPerLook = 50

// reconcile is the periodic look at what no event reports: pods that ended unseen, containers whose files were written by
// others or hold something else than the last update asked for, cgroups that could not be written before.
func (a *Agent) reconcile(ctx context.Context) {
	a.logStorage()
	a.mu.Lock()
	pods, containers, next := a.ledger.Places(a.next, podsPerLook)
	a.next = next
	a.mu.Unlock()
	presence := a.present(append(pods, containers...))
	if ctx.Err() != nil {
		return
	}
	a.logNotes(a.step(presence).Notes)
	for _, at := range containers {
		if at.Files && ctx.Err() == nil {
			a.look(at)
		}
	}
	for _, at := range pods {
		if at.Files && ctx.Err() == nil {
			a.lookAtPod(at)
		}
	}
	a.logNotes(a.step(ledger.Settled{}).Notes)
	for _, dir := range a.protector.Unwritable() {
		a.step(ledger.Resend{Cgroup: dir})
	}
	a.protect(ctx)
	_ = a.restoreFiles(ctx) // what fails is logged, counted and tried again
	a.protector.Prune()
	a.followMachine(ctx)
}

// place is where a container's files are; it is false for one that does not live or has no cgroup.
func (a *Agent) place(id string) (ledger.Place, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Place(id)
}

// lookDue reads the limits of the containers of which the ledger wants to know.
func (a *Agent) lookDue(ctx context.Context) {
	a.mu.Lock()
	ids := slices.Sorted(maps.Keys(a.outbox.look))
	a.outbox.look = nil
	places := make([]ledger.Place, 0, len(ids))
	for _, id := range ids {
		if at, lives := a.ledger.Place(id); lives {
			places = append(places, at)
		}
	}
	a.mu.Unlock()
	for _, at := range places {
		a.look(at)
	}
	if len(places) > 0 {
		a.protect(ctx)
	}
}

// look reads a container's memory.max. All other files hold what is desired, whoever wrote it; this one says what the runtime
// did.
func (a *Agent) look(at ledger.Place) {
	limit, err := a.tree.Limit(at.Cgroup)
	if err != nil { // it is gone, or will be looked at again
		return
	}
	a.logNotes(a.step(ledger.Observed{ID: at.ID, Revision: at.Revision, Limit: &limit}).Notes)
}

// lookAtPod reads a pod's memory.max.
func (a *Agent) lookAtPod(at ledger.Place) {
	limit, err := a.tree.Limit(at.Cgroup)
	if err != nil { // it is gone, or will be looked at again
		return
	}
	a.logNotes(a.step(ledger.ObservedPod{UID: at.UID, ID: at.ID, Revision: at.Revision, Limit: limit}).Notes)
}

// endPods ends the pods without a sandbox whose cgroups are gone, and reports whether any are left.
func (a *Agent) endPods(ctx context.Context) (left bool) {
	a.mu.Lock()
	ending := a.ledger.Ending()
	a.mu.Unlock()
	if len(ending) == 0 {
		return false
	}
	presence := a.present(ending)
	if len(presence.Gone) > 0 {
		a.finish(ctx, a.step(presence))
	}
	return len(presence.Gone) < len(ending)
}

// siblings looks at the cgroups of a pod's other containers, where that matters.
func (a *Agent) siblings(pod ledger.Pod, container string) ledger.Presence {
	a.mu.Lock()
	places := a.ledger.Siblings(pod, container)
	a.mu.Unlock()
	return a.present(places)
}

// worthListing is how many cgroups below one are looked for by a listing of it: looking at one after another takes longer.
const worthListing = 8

// present looks whether cgroups are there.
func (a *Agent) present(places []ledger.Place) (presence ledger.Presence) {
	var unknown error
	listed := a.listed(places)
	for _, at := range places {
		there, err := listed[at.Cgroup], error(nil)
		if !there {
			there, err = a.tree.Exists(at.Cgroup)
		}
		switch {
		case err != nil:
			unknown = err
		case there:
			presence.There = append(presence.There, at)
		default:
			presence.Gone = append(presence.Gone, at)
		}
	}
	if unknown != nil {
		a.log.WithError(unknown).Debug("pods and containers are kept whose cgroups cannot be looked at")
	}
	return presence
}

// listed are those of the places that stand in a listing.
func (a *Agent) listed(places []ledger.Place) map[string]bool {
	below := map[string]int{}
	for _, at := range places {
		below[path.Dir(at.Cgroup)]++
	}
	there := map[string]bool{}
	for parent, count := range below {
		if count < worthListing {
			continue
		}
		names, _ := a.tree.List(parent) // what does not stand in it is looked for by itself
		for _, name := range names {
			there[path.Join(parent, name)] = true
		}
	}
	return there
}

// readFiles reads the files of a container's cgroup. What cannot be read is unknown; the error is nil for files and cgroups that
// are not there.
func (a *Agent) readFiles(dir string) (ledger.Files, error) {
	v, err := a.tree.Values(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return ledger.Files{Min: v.Min, Low: v.Low, High: v.High, Limit: v.Limit, Mems: v.Mems, Ours: a.ours(dir), Own: a.isOwn(dir)}, err
}

// isOwn reports whether this process is in a container's cgroup.
func (a *Agent) isOwn(dir string) bool {
	if own := a.own.Load(); own != nil {
		return *own == dir
	}
	holds, _ := a.tree.Holds(dir, os.Getpid()) // what cannot be read is looked at with the next Synchronize
	if holds {
		a.own.Store(&dir)
	}
	return holds
}

// missed is the cgroup of a container whose creation was missed; false outside kubepods.
func missed(pod ledger.Pod, container ledger.Container) (dir string, ok bool) {
	path, managed, err := pod.Path()
	if err != nil || !managed {
		return "", false
	}
	dir, err = path.Container(container.CgroupsPath, container.ID)
	return dir, err == nil
}

// find reads the files of a container that the ledger does not know; nil for one that it does.
func (a *Agent) find(pod ledger.Pod, container ledger.Container) *ledger.Files {
	a.mu.Lock()
	known := a.ledger.Knows(container.ID)
	a.mu.Unlock()
	if known {
		return nil
	}
	dir, ok := missed(pod, container)
	if !ok {
		return nil
	}
	files, _ := a.readFiles(dir) // what cannot be read is unknown
	return &files
}

// usageOf is what a container uses whose cpuset.mems an answer may change; nil for another one.
func (a *Agent) usageOf(ctx context.Context, pod ledger.Pod, container ledger.Container) map[string]ledger.Usage {
	at, lives := a.place(container.ID)
	if !lives {
		at.Cgroup, at.Movable = missed(pod, container)
	}
	if !at.Movable {
		return nil
	}
	return a.measure(ctx, nil, []string{at.Cgroup})
}

// ours are the files of a cgroup that this plugin has written.
func (a *Agent) ours(dir string) map[cgroup.Knob]bool {
	if a.journal == nil {
		return nil
	}
	return a.journal.Written(dir)
}

// observeAll looks at the cgroups of all pods and containers. seen are the files of the containers by cgroup.
func (a *Agent) observeAll(pods []ledger.Pod, containers []ledger.Container) (found ledger.Found, seen map[string]cgroup.Seen) {
	seen = make(map[string]cgroup.Seen, len(containers))
	found = ledger.Found{
		Gone: map[string]bool{}, Seen: make(map[string]bool, len(pods)+len(containers)), PodLimits: map[string]uint64{},
		Files: make(map[string]ledger.Files, len(containers)),
	}
	paths := make(map[string]cgroup.PodPath, len(pods))
	for i := range pods {
		if path, managed, err := pods[i].Path(); err == nil && managed {
			paths[pods[i].ID] = path
		}
	}
	used := make(map[string]bool, len(pods)) // one that was created and never started may be left of a pod that has ended
	for i := range containers {
		if containers[i].State.Alive() {
			used[containers[i].PodID] = used[containers[i].PodID] || containers[i].State != ledger.Created
			a.observe(&found, seen, paths, &containers[i])
		}
	}
	for i := range pods {
		path, managed := paths[pods[i].ID]
		if !managed {
			continue
		}
		if !found.Seen[path.Pod] { // by a container in it
			there, err := a.tree.Exists(path.Pod)
			found.Seen[path.Pod] = there
			found.Gone[pods[i].ID] = !there && err == nil && !used[pods[i].ID]
		}
		if limit := a.podLimit(pods[i], path); limit != nil {
			found.PodLimits[pods[i].ID] = *limit
		}
	}
	return found, seen
}

// unlisted are the containers that the ledger knows, a runtime does not list, and that have processes all the same.
func (a *Agent) unlisted(listed []ledger.Container) map[string]bool {
	a.mu.Lock()
	places := a.ledger.Unlisted(listed)
	a.mu.Unlock()
	populated := make(map[string]bool, len(places))
	for _, at := range places {
		if lives, err := a.tree.Populated(at.Cgroup); err == nil && lives {
			populated[at.ID] = true
		}
	}
	return populated
}

// observe looks at a container's cgroup.
func (a *Agent) observe(found *ledger.Found, seen map[string]cgroup.Seen, paths map[string]cgroup.PodPath, container *ledger.Container) {
	path, managed := paths[container.PodID]
	if !managed {
		return
	}
	dir, err := path.Container(container.CgroupsPath, container.ID)
	if err != nil {
		return
	}
	files, _ := a.readFiles(dir) // what cannot be read is unknown
	found.Files[container.ID] = files
	seen[dir] = cgroup.Seen{Values: memoryqos.Values{Min: files.Min, Low: files.Low, High: files.High}, Mems: files.Mems}
	if files.Limit != nil {
		found.Seen[dir], found.Seen[path.Pod] = true, true
	}
}
