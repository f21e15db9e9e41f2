package agent

import (
	"context"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// ancestors orders the writes to the cgroups above the containers: one at a time, and always the newest sums, so that
// decisions that came together share a write and a late one never undoes a newer.
type ancestors struct {
	turn chan struct{} // holds one token; its holder owns what follows

	applied uint64 // the sums that are written
	// whole is set when it is not known what is written: all pods are looked at then, not only those that changed.
	whole  bool
	levels []level
}

// level is a kubepods cgroup with the burstable one below it. A node has one, unless kubelets share it.
type level struct {
	kubepods, burstable string
	driver              cgroup.Driver
}

func newAncestors() ancestors {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return ancestors{turn: turn, whole: true}
}

// work is what protect has to write.
type work struct {
	targets []cgroup.Target
	gone    []string
	sums    uint64
	whole   bool
}

// protect brings the cgroups above the containers to the newest sums. What cannot be written is logged and tried again at
// the next event and by Run.
func (a *Agent) protect(ctx context.Context) {
	select {
	case <-a.ancestors.turn:
	case <-ctx.Done():
		return
	}
	defer func() { a.ancestors.turn <- struct{}{} }()
	todo, due := a.targets()
	if !due {
		return
	}
	var err error
	if todo.whole {
		err = a.protector.Apply(ctx, todo.targets)
	} else {
		err = a.protector.Update(ctx, todo.targets, todo.gone)
	}
	a.protectFailed(err)
	if a.ancestors.whole = err != nil; err == nil {
		a.ancestors.applied = todo.sums
	}
}

// targets derives what the cgroups above the containers should hold from the living pods: all of them, or the pods that
// have changed and the sums above them. The turn is held.
func (a *Agent) targets() (work, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.resolved.Config.DryRun || a.ancestors.applied == a.sums {
		return work{}, false
	}
	todo := work{sums: a.sums, whole: a.ancestors.whole || a.allDirty, gone: a.gone}
	dirty := a.dirty
	a.dirty, a.gone, a.allDirty = nil, nil, false
	for _, p := range dirty {
		p.dirty = false
	}
	if todo.whole {
		pods := make([]cgroup.Pod, 0, len(a.living))
		for _, p := range a.living {
			if p.managed {
				pods = append(pods, cgroup.Pod{Path: p.path, Values: p.values, Fresh: p.fresh})
			}
		}
		todo.targets = cgroup.Targets(pods)
		a.ancestors.levels = nil
		for _, p := range pods {
			a.ancestors.know(p.Path)
		}
		return todo, true
	}
	todo.targets = make([]cgroup.Target, 0, len(dirty)+2*max(1, len(a.ancestors.levels)))
	for _, p := range dirty {
		if a.pods[keyOf(p.Pod)] == p && p.managed {
			a.ancestors.know(p.path)
			todo.targets = append(todo.targets, cgroup.Target{
				Cgroup: p.path.Pod, Level: cgroup.LevelPod, Driver: p.path.Driver, Values: p.values, Fresh: p.fresh,
			})
		}
	}
	for _, at := range a.ancestors.levels {
		todo.targets = a.levelTargets(todo.targets, at)
	}
	return todo, true
}

// know adds the levels above a pod.
func (s *ancestors) know(path cgroup.PodPath) {
	i := 0
	for i < len(s.levels) && s.levels[i].kubepods != path.Kubepods {
		i++
	}
	if i == len(s.levels) {
		s.levels = append(s.levels, level{kubepods: path.Kubepods, driver: path.Driver})
	}
	if path.Class == memoryqos.Burstable {
		s.levels[i].burstable = path.QoS
	}
}

// levelTargets adds the sums above all pods of one kubepods.
func (a *Agent) levelTargets(targets []cgroup.Target, at level) []cgroup.Target {
	values := a.values
	if len(a.ancestors.levels) > 1 {
		values = nil
		for i, p := range a.living {
			if p.path.Kubepods == at.kubepods {
				values = append(values, a.values[i])
			}
		}
	}
	sums := memoryqos.Ancestors(values)
	targets = append(targets, cgroup.Target{Cgroup: at.kubepods, Level: cgroup.LevelKubepods, Driver: at.driver, Values: sums.Kubepods})
	if at.burstable != "" {
		targets = append(targets, cgroup.Target{Cgroup: at.burstable, Level: cgroup.LevelBurstable, Driver: at.driver, Values: sums.Burstable})
	}
	return targets
}

// resum marks a pod as one whose sums have changed. The lock is held.
func (a *Agent) resum(p *pod) {
	a.sums++
	if !p.dirty {
		p.dirty = true
		a.dirty = append(a.dirty, p)
	}
}

// protectFailed counts and logs a failure, once, and its end; nil is none.
func (a *Agent) protectFailed(err error) {
	if err != nil {
		a.counters.protectErrors.Add(1)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.protectFails == (err != nil) {
		return
	}
	a.protectFails = err != nil
	if err != nil {
		a.log.WithError(err).Error("the cgroups above the containers could not be written; trying again")
		return
	}
	a.log.Info("the cgroups above the containers are written again")
}
