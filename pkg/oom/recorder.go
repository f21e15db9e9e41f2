package oom

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

const (
	// hitAge is for how long a limit that was hit explains a kill: the kernel counts the one, then the other.
	hitAge = 5 * time.Second
	// pace is the least time between two looks, for a cgroup that is throttled is notified of all the time.
	pace = time.Millisecond
	// settle is how long changes of the view are collected.
	settle = 250 * time.Millisecond
	// lifeSign is the time between two of them in the file: nobody watched between the last one and the next start.
	lifeSign = time.Minute
)

// Options are what a Recorder works with.
type Options struct {
	Tree *cgroupfs.Tree
	View func() *ledger.View
	// Changed gets a value after View may show other pods or containers.
	Changed <-chan struct{}
	// Path is the file of verdicts.
	Path string
	// Proc is usually /proc.
	Proc string
	// Memory reads the NUMA nodes' free memory; nil knows none.
	Memory func() ([]deficit.Memory, error)
	Log    logrus.FieldLogger
	// OnVerdict, if set, receives each verdict once.
	OnVerdict func(Verdict)
}

// Recorder looks at a pod when the kernel counts an event of its memory, and judges when processes were killed in it.
type Recorder struct {
	options Options
	watcher *cgroupfs.Watcher // nil where there is none: pods are looked at with each sign of life
	pods    map[string]*pod   // by cgroup
	file    file
	dirty   bool // the file could not be written
	hits    map[string]hit
	began   bool // the pods that ran before the daemon have been looked at

	mu     sync.Mutex
	totals map[Total]uint64
}

// Total is what kills are counted by.
type Total struct {
	Cause Cause
	Level Level
}

// hit is when a cgroup's own limit, and one below it or its own, was seen to be hit.
type hit struct{ own, below time.Time }

type pod struct {
	cgroup     string
	view       *ledger.PodView
	containers map[string]*container // by cgroup
	sampled    time.Time
	max, high  uint64 // of memory.events when it was looked at
}

type container struct {
	view      ledger.ContainerView
	max, high uint64
	samples   samples
}

// New returns a Recorder with the verdicts of its file. A file that cannot be read is set aside.
func New(o Options) *Recorder {
	r := &Recorder{options: o, pods: map[string]*pod{}, hits: map[string]hit{}, totals: map[Total]uint64{}}
	if err := r.file.load(o.Path, o.Proc); err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.Log.WithError(err).Warn("the verdicts on OOM kills cannot be read: those of before are not shown")
	}
	return r
}

// Totals count the processes that were killed since the daemon started.
func (r *Recorder) Totals() map[Total]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.totals)
}

// Run watches until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	var changes <-chan cgroupfs.Change
	watcher, err := cgroupfs.NewWatcher(r.options.Tree)
	if err != nil {
		r.options.Log.WithError(err).Warn("OOM kills are noticed once a minute only")
	} else {
		defer watcher.Close()
		r.watcher, changes = watcher, watcher.Changes()
	}
	ticker := time.NewTicker(lifeSign)
	defer ticker.Stop()
	r.sync(time.Now())
	r.save()
	var changed <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			r.sign(time.Now())
			return nil
		case <-r.options.Changed:
			if changed == nil {
				changed = time.After(settle)
			}
		case <-changed:
			changed = nil
			r.sync(time.Now())
		case change := <-changes:
			if p := r.pods[change.Cgroup]; p != nil {
				r.look(p, time.Now(), false)
			}
		case <-ticker.C:
			if r.watcher == nil {
				for _, p := range r.pods {
					r.look(p, time.Now(), false)
				}
			}
			r.sign(time.Now())
		}
		time.Sleep(pace)
	}
}

// sign says in the file that somebody watches, and writes what could not be written before.
func (r *Recorder) sign(now time.Time) {
	if r.dirty {
		r.save()
		return
	}
	_ = os.Chtimes(r.options.Path, now, now)
}

// sync has the recorder look at the pods of the view, and at no others.
func (r *Recorder) sync(now time.Time) {
	view := r.options.View()
	synchronized := slices.ContainsFunc(view.Conditions, func(c ledger.Condition) bool {
		return c.Name == ledger.ConditionSynchronized && c.OK
	})
	ended := maps.Clone(r.pods)
	for _, v := range view.Pods {
		if v.Cgroup == "" {
			continue
		}
		delete(ended, v.Cgroup)
		p, known := r.pods[v.Cgroup]
		if !known {
			p = &pod{cgroup: v.Cgroup, containers: map[string]*container{}}
			r.pods[v.Cgroup] = p
			if r.watcher != nil {
				_ = r.watcher.Watch(v.Cgroup, "memory.events") // one that has just ended has none
			}
			r.baseline(v.Cgroup)
		}
		p.meet(v)
		if !known || len(p.containers) > len(v.Containers) { // before what has ended is forgotten
			r.look(p, now, !known && !r.began)
		}
		p.forget()
	}
	r.began = r.began || synchronized
	for dir := range ended {
		r.look(r.pods[dir], now, false)
		delete(r.pods, dir)
		if r.watcher != nil {
			r.watcher.Unwatch(dir)
		}
	}
}

// baseline takes the counters of a pod's parents as they are when they are met first: whom they were for is not known.
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

// meet takes a pod's containers from the view.
func (p *pod) meet(v *ledger.PodView) {
	p.view = v
	for _, c := range v.Containers {
		if c.Cgroup == "" {
			continue
		}
		if p.containers[c.Cgroup] == nil {
			p.containers[c.Cgroup] = &container{}
		}
		p.containers[c.Cgroup].view = c
	}
}

// forget leaves out the containers that are not in the view any more.
func (p *pod) forget() {
	maps.DeleteFunc(p.containers, func(dir string, _ *container) bool {
		return !slices.ContainsFunc(p.view.Containers, func(c ledger.ContainerView) bool { return c.Cgroup == dir })
	})
}

// count reads a cgroup's counters, notes which limits were hit, and returns what is new.
func (r *Recorder) count(dir string, now time.Time) (counters, cgroupfs.Events, error) {
	read, events, err := readCounters(r.options.Tree, dir)
	if err != nil {
		return counters{}, events, err
	}
	since := read.since(r.file.Known[dir])
	if since == (counters{}) {
		return since, events, nil
	}
	h := r.hits[dir]
	if since.OOM > 0 {
		h.own = now
	}
	if since.Below > 0 {
		h.below = now
	}
	r.hits[dir], r.file.Known[dir] = h, read
	return since, events, nil
}

// look reads a pod's counters, and judges when processes were killed. Away is set for a pod that ran while nobody watched.
func (r *Recorder) look(p *pod, now time.Time, away bool) {
	since, events, err := r.count(p.cgroup, now)
	if err != nil { // it has just ended
		return
	}
	if since.Below > 0 || since.Kills > 0 {
		r.judge(p, now, away, since.Kills)
		return
	}
	if events.Max > p.max || events.High > p.high {
		p.max, p.high = events.Max, events.High
		r.sample(p, now)
	}
}

// sample looks at the containers of a pod that came near their limits since they were looked at.
func (r *Recorder) sample(p *pod, now time.Time) {
	if now.Sub(p.sampled) < sampleEvery {
		return
	}
	p.sampled = now
	for dir, c := range p.containers {
		events, err := r.options.Tree.Events(dir)
		if err != nil || events.Max == c.max && events.High == c.high {
			continue
		}
		c.max, c.high = events.Max, events.High
		if s, err := readSample(r.options.Tree, dir, events, now); err == nil {
			c.samples = c.samples.add(s)
		}
	}
}

// victim is a container that lost processes.
type victim struct {
	*container // nil where it is not known which one it was
	dir        string
	killed     uint64
	whole      bool
	reading    Reading
}

// judge finds the containers that lost processes, what was hit, and who shared it.
func (r *Recorder) judge(p *pod, now time.Time, away bool, killed uint64) {
	view := r.options.View()
	if i := slices.IndexFunc(view.Pods, func(v *ledger.PodView) bool { return v.Cgroup == p.cgroup }); i >= 0 {
		p.meet(view.Pods[i])
	}
	victims := r.victims(p, now, killed) // first of all: the runtime removes the cgroup of a container that has ended
	if len(victims) == 0 {               // a limit was hit, and the kill is to come
		for _, dir := range parents(p.cgroup) {
			_, _, _ = r.count(dir, now)
		}
		return
	}
	above := []Reading{r.level(p.cgroup, Pod, now)}
	for _, dir := range parents(p.cgroup) {
		_, _, _ = r.count(dir, now)
		above = append(above, r.level(dir, Parent, now))
	}
	for _, v := range victims {
		k := Kill{
			At: now, After: r.file.alive, Away: away, UID: p.view.UID, Processes: v.killed, Whole: v.whole,
			Victim: User{Namespace: p.view.Namespace, Pod: p.view.Name, victim: true},
			Chain:  append([]Reading{v.reading}, above...),
		}
		if v.container != nil {
			k.Victim.Container, k.Victim.Share = v.view.Name, v.view.Request
			k.ID, k.Nodes = v.view.ID, v.view.Nodes
			if kept := v.samples.since(now); len(kept) > 0 {
				k.Before = &kept[len(kept)-1]
			}
		}
		r.surroundings(&k, view, v.dir)
		verdict := Judge(k)
		if v.container != nil {
			verdict.Samples = v.samples.since(now)
		}
		r.give(verdict)
	}
	r.save()
}

// victims are the containers of a pod that lost processes, which are so many together. What is not found in the containers that are
// there was in the one that is gone.
func (r *Recorder) victims(p *pod, now time.Time, killed uint64) (victims []victim) {
	var gone []string
	var others Reading
	found := uint64(0)
	for dir, c := range p.containers {
		since, _, err := r.count(dir, now)
		if err != nil {
			gone = append(gone, dir)
			continue
		}
		reading := r.level(dir, Container, now)
		others.Held, others.Current = others.Held.plus(reading.Held), others.Current+reading.Current
		if since.Kills > 0 {
			// In a whole cgroup the kernel counts the process that it began with twice (mm/oom_kill.c, oom_kill_process).
			victims = append(victims, victim{container: c, dir: dir, killed: max(1, less(since.Kills, since.Groups)), whole: since.Groups > 0, reading: reading})
			found += since.Kills
		}
	}
	if found >= killed { // the kernel counts in the container first
		known := r.file.Known[p.cgroup]
		known.Kills += found - killed
		r.file.Known[p.cgroup] = known
		return victims
	}
	whole := r.level(p.cgroup, Pod, now)
	lost := victim{killed: killed - found, reading: Reading{Level: Container, Gone: true, Hit: whole.Below && !whole.Hit}}
	if len(gone) == 1 {
		lost.dir, lost.container = gone[0], p.containers[gone[0]]
		lost.remains(whole, others)
	}
	return append(victims, lost)
}

// remains reads what is left of a container whose cgroup is gone: its page cache, files in memory and kernel memory are the pod's now.
func (v *victim) remains(pod, others Reading) {
	v.reading.Cgroup = v.dir
	if limit := v.view.Limit; !pod.Gone && limit > 0 {
		v.reading.Limit, v.reading.Gone = limit, false
		v.reading.Held, v.reading.Current = pod.Held.less(others.Held), less(pod.Current, others.Current)
	}
}

// level reads a cgroup and what is known of its limit.
func (r *Recorder) level(dir string, level Level, now time.Time) Reading {
	reading := readLevel(r.options.Tree, dir, level)
	h := r.hits[dir]
	reading.Hit, reading.Below = now.Sub(h.own) <= hitAge, now.Sub(h.below) <= hitAge
	return reading
}

// surroundings adds who shared what ran out.
func (r *Recorder) surroundings(k *Kill, view *ledger.View, dir string) {
	if k.Away {
		return
	}
	if r.options.Memory != nil {
		k.Memory, k.Reserve = r.memory(view)
	}
	if dir != "" {
		if nodes, err := r.options.Tree.EffectiveNodes(dir); err == nil {
			k.Nodes = nodes
		}
	}
	switch level, _ := k.Hit(); level {
	case Pod:
		k.Users = r.containersOf(view, k.UID, dir)
	case Parent, Node:
		k.Users = r.podsOf(view, k.UID)
		if level == Node {
			k.Users = append(k.Users, r.outside(view))
		}
	case NUMANode:
		k.Users = r.usersOf(view, k.Nodes, dir)
	}
}

func (r *Recorder) containersOf(view *ledger.View, uid, victim string) (users []User) {
	for pod, c := range view.Containers() {
		if pod.UID != uid || c.Cgroup == "" {
			continue
		}
		held, err := readHeld(r.options.Tree, c.Cgroup)
		if err != nil && c.Cgroup != victim {
			continue
		}
		users = append(users, User{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name, Used: held.unreclaimable(), Share: c.Request,
			Limit: c.Limit, victim: c.Cgroup == victim})
	}
	return users
}

func (r *Recorder) podsOf(view *ledger.View, victim string) (users []User) {
	for _, pod := range view.Pods {
		held, err := readHeld(r.options.Tree, pod.Cgroup)
		if pod.Cgroup == "" || err != nil {
			continue
		}
		u := User{Namespace: pod.Namespace, Pod: pod.Name, Used: held.unreclaimable(), victim: pod.UID == victim}
		for _, c := range pod.Containers {
			u.Share += c.Request
		}
		users = append(users, u)
	}
	return users
}

// outside is what the node's own processes use beyond all pods, beside what is reserved for them.
func (r *Recorder) outside(view *ledger.View) User {
	info, err := sysfs.Meminfo(r.options.Proc)
	if err != nil {
		return User{Outside: true}
	}
	used := info["AnonPages"] + info["Shmem"] + info["SUnreclaim"] + info["KernelStack"] + info["PageTables"]
	if held, err := readHeld(r.options.Tree, view.Kubepods()); err == nil {
		used -= min(used, held.Processes+held.Tmpfs+held.Kernel)
	}
	total := view.Config.Machine.MemTotal
	return User{Outside: true, Used: used, Share: total - min(total, view.Config.QoS.NodeAllocatable)}
}

// usersOf are the containers with memory on some NUMA nodes, and what they are allocated there.
func (r *Recorder) usersOf(view *ledger.View, nodes nodeset.Set, victim string) (users []User) {
	for pod, c := range view.Containers() {
		stat, err := r.options.Tree.NUMAStat(c.Cgroup)
		if c.Cgroup == "" || err != nil {
			continue
		}
		u := User{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name, victim: c.Cgroup == victim}
		for id := range nodes.All() {
			u.Used += stat["anon"][id] + stat["shmem"][id]
		}
		for _, block := range c.Blocks {
			for _, amount := range block.PerNode {
				if block.Type == memorymanager.Memory && nodes.Has(amount.Node) {
					u.Share += amount.Bytes
				}
			}
		}
		users = append(users, u)
	}
	return users
}

// memory reads the NUMA nodes, and the free memory that the kernel keeps.
func (r *Recorder) memory(view *ledger.View) (nodes []NodeMemory, reserve uint64) {
	read, err := r.options.Memory()
	if err != nil {
		return nil, 0
	}
	for _, m := range read {
		n := NodeMemory{ID: m.Node, Free: m.Free}
		for _, state := range view.Nodes {
			for _, table := range state.Memory {
				if state.ID == m.Node && table.Type == memorymanager.Memory {
					n.Allocated = table.Reserved
				}
			}
		}
		nodes = append(nodes, n)
	}
	data, _ := os.ReadFile(filepath.Join(r.options.Proc, "sys/vm/min_free_kbytes"))
	kilobytes, _ := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 54)
	return nodes, kilobytes << 10
}

// give hands a verdict on.
func (r *Recorder) give(v Verdict) {
	r.file.add(v)
	r.mu.Lock()
	r.totals[Total{v.Cause, v.Level}] += v.Processes
	r.mu.Unlock()
	r.options.Log.WithFields(logrus.Fields{"pod": v.Namespace + "/" + v.Pod, "container": v.Container, "id": v.ID, "level": v.Level, "cause": v.Cause}).
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
	err := r.file.save(r.options.Path)
	if err != nil && !r.dirty {
		r.options.Log.WithError(err).Warn("the verdicts on OOM kills cannot be written; trying again each minute")
	}
	r.dirty = err != nil
}
