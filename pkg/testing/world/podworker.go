package world

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// Times of the kubelet.
const (
	firstBackOff = 10 * time.Second
	mostBackOff  = 5 * time.Minute
	retryPause   = 10 * time.Second // and up to half as much again: backOffPeriod and workerBackOffPeriodJitterFactor
	relist       = time.Second      // until it learns what the runtime knows
	collection   = time.Minute      // between two collections of what has ended
)

// pod is a pod of which one goroutine takes care, as in the kubelet.
type pod struct {
	*Kubelet
	ctx     context.Context
	spec    Pod
	cgroup  string
	draws   *rand.Rand
	news    chan struct{} // holds one after something has happened
	deleted atomic.Bool
	next    time.Time // something is to be done
	cpus    []int

	limited     uint64   // the pod's limit as its cgroup has it, in bytes; 0 is none
	changes     []Change // to come, in their order
	attempts    int      // sandboxes made
	retry       time.Time
	initialized bool // an app container of this sandbox has been started
	ended       []ended

	// The Kubelet's lock guards these, and what containers run; only the pod's goroutine writes them.
	facts      *pods.Pod
	sandboxes  []*api.PodSandbox // not removed yet
	current    *api.PodSandbox   // nil while there is none
	containers []*member
	ending     bool
	claims     map[string]heldClaim // by the name in the pod; empty before it is scheduled
}

// member is a container of a pod, as it is in the spec.
type member struct {
	spec      Container
	draws     *rand.Rand
	cpus      []int
	creates   int
	starts    int
	done      bool      // an init container that has ended well
	notBefore time.Time // when it may be tried again
	backOff   time.Duration
	restarted time.Time // when backOff was last used
	resizing  bool
	resize    time.Time // not before

	running *instance // nil while none does; guarded by the Kubelet's lock
}

// instance is a container that was started.
type instance struct {
	id, cgroup      string
	score, kubelets int64 // oom_score_adj as created, and as the kubelet asked for it
	since           time.Time
	exit            *Exit // once the kubelet knows
	finished        time.Time
}

// ended is a container or a sandbox that has ended and is to be removed.
type ended struct {
	id      string
	sandbox bool
	due     time.Time
}

func (k *Kubelet) newPod(ctx context.Context, spec Pod) *pod {
	name := fmt.Sprint(spec.Namespace, "/", spec.Name)
	uid := identify(name)[:32]
	if !spec.Static {
		name += "@" + time.Duration(spec.At).String()
		h := identify(k.scenario.Seed, name)
		uid = fmt.Sprintf("%s-%s-4%s-a%s-%s", h[:8], h[8:12], h[13:16], h[17:20], h[20:32])
	}
	p := &pod{Kubelet: k, ctx: ctx, spec: spec, draws: draws(k.scenario.Seed, name), news: make(chan struct{}, 1),
		facts: factsOf(spec, uid), cgroup: k.podCgroup(spec.Class, uid), changes: slices.Clone(spec.Changes)}
	slices.SortStableFunc(p.changes, func(a, b Change) int { return int(a.At - b.At) })
	for _, c := range spec.Containers {
		p.containers = append(p.containers, &member{spec: c, draws: draws(k.scenario.Seed, name, "/", c.Name)})
	}
	return p
}

// factsOf is what the pod API says of a pod.
func factsOf(spec Pod, uid string) *pods.Pod {
	facts := &pods.Pod{Ref: pods.Ref{UID: uid, Namespace: spec.Namespace, Name: spec.Name}, Class: memoryqos.QOSClass(spec.Class), Static: spec.Static,
		PriorityClass: spec.PriorityClass}
	if spec.Request > 0 {
		facts.PodRequest = &spec.Request
	}
	if spec.Limit > 0 {
		facts.PodLimit = &spec.Limit
	}
	for _, c := range spec.Containers {
		one := pods.Container{Name: c.Name, Request: c.Request, Limit: c.Limit}
		must(one.Kind.UnmarshalText([]byte(c.Kind)))
		one.Guaranteed = c.Request == c.Limit && c.Limit > 0 && (c.CPUs > 0 || facts.Class == memoryqos.Guaranteed && !facts.PodLevel())
		if c.Hugepages > 0 {
			one.Hugepages = memorymanager.Request{{Type: memorymanager.Hugepages(2 << 20), Bytes: c.Hugepages}}
		}
		facts.Containers = append(facts.Containers, one)
	}
	return facts
}

func (p *pod) at(d Duration) time.Time { return p.began.Add(time.Duration(d)) }

// sleep is false where the run ends meanwhile.
func (p *pod) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return p.ctx.Err() == nil
	case <-p.ctx.Done():
		return false
	}
}

// soon has the pod be looked at again at a time.
func (p *pod) soon(at time.Time) {
	if p.next.IsZero() || at.Before(p.next) {
		p.next = at
	}
}

// due reports whether a time has come; else the pod is looked at then.
func (p *pod) due(at time.Time) bool {
	if time.Now().Before(at) {
		p.soon(at)
		return false
	}
	return true
}

func (p *pod) wait() {
	var timer <-chan time.Time
	if !p.next.IsZero() {
		timer = time.After(time.Until(p.next))
	}
	select {
	case <-p.news:
	case <-timer:
	case <-p.over:
	case <-p.ctx.Done():
	}
	p.next = time.Time{}
}

func (p *pod) wake() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// alive is false once the pod is to end.
func (p *pod) alive() bool {
	select {
	case <-p.over:
		return false
	case <-p.ctx.Done():
		return false
	default:
		return !p.deleted.Load() && (p.spec.End == 0 || p.isQuiet() || !p.due(p.at(p.spec.End)))
	}
}

func (p *pod) locked(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// admit gives the pod its huge pages, its CPUs and its cgroup; false where the node has not enough of them.
func (p *pod) admit() bool {
	if !p.takeHugepages() {
		return false
	}
	for _, c := range p.containers {
		if p.spec.Class != string(memoryqos.Guaranteed) || c.spec.CPUs == 0 {
			continue
		}
		cpus := p.Kubelet.cpus.take(c.spec.CPUs)
		if cpus == nil {
			p.giveBack()
			return false
		}
		p.locked(func() { c.cpus = cpus })
		p.cpus = append(p.cpus, cpus...)
	}
	p.publish(p.facts)
	p.locked(func() { p.living = append(p.living, p) })
	must(p.kernel.Make(p.cgroup))
	p.limit()
	return true
}

// limit writes the pod's limit to its cgroup. Where somebody has just taken the memory controller away, it is written with the next
// container.
func (p *pod) limit() {
	limit, text := podLimit(p.facts), "max"
	if limit > 0 {
		text = strconv.FormatUint(limit, 10)
	}
	if p.kernel.Write(p.cgroup, "memory.max", text) == nil {
		p.limited = limit
	}
}

// podLimit is the pod's limit in bytes, 0 is none.
func podLimit(facts *pods.Pod) uint64 {
	if facts.PodLimit != nil {
		return *facts.PodLimit
	}
	var peak memoryqos.Peak
	for _, c := range facts.Containers {
		if c.Limit == 0 {
			return 0
		}
		peak.Add(c.Kind, c.Limit)
	}
	return peak.Bytes()
}

// sync does what is to be done now (kuberuntime_manager.go: computePodActions, SyncPod).
func (p *pod) sync() {
	p.seeExits()
	p.seeChanges()
	p.collect(false)
	if p.current == nil && !p.startSandbox() {
		return
	}
	p.startContainers()
	p.resizeContainers()
}

// seeExits takes in which containers have ended.
func (p *pod) seeExits() {
	for _, c := range p.containers {
		var exit *Exit
		p.locked(func() {
			if c.running != nil {
				exit = c.running.exit
			}
		})
		if exit == nil {
			continue
		}
		finished := c.running.finished
		p.bury(c)
		if c.spec.Kind == "init" && !exit.OOM {
			c.done = true
			continue
		}
		p.locked(func() { c.crashed(finished) })
	}
}

// crashed is the kubelet's CrashLoopBackOff: the first restart comes at once.
func (c *member) crashed(finished time.Time) {
	if finished.Sub(c.restarted) > 2*mostBackOff {
		c.backOff = 0
	}
	c.notBefore = finished.Add(c.backOff)
	c.backOff = min(max(2*c.backOff, firstBackOff), mostBackOff)
}

// bury has a container that has ended be removed later.
func (p *pod) bury(c *member) {
	p.ended = append(p.ended, ended{id: c.running.id, due: time.Now().Add(p.upTo(collection))})
	p.locked(func() { c.running = nil })
}

func (p *pod) upTo(d time.Duration) time.Duration { return time.Duration(p.draws.Int64N(int64(d))) }

// pause is the time before a request that failed is tried again.
func pause(r *rand.Rand) time.Duration {
	return retryPause + time.Duration(r.Int64N(int64(retryPause/2)))
}

// collect removes what has ended, the containers of a sandbox before it.
func (p *pod) collect(all bool) {
	left := p.ended[:0:0]
	for _, e := range p.ended {
		if !all && !p.due(e.due) {
			left = append(left, e)
			continue
		}
		if err := p.remove(e); err != nil {
			e.due = time.Now().Add(pause(p.draws))
			p.soon(e.due)
			left = append(left, e)
		}
	}
	p.ended = left
}

func (p *pod) remove(e ended) error {
	if !e.sandbox {
		return p.runtime.RemoveContainer(e.id)
	}
	err := p.runtime.RemovePodSandbox(e.id)
	if err == nil {
		p.locked(func() {
			p.sandboxes = slices.DeleteFunc(p.sandboxes, func(s *api.PodSandbox) bool { return s.Id == e.id })
		})
	}
	return err
}

func (p *pod) startSandbox() bool {
	if !p.due(p.retry) {
		return false
	}
	if !p.prepare() {
		p.retry = time.Now().Add(pause(p.draws))
		p.soon(p.retry)
		return false
	}
	p.attempts++
	sandbox := p.sandbox()
	if err := p.runtime.RunPodSandbox(sandbox); err != nil {
		p.retry = time.Now().Add(pause(p.draws))
		p.soon(p.retry)
		return false
	}
	p.locked(func() { p.current, p.sandboxes = sandbox, append(p.sandboxes, sandbox) })
	return true
}

// startContainers starts what is next: init containers one after the other, sidecars in their place, then all apps.
func (p *pod) startContainers() {
	for _, c := range p.containers {
		app := c.spec.Kind == "app"
		if c.done || p.initialized && c.spec.Kind == "init" {
			continue
		}
		runs := c.running != nil || p.start(c)
		if !app && !p.initialized && (!runs || c.spec.Kind == "init") {
			return
		}
		p.initialized = p.initialized || app && runs
	}
}

// start makes and starts a container; false where it has to wait.
func (p *pod) start(c *member) bool {
	if !p.due(c.notBefore) {
		return false
	}
	if podLimit(p.facts) != p.limited {
		p.limit()
	}
	c.creates++
	id := identify(p.scenario.Seed, p.facts.UID, c.spec.Name, p.current.Id, c.creates)
	made := p.container(c, id)
	kubelets := made.Linux.OomScoreAdj.GetValue()
	dir, err := p.runtime.CreateContainer(made)
	if err != nil {
		c.notBefore = time.Now().Add(pause(c.draws))
		p.soon(c.notBefore)
		return false
	}
	run := &instance{id: id, cgroup: dir, score: made.Linux.OomScoreAdj.GetValue(), kubelets: kubelets, since: time.Now()}
	p.locked(func() { c.running, c.resizing = run, false })
	c.restarted = run.since
	learned := time.Duration(c.draws.Int64N(int64(relist)))
	if err := p.runtime.StartContainer(id, p.life(c), p.who(c, id), c.ending(), func(exit Exit) {
		finished := time.Now()
		time.AfterFunc(learned, func() {
			p.locked(func() { run.exit, run.finished = &exit, finished })
			p.wake()
		})
	}); err != nil {
		p.bury(c)
		c.crashed(time.Now())
		c.notBefore = time.Now().Add(max(c.backOff, pause(c.draws)))
		p.soon(c.notBefore)
		return false
	}
	return true
}

// life is what this start of a container does.
func (p *pod) life(c *member) (program Program) {
	quiet := p.isQuiet()
	if !quiet || c.starts == 0 {
		c.starts++
	}
	if lives := c.spec.Lives; len(lives) > 0 {
		program = lives[min(c.starts, len(lives))-1]
	}
	if quiet && c.spec.Kind != "init" {
		program.Exit = 0
	}
	return program
}

// ending draws how this container's end becomes known: mostly at once, now and then late, seldom never.
func (c *member) ending() Ending {
	gap := func() time.Duration {
		most := 300 * time.Millisecond
		if c.draws.IntN(5) == 0 {
			most = 5 * time.Second
		}
		return time.Millisecond + time.Duration(c.draws.Int64N(int64(most)))
	}
	return Ending{Grace: gap(), Notice: gap(), Gone: gap(), Lost: c.draws.IntN(40) == 0}
}

// seeChanges does what somebody wants of the pod by now.
func (p *pod) seeChanges() {
	for len(p.changes) > 0 && !p.isQuiet() && p.due(p.at(p.changes[0].At)) {
		change := p.changes[0]
		p.changes = p.changes[1:]
		switch change.Kind {
		case Resize:
			p.allocate(change)
		case NewSandbox:
			p.stop()
			p.initialized = false
			for _, c := range p.containers {
				c.done, c.notBefore = false, time.Time{}
			}
		}
	}
}

// stop ends the containers and the sandbox.
func (p *pod) stop() {
	for _, c := range p.stopOrder() {
		if c.running != nil {
			p.until(func() error { return p.runtime.StopContainer(c.running.id) })
			p.bury(c)
		}
	}
	if p.current == nil {
		return
	}
	p.until(func() error { return p.runtime.StopPodSandbox(p.current.Id) })
	p.ended = append(p.ended, ended{id: p.current.Id, sandbox: true, due: time.Now().Add(collection + p.upTo(collection))})
	p.locked(func() { p.current = nil })
}

// stopOrder has sidecars last, the last one first.
func (p *pod) stopOrder() (order []*member) {
	for _, c := range p.containers {
		if c.spec.Kind != "sidecar" {
			order = append(order, c)
		}
	}
	for _, c := range slices.Backward(p.containers) {
		if c.spec.Kind == "sidecar" {
			order = append(order, c)
		}
	}
	return order
}

// until tries a request until it is done.
func (p *pod) until(do func() error) {
	for do() != nil && p.sleep(pause(p.draws)) {
	}
}

// terminate ends the pod: containers, sandbox, cgroup. A pod that is deleted by force is gone from the API before.
func (p *pod) terminate() {
	p.locked(func() { p.ending = true })
	if p.spec.Forced {
		p.unpublish()
		p.deallocate(p.heldClaims())
		if p.draws.IntN(4) == 0 {
			p.hush()
		}
		p.sleep(p.upTo(30 * time.Second))
	}
	p.stop()
	held := p.heldClaims()
	p.unprepare()
	if p.ctx.Err() != nil {
		return
	}
	_ = p.kernel.Remove(p.cgroup)
	if !p.spec.Forced {
		p.unpublish()
		p.deallocate(held)
	}
	p.drop(p)
	p.giveBack()
}

// takeHugepages is false where the node's other pods leave too few.
func (p *pod) takeHugepages() (enough bool) {
	p.locked(func() {
		if enough = p.hugepages() <= p.hugeFree; enough {
			p.hugeFree -= p.hugepages()
		}
	})
	return enough
}

// hugepages is how many bytes of them the pod asks for.
func (p *pod) hugepages() (sum uint64) {
	for _, c := range p.spec.Containers {
		sum += c.Hugepages
	}
	return sum
}

// giveBack is done with what the pod was admitted with.
func (p *pod) giveBack() {
	p.locked(func() { p.hugeFree += p.hugepages() })
	p.Kubelet.cpus.give(p.cpus)
}

// hush has nobody hear how the pod's containers end.
func (p *pod) hush() {
	for _, c := range p.containers {
		if c.running != nil {
			p.until(func() error { return p.runtime.Hush(c.running.id) })
		}
	}
}

// cleanUp removes what the pod has left at the runtime.
func (p *pod) cleanUp() {
	for p.sleep(p.upTo(collection)) && len(p.ended) > 0 {
		p.collect(true)
	}
}

// allocate takes a resize in: the pod has it, as the API says, from now on.
func (p *pod) allocate(change Change) {
	facts := *p.facts
	facts.Containers = slices.Clone(facts.Containers)
	if change.Container == "" {
		facts.PodRequest, facts.PodLimit = scaled(facts.PodRequest, facts.PodLimit, change.Limit)
	}
	for i := range facts.Containers {
		if c := &facts.Containers[i]; c.Name == change.Container && c.Limit > 0 {
			request, limit := scaled(&c.Request, &c.Limit, change.Limit)
			c.Request, c.Limit = *request, *limit
		}
	}
	p.locked(func() {
		p.facts = &facts
		for _, c := range p.containers {
			c.resizing = c.resizing || c.running != nil && (change.Container == "" || change.Container == c.spec.Name)
		}
	})
	for _, c := range p.containers {
		if c.running != nil {
			p.kernel.Requests(p.who(c, c.running.id))
		}
	}
	p.publish(&facts)
	if !slices.ContainsFunc(p.containers, func(c *member) bool { return c.resizing }) {
		p.limit()
	}
}

// scaled is a request that has grown as its limit has.
func scaled(request, limit *uint64, to uint64) (newRequest, newLimit *uint64) {
	if limit == nil || request == nil {
		return request, &to
	}
	r := uint64(float64(*request) / float64(*limit) * float64(to))
	if *request == *limit {
		r = to
	}
	return &r, &to
}

// resizeContainers brings running containers to what was allocated, and tries again later where the runtime refuses it.
func (p *pod) resizeContainers() {
	for _, c := range p.containers {
		if !c.resizing || c.running == nil || !p.due(c.resize) {
			continue
		}
		if err := p.actuate(c); err != nil {
			c.resize = time.Now().Add(pause(c.draws))
			p.soon(c.resize)
			continue
		}
		p.locked(func() { c.resizing = false })
	}
}

// actuate gives the container its limit, and the pod's cgroup its own: before that where it grows, else after.
func (p *pod) actuate(c *member) error {
	if podLimit(p.facts) == 0 || podLimit(p.facts) > p.limited {
		p.limit()
	}
	if err := p.runtime.UpdatePodSandbox(p.current.Id, &api.LinuxResources{Memory: memoryOf(podLimit(p.facts))}); err != nil {
		return err
	}
	spec, _ := p.facts.Container(c.spec.Name)
	if err := p.runtime.UpdateContainer(c.running.id, p.resources(c, spec)); err != nil {
		return err
	}
	p.limit()
	return nil
}

func (p *pod) shown() LivePod {
	live := LivePod{Pod: p.facts, Annotations: p.spec.Annotations, Labels: p.spec.Labels, Cgroup: p.cgroup, Ending: p.ending,
		Unknown: p.api.neverTold(p.facts.Ref), Claims: maps.Clone(p.claims)}
	for _, s := range p.sandboxes {
		live.Sandboxes = append(live.Sandboxes, s.Id)
	}
	for _, c := range p.containers {
		live.Restarts = live.Restarts || c.backOff > 0
		if c.running == nil {
			continue
		}
		spec, _ := p.facts.Container(c.spec.Name)
		live.Containers = append(live.Containers, LiveContainer{ID: c.running.id, Cgroup: c.running.cgroup, Spec: spec,
			Resizing: c.resizing, Claims: c.spec.Claims, CPUs: c.cpus, Since: c.running.since, Score: c.running.score, KubeletScore: c.running.kubelets})
	}
	return live
}
