package oom

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// victim is a container that lost processes.
type victim struct {
	*container // nil where it is not known which one it was
	dir        string
	counted    counters // since it was looked at
	reading    Reading
	late       bool // perhaps it could not be read when the pod counted its kills
}

// unjudged are kills of a pod that get no verdict until it is known whose they are.
type unjudged struct {
	counters      // and what was hit when they were counted
	away     bool // perhaps no daemon watched at some of them
}

// kill is one that waits for what the kernel counts next: of a whole container it counts one process after the other.
type kill struct {
	Kill
	*container
	pod            string   // its cgroup
	counted, above counters // for it, in its own cgroup and in the pod's
	due            time.Time
}

// killed finds the containers that lost processes, what was hit, and who shared it.
func (r *Recorder) killed(p *pod, now time.Time, away bool, since counters) {
	p.rests = now.Add(settle)
	view := r.options.View()
	i := slices.IndexFunc(view.Pods, func(v *ledger.PodView) bool { return v.Cgroup == p.cgroup })
	if i >= 0 {
		p.meet(view.Pods[i])
	}
	before, notRead := p.unjudged, p.unread
	found := r.victims(p, now, since, away, i < 0) // first of all: the runtime removes the cgroup of a container that has ended
	if found.waits == nil {
		p.unjudged, p.unread = unjudged{}, time.Time{}
	} else {
		p.unjudged.away = away || before.away
		r.isUnread(p, found.waits, now)
		if len(found.victims) == 0 {
			return
		}
	}
	var above []Reading
	for _, dir := range parents(p.cgroup) {
		_, _, _ = r.count(dir, now)
		above = append(above, r.level(dir, Parent, now))
	}
	for _, v := range found.victims {
		k := &kill{
			Kill:      Kill{At: now, Away: away, UID: p.view.UID, Unread: found.unread},
			container: v.container, pod: p.cgroup, counted: v.counted, above: since, due: now.Add(settle),
		}
		k.above.Kills = v.counted.Kills
		whole := found.whole
		if v.late {
			whole, k.Away = before.hit(whole), away || before.away
		}
		switch {
		case k.Away: // what was counted then is complete
			k.After, k.due = p.after, now
		case v.late || before.Kills == 0: // what was counted since then is read only now
			k.After = notRead
		}
		if k.After.Round(0).After(now) { // the clock was set back meanwhile
			k.After = time.Time{}
		}
		k.Chain = append([]Reading{v.reading, whole}, above...)
		r.explained(k.Chain, now)
		where := cmp.Or(v.dir, p.cgroup)
		if waiting := r.kills[where]; waiting != nil {
			waiting.counted, waiting.above = waiting.counted.plus(k.counted), waiting.above.plus(k.above)
			continue
		}
		r.describe(k, p, v.dir, view)
		r.kills[where] = k
		r.soon(k.due)
	}
}

// describe adds to a kill who the victim is, and who shared what was hit.
func (r *Recorder) describe(k *kill, p *pod, dir string, view *ledger.View) {
	k.Victim = User{Namespace: p.view.Namespace, Pod: p.view.Name, victim: true}
	if c := k.container; c != nil {
		k.Victim.Container, k.Victim.Share = c.view.Name, c.view.Request
		k.ID, k.Nodes = c.view.ID, c.view.Mems()
		if kept := c.samples.since(k.At); len(kept) > 0 {
			k.Before = &kept[len(kept)-1]
		}
		if peak, err := r.options.Tree.Peak(dir); err == nil && peak > c.peak && c.view.Limit == 0 {
			k.Peak = peak
		}
	}
	r.surroundings(&k.Kill, view, dir)
}

// found is what a pod and its containers show after kills.
type found struct {
	victims []victim
	counted counters // of the victims
	whole   Reading  // of the pod
	others  Held     // by the containers that lost no process
	gone    []string // cgroups of containers that may have been killed and are gone
	unread  []string // containers that may still exist and could not be read
	waits   error    // why one of them could not be read, if kills may be its: until all can be read or the pod has ended, those get no verdict
}

// victims finds the containers of a pod that lost processes. The pod counts their kills together. Kills that no container's counter shows
// belong to the container that is gone, or, while the runtime is away, to an unknown one.
func (r *Recorder) victims(p *pod, now time.Time, together counters, away, ended bool) found {
	f := r.readContainers(p, now, together, away)
	f.whole = r.level(p.cgroup, Pod, now)
	for i := range f.victims {
		if f.victims[i].reading.Gone { // since it was counted
			f.victims[i].remains(f.whole, f.others)
		}
	}
	together = together.plus(p.unjudged.counters)
	if f.counted.Kills >= together.Kills { // the kernel counts in the container first
		known := r.file.Known[p.cgroup]
		known.Kills += f.counted.Kills - together.Kills
		if shown, _, err := readCounters(r.options.Tree, p.cgroup); err == nil && known.Kills > shown.Kills {
			f.leaveOut(known.Kills - shown.Kills)
			known.Kills = shown.Kills
		}
		r.file.Known[p.cgroup] = known
		f.waits = nil
		return f
	}
	left := together.since(f.counted)
	left.OOM = together.OOM             // of the pod's limit, not of theirs
	if left.Kills <= p.unjudged.Kills { // what was hit since was hit for others
		left.OOM, left.Below = p.unjudged.OOM, p.unjudged.Below
	}
	late := p.unjudged.Kills > 0
	if p.unjudged.counters = left; f.waits != nil && !ended {
		return f
	}
	f.waits = nil
	of := left.hit(f.whole)
	lost := victim{counted: counters{Kills: left.Kills, Groups: left.Groups}, late: late, reading: Reading{Level: Container, Gone: true, Hit: of.Below && !of.Hit}}
	if len(f.gone) == 1 {
		lost.dir, lost.container = f.gone[0], p.containers[f.gone[0]]
		lost.remains(f.whole, f.others)
	}
	f.victims = append(f.victims, lost)
	return f
}

// leaveOut takes off kills that have a verdict: the pod had counted them before their container was known.
func (f *found) leaveOut(kills uint64) {
	for i := range f.victims {
		of := &f.victims[i].counted
		taken := min(kills, of.Kills)
		of.Kills, kills = of.Kills-taken, kills-taken
	}
	f.victims = slices.DeleteFunc(f.victims, func(v victim) bool { return v.counted.Kills == 0 })
}

// readContainers reads which containers of a pod lost processes. waits is set if one could not be read.
func (r *Recorder) readContainers(p *pod, now time.Time, together counters, away bool) (f found) {
	var starting []string // perhaps they have no cgroup yet
	for dir, c := range p.containers {
		since, _, err := r.count(dir, now)
		if err == nil {
			reading := r.level(dir, Container, now)
			if since.Kills == 0 {
				f.others = f.others.plus(reading.Held)
			} else {
				f.victims = append(f.victims, victim{container: c, dir: dir, counted: since, reading: reading, late: c.unread && p.unjudged.Kills > 0})
				f.counted = f.counted.plus(since)
			}
			c.unread = false
			continue
		}
		if r.options.Tree.Ended(dir) && (c.view.State == ledger.Creating || c.view.State == ledger.Created) {
			starting = append(starting, dir)
			continue
		}
		r.missed(dir, c, now)
		lately := c.gone.IsZero() || now.Sub(c.gone) <= hitAge
		afterKill := away && c.view.Unanswered // created while the daemon was away, perhaps after the kill
		if lately && !afterKill && (c.unread || together.Kills > 0) {
			f.gone = append(f.gone, dir)
		}
		if c.gone.IsZero() {
			f.unread, f.waits, c.unread = append(f.unread, c.view.Name), err, true
		}
	}
	if len(f.gone) == 0 && !away && p.unread.IsZero() { // it was killed before it had started, and not before it was created
		f.gone = starting
	}
	slices.Sort(f.unread)
	return f
}

// missed records since when a container's cgroup is gone. While the runtime is away, nothing else reports it.
func (r *Recorder) missed(dir string, c *container, now time.Time) {
	if c.gone.IsZero() && r.options.Tree.Ended(dir) {
		c.gone = now
	}
}

// remains reads what is left of a container whose cgroup is gone: its page cache, files in memory and kernel memory are the pod's now.
func (v *victim) remains(pod Reading, others Held) {
	v.reading.Cgroup = v.dir
	if limit := v.view.Limit; !pod.Gone && limit > 0 {
		v.reading.Limit, v.reading.Gone = limit, false
		v.reading.Held = pod.Held.less(others)
	}
}

// level reads a cgroup and what is known of its limit.
func (r *Recorder) level(dir string, level Level, now time.Time) Reading {
	reading := readLevel(r.options.Tree, dir, level)
	h := r.hits[dir]
	reading.Hit, reading.Below = now.Sub(h.own) <= hitAge, now.Sub(h.below) <= hitAge
	return reading
}

// explained has the hit of a limit that explains a kill explain no later ones: the kernel counts one before each kill (mm/memcontrol.c,
// mem_cgroup_oom). A limit above pods is hit for several, each of whose kills takes one of those hits.
func (r *Recorder) explained(chain []Reading, now time.Time) {
	_, at := Kill{Chain: chain}.Hit()
	until := now.Add(killTime - hitAge)
	for i := max(at, 0); at >= 0 && i <= max(at, 1); i++ {
		h := r.hits[chain[i].Cgroup]
		if h.left = less(h.left, 1); i == at && h.own.After(until) && (i < 2 || h.left == 0) {
			h.own = until
		}
		if h.below.After(until) {
			h.below = until
		}
		r.hits[chain[i].Cgroup] = h
	}
}

// hit is the reading of a pod with the limits that were hit when these were counted.
func (c counters) hit(pod Reading) Reading {
	pod.Hit, pod.Below = pod.Hit || c.OOM > 0, pod.Below || c.Below > 0
	return pod
}

// judged are the counters without the kills that still wait: a daemon that ends now leaves those to the next one.
func (r *Recorder) judged() map[string]counters {
	known := maps.Clone(r.file.Known)
	for dir, p := range r.pods {
		if p.unjudged.Kills > 0 {
			known[dir] = known[dir].since(p.unjudged.counters)
		}
	}
	for where, k := range r.kills {
		known[k.pod] = known[k.pod].since(k.above)
		if where != k.pod {
			known[where] = known[where].since(k.counted)
		}
	}
	return known
}

// judge gives the verdicts on the kills that have waited.
func (r *Recorder) judge(now time.Time) {
	given := false
	for _, where := range slices.Sorted(maps.Keys(r.kills)) {
		k := r.kills[where]
		if now.Before(k.due) {
			r.soon(k.due)
			continue
		}
		delete(r.kills, where)
		// In a whole cgroup the kernel counts some processes twice (mm/oom_kill.c, oom_kill_process).
		k.Whole = k.counted.Groups > 0
		k.Kills = cmp.Or(k.counted.Groups, k.counted.Kills)
		v := Judge(k.Kill)
		if k.container != nil {
			v.Samples = k.samples.since(k.At)
			v.setOrder(k.view, r.options.View())
		}
		r.give(v)
		given = true
	}
	if given {
		r.save()
	}
}
