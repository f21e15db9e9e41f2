package oom

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

const (
	// hitAge is for how long a limit that was hit explains a kill: the kernel counts the one, then the other.
	hitAge = 5 * time.Second
	// killTime is for how long it explains more after the first one: the kernel counts the processes of a whole cgroup one after the other.
	killTime = 800 * time.Millisecond
	// settle is how long a kill waits for what the kernel counts next.
	settle = 200 * time.Millisecond
	// collect is how long changes of the view are collected. A new container, which its runtime takes longer to start, may be killed at once
	// and be gone from the view.
	collect = 50 * time.Millisecond
	// noticeEvery is the least time between two reads of a pod whose counters the kernel reports as changed.
	noticeEvery = 100 * time.Millisecond
	// pace is the least time between two looks, for a cgroup that is throttled is notified of all the time.
	pace = time.Millisecond
	// period is the time between two looks at what all containers use, and between two signs of life in the file: nobody watched between
	// the last one and the next start.
	period = 30 * time.Second
	// restingRounds is how many rounds in a row skip a container that does not grow and is far from its limit.
	restingRounds = 9
)

// Options are what a Recorder works with.
type Options struct {
	Tree *cgroupfs.Tree
	View func() *ledger.View
	// Changed gets a value after View may show other pods or containers.
	Changed <-chan struct{}
	// Path is the file of verdicts.
	Path string
	// Proc is usually /proc, and Sys /sys; "" has no filesystem known.
	Proc, Sys string
	// MemInfo reads the NUMA nodes' free memory; nil knows none.
	MemInfo func() ([]deficit.MemInfo, error)
	Log     logrus.FieldLogger
	// OnVerdict, if set, receives each verdict once.
	OnVerdict func(Verdict)
	// OnHigh, if set, receives the cgroup of a pod in which a memory.high is reached, about ten times a second at most.
	OnHigh func(pod string)
}

// Recorder reads a pod's counters when the kernel reports a change, and gives a verdict on each kill in the pod.
type Recorder struct {
	options Options
	watcher *cgroupfs.Watcher // nil where there is none
	blind   bool              // a pod could not be watched, in the log
	pods    map[string]*pod   // by cgroup
	file    file
	store   *store
	failing bool // the file is not written, in the log
	hits    map[string]hit
	kills   map[string]*kill // without a verdict yet, by cgroup
	began   bool             // the pods that ran before the daemon have been looked at
	synced  bool             // the view has all pods
	wake    time.Time        // when kills are due and containers that grow are looked at; zero: they wait for the period

	mu     sync.Mutex
	totals map[Total]uint64
	shown  []Verdict        // as in the file
	risks  map[string]*Risk // by cgroup
}

// Total is the key by which kills are counted.
type Total struct {
	Cause Cause
	Level Level
}

// hit is when a cgroup's own limit, and one below it or its own, was seen to be hit, and how many hits of its own explain no kill yet.
type hit struct {
	own, below time.Time
	left       uint64
}

type pod struct {
	cgroup     string
	watched    bool      // otherwise it is looked at with each sign of life
	away       bool      // it may have run while no daemon watched, and has not been read completely since
	after      time.Time // when a daemon last watched before this one
	unread     time.Time // until then it was looked at; since, it or a container could not be read, which is in the log; zero: it is read
	unjudged   unjudged  // kills without a verdict, perhaps of a container that cannot be read
	view       *ledger.PodView
	containers map[string]*container // by cgroup
	sampled    time.Time
	rests      time.Time // until then it is not read again
	again      bool      // it is to be read then
	max, high  uint64    // of memory.events when it was looked at
}

type container struct {
	view      *ledger.ContainerView
	max, high uint64
	samples   samples
	next      time.Time // when it is looked at again because it grows; zero: with all others
	used      uint64    // in the last round that looked at it
	apart     uint64    // rounds that leave it out after that
	left      uint64    // of them, those to come
	peak      uint64    // memory.peak in the last round, of a container without a limit
	gone      time.Time // when its cgroup was first missed
	unread    bool      // it could not be read when its pod lost processes
}

// New returns a Recorder with the verdicts of its file. A file that cannot be read is set aside.
func New(o Options) *Recorder {
	r := &Recorder{options: o, pods: map[string]*pod{}, hits: map[string]hit{}, kills: map[string]*kill{}, totals: map[Total]uint64{},
		risks: map[string]*Risk{}, store: newStore(o.Path)}
	if err := r.file.load(o.Path, o.Proc); err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.Log.WithError(err).Warn("the verdicts on OOM kills cannot be read: those of before are not shown")
	}
	r.shown = r.file.Verdicts
	return r
}

// Last is the newest verdict on a container of a pod, nil where there is none.
func (r *Recorder) Last(uid, container string) *Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range slices.Backward(r.shown) {
		if v.UID == uid && v.Container == container {
			return &v
		}
	}
	return nil
}

// Totals count kills, of processes or of whole containers, since the daemon started.
func (r *Recorder) Totals() map[Total]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.totals)
}

// Count is the sum of Totals.
func (r *Recorder) Count() (sum uint64) {
	for _, kills := range r.Totals() {
		sum += kills
	}
	return sum
}

// Run watches until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	if cgroupfs.Mounted(r.options.Proc, "memory_localevents") {
		r.options.Log.Warn("OOM kills get no verdict: with its mount option memory_localevents, a pod's memory.events counts nothing of its containers; mount cgroup2 without it")
	}
	changes := r.beginWatching()
	defer func() {
		if r.watcher != nil {
			r.watcher.Close()
		}
	}()
	r.begin(time.Now())
	var changed <-chan time.Time
	for {
		var due <-chan time.Time
		if !r.wake.IsZero() {
			due = time.After(time.Until(r.wake))
		}
		select {
		case <-ctx.Done():
			r.judge(time.Now().Add(settle)) // what waits is due
			r.sign(time.Now())
			return nil
		case <-r.options.Changed:
			switch {
			case !r.began: // what comes after the pods that were there is new
				r.begin(time.Now())
			case changed == nil:
				changed = time.After(collect)
			}
		case <-changed:
			changed = nil
			r.sync(time.Now())
		case told, ok := <-changes:
			if !ok { // another watcher is made at the next tick
				changes = nil
				r.stopWatching()
			}
			for change := range told {
				if p := r.pods[change.Cgroup]; p != nil {
					r.notice(p, time.Now())
				}
			}
		case <-due:
			r.wake = time.Time{}
			r.lookAgain(time.Now())
			r.judge(time.Now())
			r.round(time.Now(), false)
		case <-ticker.C:
			if r.watcher == nil {
				changes = r.beginWatching()
			}
			r.lookAtUnwatched(time.Now())
			r.round(time.Now(), true)
			r.forgetRisks(time.Now())
			r.sign(time.Now())
		}
		time.Sleep(pace)
	}
}

// beginWatching returns the changes of the kernel's counters; nil where it cannot be told of any.
func (r *Recorder) beginWatching() <-chan map[cgroupfs.Change]bool {
	watcher, err := cgroupfs.NewWatcher(r.options.Tree)
	if err != nil {
		r.isBlind(err)
		return nil
	}
	r.watcher = watcher
	return watcher.Changes()
}

// stopWatching logs that the kernel reports no changes any more.
func (r *Recorder) stopWatching() {
	r.watcher.Close()
	r.watcher = nil
	r.isBlind(errors.New("the kernel's events cannot be read any more"))
	for _, p := range r.pods {
		p.watched = false
	}
}

// watch asks the kernel to report changes of a pod's counters.
func (r *Recorder) watch(p *pod) {
	if r.watcher == nil || p.watched {
		return
	}
	_, err := r.watcher.Watch(cgroupfs.Change{Cgroup: p.cgroup, File: "memory.events"})
	if p.watched = err == nil; err != nil && !errors.Is(err, fs.ErrNotExist) { // one that has just ended has none
		r.isBlind(err)
	}
}

// isBlind logs once that the kernel does not report changes of a pod.
func (r *Recorder) isBlind(err error) {
	if !r.blind {
		r.options.Log.WithError(err).Warnf("OOM kills in some pods are noticed every %v only; trying again", period)
	}
	r.blind = true
}

// isUnread logs once that kills in a pod are not counted until it and its containers can be read: those that no container's counter shows.
func (r *Recorder) isUnread(p *pod, err error, now time.Time) {
	if p.unread.IsZero() {
		p.unread = now.Add(-period) // it was looked at since
		r.options.Log.WithError(err).WithField("pod", p.view.Namespace+"/"+p.view.Name).
			Warn("OOM kills in this pod get no verdict until it can be read whose they are; trying again")
	}
}

// lookAtUnwatched reads the pods that could not be read before or whose changes the kernel does not report, and tries again to watch them.
func (r *Recorder) lookAtUnwatched(now time.Time) {
	for _, p := range r.pods {
		if !p.watched || p.away || !p.unread.IsZero() {
			r.watch(p)
			r.look(p, now)
		}
	}
}

// begin reads the pods that ran before the daemon, once the view has them. Before that the file does not say that somebody watches.
func (r *Recorder) begin(now time.Time) {
	r.sync(now)
	r.judge(now)
	if r.began {
		r.save()
	}
}

// soon makes Run wake at this time or earlier.
func (r *Recorder) soon(at time.Time) {
	if r.wake.IsZero() || at.Before(r.wake) {
		r.wake = at
	}
}

// sign records in the file that the daemon watches, and logs if the file could not be written for long.
func (r *Recorder) sign(now time.Time) {
	if !r.began {
		return
	}
	stats := r.store.writer.Stats()
	failing := stats.LastError != "" || stats.Pending && time.Since(stats.PendingSince) > period/2
	if failing && !r.failing {
		r.options.Log.WithFields(logrus.Fields{"file": r.options.Path, "error": stats.LastError}).
			Warn("the verdicts on OOM kills cannot be written, or the disk hangs; trying again")
	}
	r.failing = failing
	r.store.put(nil, now)
	if r.synced {
		r.file.alive = now
	}
}

// Close writes what is pending within ctx. Run has ended.
func (r *Recorder) Close(ctx context.Context) error { return r.store.writer.Close(ctx) }

// sync follows the pods of the view, and no others.
func (r *Recorder) sync(now time.Time) {
	view := r.options.View()
	r.synced = view.Synchronized()
	ended := maps.Clone(r.pods)
	for _, v := range view.Pods {
		if v.Cgroup == "" {
			continue
		}
		delete(ended, v.Cgroup)
		p, known := r.pods[v.Cgroup]
		if !known {
			p = &pod{cgroup: v.Cgroup, containers: map[string]*container{}, away: !(r.began && v.Fresh), after: r.file.alive}
			r.pods[v.Cgroup] = p
			r.watch(p)
			r.baseline(v.Cgroup)
		}
		more := p.meet(v) && known
		if more { // inotify does not report that a cgroup was made again; a second watch of the same one replaces the first
			p.watched = false
			r.watch(p)
		}
		if more || !known || len(p.containers) > len(v.Containers) { // before what has ended is forgotten
			r.look(p, now)
			r.outlived(p, now)
		}
		p.forget()
	}
	if r.began = r.began || r.synced; r.synced {
		r.file.alive = now
	}
	for dir := range ended {
		r.look(r.pods[dir], now)
		r.forget(r.pods[dir])
		if r.watcher != nil {
			r.watcher.Unwatch(cgroupfs.Change{Cgroup: dir, File: "memory.events"})
		}
	}
}

// outlived has the containers that ended before a look at their pod explain no later kills.
func (r *Recorder) outlived(p *pod, now time.Time) {
	for dir, c := range p.containers {
		if p.unread.IsZero() && c.view.State == ledger.Stopped && c.gone.IsZero() && r.options.Tree.Ended(dir) {
			c.gone = now.Add(-2 * hitAge)
		}
	}
}

// forget removes a pod that has ended. Cgroups with the same names that come later count from 0.
func (r *Recorder) forget(p *pod) {
	delete(r.pods, p.cgroup)
	for _, dir := range append(slices.Collect(maps.Keys(p.containers)), p.cgroup) {
		if r.options.Tree.Ended(dir) {
			delete(r.file.Known, dir)
		}
	}
}

// baseline records the counters of a pod's parents when they are first seen: it is unknown which pods they counted.
func (r *Recorder) baseline(pod string) {
	for _, dir := range parents(pod) {
		if _, met := r.hits[dir]; !met {
			r.hits[dir] = hit{}
			if now, _, err := readCounters(r.options.Tree, dir); err == nil {
				r.file.Known[dir] = now
			}
		}
	}
}

// countParents records which limits above the pods were hit: an old hit does not explain a new kill.
func (r *Recorder) countParents(now time.Time) {
	counted := map[string]bool{}
	for _, p := range r.pods {
		for _, dir := range parents(p.cgroup) {
			if !counted[dir] {
				_, _, _ = r.count(dir, now) // what cannot be read is read with the next kill
			}
			counted[dir] = true
		}
	}
}

// meet adds a pod's containers from the view, and reports whether one is new.
func (p *pod) meet(v *ledger.PodView) (more bool) {
	p.view = v
	for i := range v.Containers {
		c := &v.Containers[i]
		if c.Cgroup == "" {
			continue
		}
		if p.containers[c.Cgroup] == nil {
			p.containers[c.Cgroup], more = &container{}, true
		}
		p.containers[c.Cgroup].view = c
	}
	return more
}

// forget removes the containers that are not in the view any more.
func (p *pod) forget() {
	maps.DeleteFunc(p.containers, func(dir string, _ *container) bool {
		return !slices.ContainsFunc(p.view.Containers, func(c ledger.ContainerView) bool { return c.Cgroup == dir })
	})
}

// count reads a cgroup's counters, records which limits were hit, and returns the differences since the last read.
func (r *Recorder) count(dir string, now time.Time) (counters, cgroupfs.Events, error) {
	read, events, err := readCounters(r.options.Tree, dir)
	if err != nil {
		return counters{}, events, err
	}
	since := read.after(r.file.Known[dir])
	if since == (counters{}) {
		if read == since { // perhaps it was made again
			delete(r.file.Known, dir)
		}
		return since, events, nil
	}
	h := r.hits[dir]
	if since.OOM > 0 {
		if now.Sub(h.own) > hitAge { // they explain nothing any more
			h.left = 0
		}
		h.own, h.left = now, h.left+since.OOM
	}
	if since.Below > 0 {
		h.below = now
	}
	r.hits[dir], r.file.Known[dir] = h, read
	return since, events, nil
}

// notice reads a pod whose counters have changed: at most ten times a second, and five if processes were killed, because then all of its
// containers are read.
func (r *Recorder) notice(p *pod, now time.Time) {
	if p.again = now.Before(p.rests); p.again {
		r.soon(p.rests)
		return
	}
	p.rests = now.Add(noticeEvery)
	r.look(p, now)
}

// lookAgain reads the pods that changed within noticeEvery.
func (r *Recorder) lookAgain(now time.Time) {
	for _, p := range r.pods {
		if p.again {
			r.notice(p, now)
		}
	}
}

// look reads a pod's counters, and more if processes were killed.
func (r *Recorder) look(p *pod, now time.Time) {
	defer progress.Begin("the recorder of OOM kills")()
	since, events, err := r.count(p.cgroup, now)
	if err != nil {
		switch {
		case !errors.Is(err, fs.ErrNotExist):
			r.isUnread(p, err, now)
		case p.unjudged.Kills > 0: // it has just ended
			r.killed(p, now, false, counters{})
		}
		return
	}
	away := p.away
	p.away = false
	p.max, p.high = min(p.max, events.Max), min(p.high, events.High) // they may have begun again
	hit := events.Max > p.max && !away
	if since.Below > 0 || since.Kills > 0 {
		if since.Kills == 0 { // which is to come, and will free what is there
			r.sample(p, now, hit)
		}
		r.killed(p, now, away, since)
		return
	}
	if p.unjudged.Kills > 0 {
		r.killed(p, now, away, since)
	} else {
		p.unread = time.Time{}
	}
	if events.High > p.high && r.options.OnHigh != nil {
		r.options.OnHigh(p.cgroup)
	}
	if events.Max > p.max || events.High > p.high {
		p.max, p.high = events.Max, events.High
		r.sample(p, now, hit)
	}
}

// sample reads the containers of a pod that came near their limits since the last read. hit is set if a limit was hit: the pod's is hit
// before the limit of its only container, which then counts nothing.
func (r *Recorder) sample(p *pod, now time.Time, hit bool) {
	if now.Sub(p.sampled) < sampleEvery {
		return
	}
	p.sampled = now
	for dir, c := range p.containers {
		events, err := r.options.Tree.Events(dir)
		counted := events.Max != c.max || events.High != c.high
		if err != nil || !counted && !hit {
			continue
		}
		c.max, c.high = events.Max, events.High
		s, err := readSample(r.options.Tree, dir, events, c.view.Mems(), now)
		if err != nil {
			continue
		}
		risks := hit && s.atRisk(c.view)
		if risks {
			r.risk(dir, s)
		}
		if counted || risks {
			c.samples = c.samples.add(s)
		}
	}
}

// rest skips a container below half of its limit for a quarter of the rounds after which it reaches that half at its present growth.
func (c *container) rest(current, half uint64) {
	grown := less(current, c.used) / (c.apart + 1)
	c.apart = min(less(half, current)/max(grown, 1)/4, restingRounds)
	c.used, c.left = current, c.apart
}

// round reads the containers that grow towards their limits, or all. A container below half of its limit takes one read, and not in each round;
// one above it that hardly changes takes one, too, in most rounds.
func (r *Recorder) round(now time.Time, all bool) {
	if all {
		r.countParents(now)
	}
	for _, p := range r.pods {
		for dir, c := range p.containers {
			limit := c.view.Limit
			if limit == 0 && all {
				var err error
				if c.peak, err = r.options.Tree.Peak(dir); err != nil {
					r.missed(dir, c, now)
				}
			}
			if limit == 0 || now.Before(c.next) || c.next.IsZero() && !all {
				if !c.next.IsZero() {
					r.soon(c.next)
				}
				continue
			}
			if c.left > 0 {
				c.left--
				continue
			}
			c.next = time.Time{}
			current, err := r.options.Tree.Current(dir)
			if err != nil {
				r.missed(dir, c, now)
				continue
			}
			if c.rest(current, limit/2); current < limit/2 {
				continue
			}
			var still bool
			if c.samples, still = c.samples.still(current, limit, now); still {
				continue
			}
			events, err := r.options.Tree.Events(dir)
			if err != nil {
				continue
			}
			s, err := readSample(r.options.Tree, dir, events, c.view.Mems(), now)
			if err != nil {
				continue
			}
			if wait := c.samples.again(s, limit); wait < period {
				c.next = now.Add(wait)
				r.soon(c.next)
			}
			c.samples = c.samples.add(s)
		}
	}
}

// give hands a verdict on.
func (r *Recorder) give(v Verdict) {
	r.file.add(v)
	r.mu.Lock()
	r.totals[Total{v.Cause, v.Level}] += v.Kills
	r.shown = r.file.Verdicts
	r.mu.Unlock()
	r.options.Log.WithFields(logrus.Fields{"pod": v.Namespace + "/" + v.Pod, "container": v.Container, "id": v.ID, "ranOut": v.Level, "cause": v.Cause}).
		Warn("OOM kill: " + v.Text())
	if r.options.OnVerdict != nil {
		r.options.OnVerdict(v)
	}
}

func (r *Recorder) save() {
	for dir := range r.file.Known {
		if !cgroup.Inside(dir) || r.options.Tree.Ended(dir) {
			delete(r.file.Known, dir)
			delete(r.hits, dir)
		}
	}
	data, err := r.file.encode(r.judged())
	if err != nil {
		r.options.Log.WithError(err).Error("the verdicts on OOM kills cannot be kept")
		return
	}
	r.store.put(data, time.Now())
}
