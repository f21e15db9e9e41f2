package agent

import (
	"context"
	"time"
)

// grace is how long a pod, or a container that does not run yet, may be without a cgroup.
const grace = time.Minute

// reconcile is the periodic look at what no event tells of: pods that ended unseen, containers whose files somebody else
// has written, cgroups that could not be written before.
func (a *Agent) reconcile(ctx context.Context) {
	a.forgetGone(ctx)
	a.checkAll(ctx, a.nextToCheck())
	a.settleOld()
	a.protect(ctx)
	if a.journal != nil {
		a.journal.Prune(a.tree.Exists)
	}
	if a.watcher != nil {
		a.watcher.Prune()
	}
}

// place of a pod or container in the file system, to be looked at without the lock.
type place struct {
	uid, id string
	cgroup  string
}

// forgetGone frees pods and ends containers whose cgroups are gone: after its own restart containerd sends no
// StopPodSandbox and no RemovePodSandbox for the sandboxes that it found, and CRI-O no StopContainer for a container that
// died meanwhile. A container that runs and never had a cgroup is one of a virtual machine, and ends with its pod.
func (a *Agent) forgetGone(ctx context.Context) {
	pods, containers := a.places()
	found := map[place]bool{} // whether its cgroup is there; without those of which that is not known
	var unknown error
	for _, list := range [][]place{pods, containers} {
		for _, at := range list {
			there, err := a.tree.Exists(at.cgroup)
			if err != nil {
				unknown = err
				continue
			}
			found[at] = there
		}
	}
	if unknown != nil {
		a.log.WithError(unknown).Debug("pods and containers are kept whose cgroups cannot be looked at")
	}
	if ctx.Err() != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for _, at := range pods {
		p := a.pods[at.uid]
		there, known := found[at]
		if !known || p == nil || p.ID != at.id { // or has ended, or was recreated, meanwhile
			continue
		}
		if there {
			p.seen = true
		} else if p.seen || now.Sub(p.born) > grace {
			a.log.WithFields(p.fields()).Info("the pod's cgroup is gone: what it had is free")
			a.counters.forgotten.Add(1)
			a.stopped.add(p.ID)
			a.endPod(p)
		}
	}
	for _, at := range containers {
		c := a.containers[at.id]
		there, known := found[at]
		if !known || c == nil {
			continue
		}
		if there {
			c.seen = true
		} else if c.seen || !c.ran() && now.Sub(c.born) > grace {
			a.end(c)
			a.sumUp(c.pod)
			a.forget(c)
		}
	}
}

// places are where all pods and the containers to look at this time should be.
func (a *Agent) places() (pods, containers []place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, p := range a.pods {
		if p.managed {
			pods = append(pods, place{uid: uid, id: p.ID, cgroup: p.path.Pod})
		}
	}
	for _, p := range a.turn() {
		for _, c := range p.containers {
			if c.alive() && c.cgroup != "" {
				containers = append(containers, place{id: c.id, cgroup: c.cgroup})
			}
		}
	}
	return pods, containers
}

// turn are the pods whose containers are looked at by this reconcile. The lock is held.
func (a *Agent) turn() []*pod {
	n := min(checksPerTick, len(a.living))
	pods := make([]*pod, 0, n)
	for i := range n {
		pods = append(pods, a.living[(a.next+i)%len(a.living)])
	}
	return pods
}

// nextToCheck are the containers whose files are compared by this reconcile; the next one goes on with others.
func (a *Agent) nextToCheck() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var ids []string
	for _, p := range a.turn() {
		for _, c := range p.containers {
			if c.alive() && c.state != Unknown {
				ids = append(ids, c.id)
			}
		}
	}
	if len(a.living) > 0 {
		a.next = (a.next + checksPerTick) % len(a.living)
	}
	return ids
}

// settleOld ends the waiting for updates that the runtime never told to have applied.
func (a *Agent) settleOld() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.containers {
		a.settle(c)
	}
}
