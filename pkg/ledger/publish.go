package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// publish derives what follows from the pods that may have changed, and adds the difference to what was derived before to the effects.
func (l *Ledger) publish() {
	out := &l.step.effects
	sums := false
	for _, p := range l.step.changed {
		p.changed = false
		before := p.derived
		if l.pods[p.key()] != p {
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
		if before.cgroup != after.cgroup || !same(before.values, after.values) {
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
	case sums: // the sums are made from all pods each time, never counted up and down
		for _, at := range l.state.Parents {
			out.Files = l.parentTargets(out.Files, at)
		}
	}
	allocations := l.deltas()
	if out.DryRun = l.state.Resolved.Config.DryRun(); out.DryRun {
		out.Answer, out.Updates, out.Files, out.Ended = Adjustment{}, nil, nil, nil
		out.Look, out.Sync = nil, nil
		return
	}
	out.Allocations = allocations
}

// publishEnd ends what was derived for a pod that has ended.
func (l *Ledger) publishEnd(p *pod) {
	out := &l.step.effects
	if p.derived != nil {
		none := &derived{}
		l.publishEnded(p.derived, none)
	}
	if p.managed {
		out.Ended = append(out.Ended, p.path.Pod)
		out.Over = append(out.Over, p.path.Pod)
	}
}

// publishRuns adds what is different of a pod's containers.
func (l *Ledger) publishRuns(p *pod, before *derived) {
	out := &l.step.effects
	after := p.derived
	for i, c := range p.containers {
		now := &after.runs[i]
		was := before.run(now.id, i)
		if now.id == "" {
			continue
		}
		out.HighChanged = out.HighChanged || now.watched != was.watched
		known := was.id != ""
		if known && l.isCorrection(was, now) {
			l.state.Counters.Corrections++
			l.note(Info, "memory request corrected", with(l.fields(c), "before", was.request.Request), nil)
		}
		if l.toSync(c, now, known && (was.mems != now.mems || !same(was.qos, now.qos))) {
			out.Sync = append(out.Sync, c.ID)
		}
		if now.cgroup == "" {
			continue
		}
		if !l.state.Resolved.Config.DryRun() {
			c.Record.OursMems = c.Record.OursMems || now.mems != ""
			c.Record.Ours = c.Record.Ours || now.mems != "" || !same(now.values, memoryqos.Values{})
		}
		if now.ours = c.Record.Ours; now.ours && !(was.ours && sameTarget(was.target(before.driver), now.target(after.driver))) {
			out.Files = append(out.Files, now.target(after.driver))
		}
	}
	l.publishEnded(before, after)
}

// publishEnded ends what was derived for containers that live no more.
func (l *Ledger) publishEnded(before, after *derived) {
	out := &l.step.effects
	for i := range before.runs {
		was := &before.runs[i]
		if was.id == "" || after.run(was.id, i).id != "" {
			continue
		}
		out.HighChanged = out.HighChanged || was.watched != watched{}
		if was.cgroup != "" {
			out.Over = append(out.Over, was.cgroup)
		}
		if was.ours {
			out.Ended = append(out.Ended, was.cgroup)
		}
	}
}

// run is what was derived for a living container, where it is probably in a place of the list; the zero value where there is none.
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

// isCorrection reports whether a better source has corrected a container's request. Claims are no source, and a new configuration may
// ask others.
func (l *Ledger) isCorrection(was, now *derivedRun) bool {
	return was.request != now.request && was.asked == now.asked && !l.step.syncAll &&
		was.request.Source != memoryqos.SourceClaim && now.request.Source != memoryqos.SourceClaim
}

// toSync reports whether the runtime's record of a container is to be compared with what it should be. Synchronize has found out by
// itself.
func (l *Ledger) toSync(c *container, now *derivedRun, changed bool) bool {
	if c.Phase == Creating || slices.Contains(l.step.answered, c) || l.step.all && !l.step.syncAll || !changed && !c.Record.Resend && !l.step.syncAll {
		return false
	}
	_, lacks := c.lacks(now)
	return lacks
}

// Parents are a kubepods cgroup with the QoS classes' below it that have pods. A node has one, unless kubelets share it.
type Parents struct {
	Kubepods, Burstable, System, SystemBurstable string
	Driver                                       cgroup.Driver
}

// Targets are what all cgroups should hold.
func (l *Ledger) Targets() []cgroup.Target {
	targets := make([]cgroup.Target, 0, len(l.living)+len(l.containers)+2)
	for _, p := range l.living {
		if !p.managed {
			continue
		}
		targets = append(targets, p.derived.target())
		for i := range p.derived.runs {
			if r := &p.derived.runs[i]; r.ours {
				targets = append(targets, r.target(p.derived.driver))
			}
		}
	}
	return l.ancestors(targets)
}

// ancestors adds what the cgroups above the pods should hold.
func (l *Ledger) ancestors(targets []cgroup.Target) []cgroup.Target {
	for _, at := range l.allParents() {
		targets = l.parentTargets(targets, at)
	}
	return targets
}

// allParents are the cgroups above the managed pods.
func (l *Ledger) allParents() (levels []Parents) {
	for _, p := range l.living {
		if p.managed {
			levels = addParents(levels, p.path)
		}
	}
	return levels
}

func sameTarget(a, b cgroup.Target) bool {
	return a.Cgroup == b.Cgroup && a.Driver == b.Driver && a.Mems == b.Mems && a.ByRuntime == b.ByRuntime && same(a.Values, b.Values)
}

// addParents adds the cgroups above a pod to others.
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

// parentTargets adds the sums above all pods of one kubepods: a node has several where kubelets share it.
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
