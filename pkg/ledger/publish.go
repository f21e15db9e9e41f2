package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// publish derives the pods that may have changed, and adds the differences from what was derived before to the effects.
func (l *Ledger) publish() {
	out := &l.step.effects
	sums := false
	for _, p := range l.step.changed {
		p.changed = false
		before := p.derived
		if l.pods[p.Key()] != p {
			l.publishEnd(p)
			sums = sums || p.managed
			continue
		}
		after := l.derive(p)
		p.derived, p.view = after, nil
		if before == nil {
			before = &derived{cgroup: after.cgroup}
		}
		l.publishRuns(p, before)
		if before.cgroup != after.cgroup || !sameValues(before.values, after.values) {
			sums = true
			if before.cgroup != after.cgroup && before.cgroup != "" {
				out.Ended = append(out.Ended, before.cgroup)
			}
			if p.managed {
				l.state.Parents = addParents(l.state.Parents, p.path)
				out.Files = append(out.Files, after.target())
			}
		}
	}
	switch {
	case l.step.all:
		out.AllFiles, out.Files, out.Ended, out.HighChanged = true, nil, nil, true
		l.state.Parents = l.allParents()
	case sums: // sums are always computed from all pods
		for _, at := range l.state.Parents {
			out.Files = l.parentTargets(out.Files, at)
		}
	}
	allocations := l.deltas()
	if out.DryRun = l.state.Resolved.Config.DryRun(); out.DryRun {
		out.Answer, out.Updates, out.Files, out.Ended = Adjustment{}, nil, nil, nil
		out.ReadLimits, out.Sync = nil, nil
		return
	}
	out.Allocations = allocations
}

// publishEnd adds the effects of a pod's end.
func (l *Ledger) publishEnd(p *pod) {
	out := &l.step.effects
	if p.derived != nil {
		none := &derived{}
		l.publishEnded(p.derived, none)
	}
	if p.managed {
		out.Ended = append(out.Ended, p.path.Pod)
		out.Removed = append(out.Removed, p.path.Pod)
	}
}

// publishRuns adds the differences of a pod's containers.
func (l *Ledger) publishRuns(p *pod, before *derived) {
	out := &l.step.effects
	after := p.derived
	for i, c := range p.containers {
		now := &after.runs[i]
		was := before.run(now.id, i)
		if now.id == "" {
			continue
		}
		out.HighChanged = out.HighChanged || now.guarded != was.guarded
		lived := was.id != ""
		if lived && l.isCorrection(was, now) {
			l.state.Counters.Corrections++
			l.note(Info, "memory request corrected", withField(l.fields(c), "before", was.request.Request), nil)
		}
		if l.needsSync(c, now, lived && (was.mems != now.mems || !sameValues(was.qos, now.qos))) {
			out.Sync = append(out.Sync, c.ID)
		}
		if now.cgroup == "" {
			continue
		}
		if !l.state.Resolved.Config.DryRun() {
			c.Record.WrittenMems = c.Record.WrittenMems || now.mems != ""
			c.Record.Written = c.Record.Written || now.mems != "" || !sameValues(now.values, memoryqos.Values{})
		}
		if now.written = c.Record.Written; now.written && !(was.written && sameTarget(was.target(before.driver), now.target(after.driver))) {
			out.Files = append(out.Files, now.target(after.driver))
		}
	}
	l.publishEnded(before, after)
}

// publishEnded adds the effects of containers that no longer live.
func (l *Ledger) publishEnded(before, after *derived) {
	out := &l.step.effects
	for i := range before.runs {
		was := &before.runs[i]
		if was.id == "" || after.run(was.id, i).id != "" {
			continue
		}
		out.HighChanged = out.HighChanged || was.guarded.ID != ""
		if was.cgroup != "" {
			out.Removed = append(out.Removed, was.cgroup)
		}
		if was.written {
			out.Ended = append(out.Ended, was.cgroup)
		}
	}
}

// run returns what was derived for a living container, probably at index place; the zero value if there is none.
func (d *derived) run(id string, place int) *derivedRun {
	if place < len(d.runs) && d.runs[place].id == id {
		return &d.runs[place]
	}
	for i := range d.runs {
		if d.runs[i].id == id {
			return &d.runs[i]
		}
	}
	return &derivedRun{}
}

// isCorrection reports whether a better source has corrected a container's request. Claims do not count as a source, and after a reload
// other sources may be asked.
func (l *Ledger) isCorrection(was, now *derivedRun) bool {
	return was.request != now.request && was.basis == now.basis && !l.step.syncAll &&
		was.request.Source != memoryqos.SourceClaim && now.request.Source != memoryqos.SourceClaim
}

// needsSync reports whether the runtime's record of a container is outdated. Synchronize finds that out itself.
func (l *Ledger) needsSync(c *container, now *derivedRun, changed bool) bool {
	if c.Phase == Creating || slices.Contains(l.step.synced, c) || l.step.all && !l.step.syncAll || !changed && !c.Record.Resend && !l.step.syncAll {
		return false
	}
	_, lacks := c.syncUpdate(now)
	return lacks
}

// Parents are a kubepods cgroup and the QoS cgroups below it that have pods. A node has one kubepods cgroup, unless several kubelets share
// the node.
type Parents struct {
	Kubepods, Burstable, System, SystemBurstable string
	Driver                                       cgroup.Driver
}

// Targets returns what all cgroups should hold.
func (l *Ledger) Targets() []cgroup.Target {
	targets := make([]cgroup.Target, 0, len(l.living)+len(l.containers)+2)
	for _, p := range l.living {
		if !p.managed {
			continue
		}
		targets = append(targets, p.derived.target())
		for i := range p.derived.runs {
			if r := &p.derived.runs[i]; r.written {
				targets = append(targets, r.target(p.derived.driver))
			}
		}
	}
	return l.ancestors(targets)
}

// ancestors appends what the cgroups above the pods should hold.
func (l *Ledger) ancestors(targets []cgroup.Target) []cgroup.Target {
	for _, at := range l.allParents() {
		targets = l.parentTargets(targets, at)
	}
	return targets
}

// allParents returns the cgroups above the managed pods.
func (l *Ledger) allParents() (levels []Parents) {
	for _, p := range l.living {
		if p.managed {
			levels = addParents(levels, p.path)
		}
	}
	return levels
}

func sameTarget(a, b cgroup.Target) bool {
	return a.Cgroup == b.Cgroup && a.Driver == b.Driver && a.Mems == b.Mems && a.ByRuntime == b.ByRuntime && sameValues(a.Values, b.Values)
}

// addParents adds the cgroups above a pod to levels.
func addParents(levels []Parents, path cgroup.PodPath) []Parents {
	i := slices.IndexFunc(levels, func(at Parents) bool { return at.Kubepods == path.Kubepods })
	if i < 0 {
		i = len(levels)
		levels = append(levels, Parents{Kubepods: path.Kubepods, Driver: path.Driver})
	}
	at := &levels[i]
	qos := &at.Burstable
	if system := path.System(); system != "" {
		at.System, qos = system, &at.SystemBurstable
	}
	if path.Class == memoryqos.Burstable {
		*qos = path.QoS
	}
	return levels
}

// parentTargets appends the sums of all pods below one kubepods cgroup.
func (l *Ledger) parentTargets(targets []cgroup.Target, at Parents) []cgroup.Target {
	sums := memoryqos.Ancestors(func(yield func(memoryqos.PodValues) bool) {
		for _, p := range l.living {
			if p.path.Kubepods == at.Kubepods && !yield(p.derived.members) {
				return
			}
		}
	})
	for _, above := range []struct {
		cgroup, level string
		values        memoryqos.Values
	}{
		{at.Kubepods, cgroup.LevelKubepods, sums.Kubepods}, {at.Burstable, cgroup.LevelBurstable, sums.Burstable},
		{at.System, cgroup.LevelSystem, sums.System}, {at.SystemBurstable, cgroup.LevelBurstable, sums.SystemBurstable},
	} {
		if above.cgroup != "" {
			targets = append(targets, cgroup.Target{Cgroup: above.cgroup, Level: above.level, Driver: at.Driver, Values: above.values})
		}
	}
	return targets
}
