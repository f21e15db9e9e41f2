package agent

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// Synchronize takes over what the runtime has: bookings of pods that are gone are freed, containers without a booking
// are adopted, and a Guaranteed container that was created while the plugin was away is placed. The updates bring
// containers to the values they should have.
//
// It asks no API and writes the checkpoint once. The order of pods and containers does not matter.
func (a *Agent) Synchronize(ctx context.Context, pods []Pod, containers []Container) ([]Update, error) {
	began := a.now()
	found := a.observe(pods, containers) // outside of the lock: it looks at files

	a.mu.Lock()
	updates, ticket, fields := a.merge(pods, containers, found)
	a.mu.Unlock()

	_ = a.durable(ctx, ticket) // the runtime has its containers all the same
	a.protect(ctx)
	fields["duration"] = a.now().Sub(began)
	a.log.WithFields(fields).Info("synchronized with the runtime")
	a.poke() // Run looks at the files, and for better requests
	return updates, nil
}

// observation is what the files say of the pods and containers that a runtime lists.
type observation struct {
	gone   map[string]bool   // sandboxes that have ended: no container and no cgroup
	seen   map[string]bool   // cgroups of pods and containers that are there
	limits map[string]uint64 // memory.max by the runtime's ids: of Guaranteed pods, and of containers where the runtime's is not to be trusted
}

// observe looks at the cgroups of all pods and containers, at memory.max of Guaranteed pods, and at that of containers where
// the runtime shows the limits of the creation: CRI-O after its own restart.
func (a *Agent) observe(pods []Pod, containers []Container) observation {
	a.mu.Lock()
	stale := strings.Contains(strings.ToLower(a.runtime.Name), "cri-o")
	a.mu.Unlock()
	o := observation{gone: map[string]bool{}, seen: make(map[string]bool, len(pods)+len(containers)), limits: map[string]uint64{}}
	used := make(map[string]bool, len(pods))
	for i := range containers {
		if containers[i].State.Alive() {
			used[containers[i].PodID] = true
		}
	}
	paths := make(map[string]cgroup.PodPath, len(pods))
	for i := range pods {
		path, managed, err := pathOf(pods[i])
		if err != nil || !managed {
			continue
		}
		paths[pods[i].ID] = path
		there, err := a.tree.Exists(path.Pod)
		o.seen[path.Pod] = there
		o.gone[pods[i].ID] = !there && err == nil && !used[pods[i].ID]
		if limit, ok := a.limitOfPod(pods[i]); ok {
			o.limits[pods[i].ID] = limit
		}
	}
	for i := range containers {
		path, managed := paths[containers[i].PodID]
		if !managed {
			continue
		}
		dir, err := path.Container(containers[i].CgroupsPath, containers[i].ID)
		if err != nil {
			continue
		}
		o.seen[dir], _ = a.tree.Exists(dir)
		if !stale {
			continue
		}
		if limit, err := a.tree.Limit(dir); err == nil && limit != cgroup.Max {
			o.limits[containers[i].ID] = limit
		}
	}
	return o
}

// merge is the part of Synchronize that happens under the lock.
func (a *Agent) merge(pods []Pod, containers []Container, found observation) ([]Update, checkpoint.Ticket, logrus.Fields) {
	a.batch = true
	defer func() { a.batch = false }()
	a.dropGone(pods, found.gone)
	sandboxes := a.takePods(pods, found, containers)
	ours := a.knobs()
	present := make(map[string]bool, len(containers))
	var taken []*container
	for i := range containers {
		told := &containers[i]
		p := sandboxes[told.PodID]
		if p == nil || !told.State.Alive() {
			continue
		}
		present[told.ID] = true
		taken = append(taken, a.takeOver(p, *told, ours, found))
	}
	for _, c := range a.containers {
		if !present[c.id] {
			a.end(c)
			a.forget(c)
		}
	}
	clear(a.kept) // the others have ended
	a.retainRequests()
	placed := a.settleBookings(taken)
	for _, p := range a.living {
		if p.managed {
			a.sumUp(p)
		}
	}
	updates := a.corrections(taken)
	a.sums++
	a.allDirty = true
	a.synchronized.set(a.now(), "")
	a.changed()
	a.highSignal()
	return updates, a.recordState(), logrus.Fields{
		"pods": len(a.living), "containers": len(a.containers), "placed": placed, "updates": len(updates),
	}
}

// dropGone frees the pods that the runtime no longer has.
func (a *Agent) dropGone(pods []Pod, gone map[string]bool) {
	present := make(map[string]bool, len(pods))
	for i := range pods {
		if !gone[pods[i].ID] {
			present[keyOf(pods[i])] = true
		}
	}
	for _, p := range slices.Clone(a.living) {
		if !present[keyOf(p.Pod)] {
			a.endPod(p)
		}
	}
	if a.manager == nil {
		return
	}
	// Entries of the state file whose pods ended while the plugin was away.
	for _, entry := range a.manager.State().Entries {
		if !present[entry.Pod] {
			a.manager.ReleasePod(entry.Pod)
		}
	}
}

// takePods makes the pods known, by the ids of their sandboxes. Of several sandboxes of a pod the one with containers
// is the living one.
func (a *Agent) takePods(pods []Pod, found observation, containers []Container) map[string]*pod {
	used := make(map[string]bool, len(pods))
	for i := range containers {
		used[containers[i].PodID] = true
	}
	ordered := make([]*Pod, 0, len(pods))
	for i := range pods {
		if !found.gone[pods[i].ID] {
			ordered = append(ordered, &pods[i])
		}
	}
	slices.SortStableFunc(ordered, func(x, y *Pod) int {
		if used[x.ID] != used[y.ID] {
			if used[y.ID] {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.ID, y.ID)
	})
	sandboxes := make(map[string]*pod, len(pods))
	for _, told := range ordered {
		p, err := a.podOf(*told)
		if err != nil {
			a.log.WithError(err).Warn("a pod is left alone")
			continue
		}
		if !p.managed {
			continue
		}
		sandboxes[told.ID] = p
		if limit, ok := found.limits[told.ID]; ok {
			p.MemoryLimit = limit
		}
		p.seen = p.seen || found.seen[p.path.Pod]
		a.learn(p)
	}
	return sandboxes
}

// retainRequests drops what an earlier run knew of pods that have ended. The lock is held.
func (a *Agent) retainRequests() {
	refs := make([]podinfo.Ref, 0, len(a.living))
	for _, p := range a.living {
		refs = append(refs, p.ref)
	}
	a.requests.Retain(refs)
}

// knobs are the files that this plugin has written on this node, by cgroup.
func (a *Agent) knobs() map[string]map[cgroup.Knob]bool {
	if a.journal == nil {
		return nil
	}
	ours := map[string]map[cgroup.Knob]bool{}
	for _, entry := range a.journal.Entries() {
		if ours[entry.Cgroup] == nil {
			ours[entry.Cgroup] = map[cgroup.Knob]bool{}
		}
		ours[entry.Cgroup][entry.Knob] = true
	}
	return ours
}

// corrections are the updates of Synchronize's answer.
func (a *Agent) corrections(taken []*container) []Update {
	if a.resolved.Config.DryRun {
		return nil
	}
	var updates []Update
	for _, c := range taken {
		a.noteFound(c)
		update, changed := a.updateOf(c)
		if !changed {
			continue
		}
		a.note(c.cgroup, update.Adjustment, c.resources.Unified)
		c.check = true
		a.gave(c, update.Adjustment)
		updates = append(updates, update)
	}
	return updates
}
