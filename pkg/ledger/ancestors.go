package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// level is a kubepods cgroup with the levels below it that have pods. A node has one, unless kubelets share it.
type level struct {
	kubepods, burstable, system, systemBurstable string
	driver                                       cgroup.Driver
}

// sumChanged marks a pod as one whose values have changed, or that has ended: the sums above it change too.
func (l *Ledger) sumChanged(p *pod) {
	if !p.dirty {
		p.dirty = true
		l.step.dirty = append(l.step.dirty, p)
	}
}

// finishFiles derives what the cgroups should hold from the pods that have changed. The sums are made from all pods each
// time, never counted up and down.
func (l *Ledger) finishFiles(out *Effects) {
	dirty, touched := l.step.dirty, l.step.touched
	for _, p := range dirty {
		p.dirty = false
	}
	for _, p := range touched {
		p.touched = false
	}
	if l.step.all {
		for _, p := range l.living {
			l.retarget(out, p)
		}
		out.AllFiles, out.Files, out.Ended = true, nil, nil
		l.levels = l.allLevels()
		return
	}
	for _, p := range touched {
		l.retarget(out, p)
	}
	if len(dirty) == 0 {
		return
	}
	for _, p := range dirty {
		if l.pods[p.key()] == p && p.managed {
			l.levels = addLevel(l.levels, p.path)
			out.Files = append(out.Files, p.target())
		}
	}
	for _, at := range l.levels {
		out.Files = l.levelTargets(out.Files, at, len(l.levels) > 1)
	}
}

// Targets are what all cgroups should hold.
func (l *Ledger) Targets() []cgroup.Target {
	targets := make([]cgroup.Target, 0, len(l.living)+len(l.containers)+2)
	for _, p := range l.living {
		if !p.managed {
			continue
		}
		targets = append(targets, p.target())
		for _, c := range p.containers {
			if c.target.Cgroup != "" {
				targets = append(targets, c.target)
			}
		}
	}
	levels := l.allLevels()
	for _, at := range levels {
		targets = l.levelTargets(targets, at, len(levels) > 1)
	}
	return targets
}

// allLevels are the cgroups above the managed pods.
func (l *Ledger) allLevels() (levels []level) {
	for _, p := range l.living {
		if p.managed {
			levels = addLevel(levels, p.path)
		}
	}
	return levels
}

// target is what the pod's cgroup should hold.
func (p *pod) target() cgroup.Target {
	return cgroup.Target{Cgroup: p.path.Pod, Level: cgroup.LevelPod, Driver: p.path.Driver, Values: p.values, Fresh: p.fresh}
}

// retarget derives what the files of a pod's containers should hold, and adds to the effects what has changed.
func (l *Ledger) retarget(out *Effects, p *pod) {
	for _, c := range p.containers {
		if !c.alive() || c.cgroup == "" {
			continue
		}
		target := l.target(c)
		c.oursMems = c.oursMems || target.Mems != "" && !l.resolved.Config.DryRun
		if c.ours = c.ours || target.Mems != "" || !same(target.Values, memoryqos.Values{}); !c.ours {
			continue
		}
		if !sameTarget(c.target, target) {
			c.target = target
			out.Files = append(out.Files, target)
		}
	}
}

// target is what a container's files should hold. What the runtime is about to write, because it is in the answer to it, is
// left to the runtime.
func (l *Ledger) target(c *container) cgroup.Target {
	return cgroup.Target{
		Cgroup: c.cgroup, Level: cgroup.LevelContainer, Driver: c.pod.path.Driver, Values: c.effective(), Mems: l.mems(c),
		ByRuntime: c.state == Creating || !c.updating.IsZero(),
	}
}

func sameTarget(a, b cgroup.Target) bool {
	return a.Cgroup == b.Cgroup && a.Driver == b.Driver && a.Mems == b.Mems && a.ByRuntime == b.ByRuntime && same(a.Values, b.Values)
}

// addLevel adds the cgroups above a pod to others.
func addLevel(levels []level, path cgroup.PodPath) []level {
	i := slices.IndexFunc(levels, func(at level) bool { return at.kubepods == path.Kubepods })
	if i < 0 {
		i = len(levels)
		levels = append(levels, level{kubepods: path.Kubepods, driver: path.Driver})
	}
	at := &levels[i]
	qos := &at.burstable
	if system := path.System(); system != "" {
		at.system, qos = system, &at.systemBurstable
	}
	if path.Class == memoryqos.Burstable {
		*qos = path.QoS
	}
	return levels
}

// levelTargets adds the sums above all pods of one kubepods, where several is set when there is more than one.
func (l *Ledger) levelTargets(targets []cgroup.Target, at level, several bool) []cgroup.Target {
	values := l.values
	if several {
		values = nil
		for i, p := range l.living {
			if p.path.Kubepods == at.kubepods {
				values = append(values, l.values[i])
			}
		}
	}
	sums := memoryqos.Ancestors(values)
	for _, above := range []struct {
		cgroup, level string
		values        memoryqos.Values
	}{
		{at.kubepods, cgroup.LevelKubepods, sums.Kubepods}, {at.burstable, cgroup.LevelBurstable, sums.Burstable},
		{at.system, cgroup.LevelSystem, sums.System}, {at.systemBurstable, cgroup.LevelBurstable, sums.SystemBurstable},
	} {
		if above.cgroup != "" {
			targets = append(targets, cgroup.Target{Cgroup: above.cgroup, Level: above.level, Driver: at.driver, Values: above.values})
		}
	}
	return targets
}
