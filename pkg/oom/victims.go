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
	late       bool // it could not be read when the pod counted its kills, perhaps
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
	// First of all: the runtime removes the cgroup of a container that has ended.
	unjudged, unjudgedAway, notRead := p.unjudged, p.unjudgedAway, p.unread
	victims, whole, unread, waits := r.victims(p, now, since, away, i < 0)
	if p.unjudgedAway = waits != nil && (away || unjudgedAway); waits == nil {
		p.unjudged, p.unread = counters{}, time.Time{}
	} else if r.isUnread(p, waits, now); len(victims) == 0 {
		return
	}
	var above []Reading
	for _, dir := range parents(p.cgroup) {
		_, _, _ = r.count(dir, now)
		above = append(above, r.level(dir, Parent, now))
	}
	for _, v := range victims {
		where := cmp.Or(v.dir, p.cgroup)
		since.Kills = v.counted.Kills
		of, away, after, due := whole, away, time.Time{}, now.Add(settle)
		if v.late {
			of, away = unjudged.hit(whole), away || unjudgedAway
		}
		if v.late || unjudged.Kills == 0 { // what was counted since then is read only now
			after = notRead
		}
		if away { // what was counted then is complete
			after, due = p.after, now
		}
		if after.Round(0).After(now) { // the clock was set back meanwhile
			after = time.Time{}
		}
		chain := append([]Reading{v.reading, of}, above...)
		r.explained(chain, now)
		if waiting := r.kills[where]; waiting != nil {
			waiting.counted, waiting.above = waiting.counted.plus(v.counted), waiting.above.plus(since)
			continue
		}
		k := &kill{container: v.container, pod: p.cgroup, counted: v.counted, above: since, due: due, Kill: Kill{
			At: now, After: after, Away: away, UID: p.view.UID,
			Victim: User{Namespace: p.view.Namespace, Pod: p.view.Name, victim: true},
			Chain:  chain, Unread: unread,
		}}
		if v.container != nil {
			k.Victim.Container, k.Victim.Share = v.view.Name, v.view.Request
			k.ID, k.Nodes = v.view.ID, v.view.Mems()
			if kept := v.samples.since(now); len(kept) > 0 {
				k.Before = &kept[len(kept)-1]
			}
			if peak, err := r.options.Tree.Peak(v.dir); err == nil && peak > v.peak && v.view.Limit == 0 {
				k.Peak = peak
			}
		}
		r.surroundings(&k.Kill, view, v.dir)
		r.kills[where] = k
		r.soon(k.due)
	}
}

// victims returns the containers of a pod that lost processes. The pod counts their kills together. Kills that no container's counter shows
// belong to the container that is gone, or, while the runtime is away, to an unknown one. whole is the reading of the pod. unread are containers
// that may still exist and could not be read. waits is their error if such kills may be theirs: until all can be read or the pod has ended,
// those get no verdict.
func (r *Recorder) victims(p *pod, now time.Time, together counters, away, ended bool) (victims []victim, whole Reading, unread []string, waits error) {
	var gone, starting []string // starting ones perhaps have no cgroup yet
	var others Held
	var found counters
	for dir, c := range p.containers {
		since, _, err := r.count(dir, now)
		if err != nil && r.options.Tree.Ended(dir) && (c.view.State == ledger.Creating || c.view.State == ledger.Created) {
			starting = append(starting, dir)
			continue
		}
		if err != nil {
			// A container that was created while the daemon was away may have been created after the kill.
			if r.missed(dir, c, now); (c.gone.IsZero() || now.Sub(c.gone) <= hitAge) && !(away && c.view.Unanswered) &&
				(c.unread || together.Kills > 0) {
				gone = append(gone, dir)
			}
			if c.gone.IsZero() {
				unread, waits, c.unread = append(unread, c.view.Name), err, true
			}
			continue
		}
		reading := r.level(dir, Container, now)
		if since.Kills == 0 {
			others = others.plus(reading.Held)
		} else {
			victims = append(victims, victim{container: c, dir: dir, counted: since, reading: reading, late: c.unread && p.unjudged.Kills > 0})
			found = found.plus(since)
		}
		c.unread = false
	}
	if len(gone) == 0 && !away && p.unread.IsZero() { // it was killed before it had started, and not before it was created
		gone = starting
	}
	slices.Sort(unread)
	whole = r.level(p.cgroup, Pod, now)
	for i := range victims {
		if victims[i].reading.Gone { // since it was counted
			victims[i].remains(whole, others)
		}
	}
	together = together.plus(p.unjudged)
	if found.Kills >= together.Kills { // the kernel counts in the container first
		known := r.file.Known[p.cgroup]
		known.Kills += found.Kills - together.Kills
		if shown, _, err := readCounters(r.options.Tree, p.cgroup); err == nil { // others were counted before their container was known
			known.Kills = min(known.Kills, shown.Kills)
		}
		r.file.Known[p.cgroup] = known
		return victims, whole, unread, nil
	}
	left := together.since(found)
	left.OOM = together.OOM             // of the pod's limit, not of theirs
	if left.Kills <= p.unjudged.Kills { // what was hit since was hit for others
		left.OOM, left.Below = p.unjudged.OOM, p.unjudged.Below
	}
	late := p.unjudged.Kills > 0
	if p.unjudged = left; waits != nil && !ended {
		return victims, whole, unread, waits
	}
	of := left.hit(whole)
	lost := victim{counted: counters{Kills: left.Kills, Groups: left.Groups}, late: late, reading: Reading{Level: Container, Gone: true, Hit: of.Below && !of.Hit}}
	if len(gone) == 1 {
		lost.dir, lost.container = gone[0], p.containers[gone[0]]
		lost.remains(whole, others)
	}
	return append(victims, lost), whole, unread, nil
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
			known[dir] = known[dir].since(p.unjudged)
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
