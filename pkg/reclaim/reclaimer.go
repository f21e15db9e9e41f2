package reclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

const (
	// shortest and longest are the pauses between two looks at what is available. Page cache becomes active as fast as memory is read, and
	// the kubelet may look at any time.
	shortest = 250 * time.Millisecond
	longest  = 10 * time.Second
	// round is how long page cache is asked for between two looks.
	round = time.Second
	// callLimit is how long a call is waited for. The kernel may take longer: the container is left alone until it is done.
	callLimit = 2 * time.Second
	// mostCalls may be under way at once: each has a thread of its own while the kernel does not answer.
	mostCalls = 16
	// quiet is how long nothing must have been taken of a container before that is reported as one.
	quiet = time.Minute
)

// Options are what a Reclaimer works with.
type Options struct {
	Tree *cgroupfs.Tree
	Proc string // usually /proc
	View func() *ledger.View
	Log  logrus.FieldLogger
	// OnFreed, if set, receives once what was taken of a container, when nothing has been for a minute.
	OnFreed func(Freed)
}

// Freed is what was taken of a container.
type Freed struct {
	Container
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Calls uint64    `json:"calls"`
	// Bytes are those of page cache, Refaulted those that it has read again since.
	Bytes     uint64 `json:"bytes"`
	Refaulted uint64 `json:"refaultedBytes"`
	// Signal is what the kubelet saw at the last time.
	Signal Signal `json:"signal"`
}

// Text says in one line what was taken and why, without the container's name.
func (f Freed) Text() string {
	return fmt.Sprintf("%s of its page cache was reclaimed in %s, %s of which it read again: %s was %s, and below %s the kubelet evicts pods",
		quantity.Short(f.Bytes), f.Last.Sub(f.First).Round(time.Second), quantity.Short(f.Refaulted),
		f.Signal.Name, quantity.Short(f.Signal.Available), quantity.Short(f.Signal.Threshold))
}

// Report is what is known now.
type Report struct {
	// Unknown says why the kubelet's memory.available is not known; absent where it is.
	Unknown string `json:"unknown,omitempty"`
	// Signal is the one that is nearest to its threshold, and Below the available memory below which it reclaims; absent before the first look.
	*Signal
	Below uint64 `json:"reclaimBelow,omitempty"`
	// Containers are living ones of which page cache was taken, most first.
	Containers []Freed `json:"containers,omitempty"`
}

// Totals count since the daemon started. In dry run Calls and Bytes are those that would have been.
type Totals struct {
	Calls     uint64
	Bytes     map[memoryqos.QOSClass]uint64
	Refaulted uint64
}

// Reclaimer asks containers for page cache while the configuration wants it.
type Reclaimer struct {
	Options
	containers map[string]*watched // of which something was taken, or that are left alone, by ID
	swap       atomic.Bool         // the node has some
	again      allowance

	mu     sync.Mutex
	calls  int // under way
	report Report
	totals Totals
}

// watched is a container that was asked.
type watched struct {
	Container
	brake     brake
	freed     Freed // since all was quiet; Calls is 0 when nothing was taken
	refaulted uint64
	busy      bool  // a call is under way; guarded by Reclaimer.mu
	late      *call // one that had not returned within callLimit, until what came of it is entered
}

// call is what a container was asked for.
type call struct {
	before Usage
	bytes  uint64
	yields bool // although it rests
}

// New returns a Reclaimer that has not looked yet.
func New(o Options) *Reclaimer {
	return &Reclaimer{Options: o, containers: map[string]*watched{}, totals: Totals{Bytes: map[memoryqos.QOSClass]uint64{}}}
}

// Report is absent (nil) where the configuration does not want it.
func (r *Reclaimer) Report() *Report {
	if !r.View().Config.Config.ReclaimBeforeEviction {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	report := r.report
	return &report
}

// Totals are a copy.
func (r *Reclaimer) Totals() Totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := Totals{Calls: r.totals.Calls, Refaulted: r.totals.Refaulted, Bytes: map[memoryqos.QOSClass]uint64{}}
	for _, class := range classes {
		t.Bytes[class] = r.totals.Bytes[class]
	}
	return t
}

// Run looks until ctx ends.
func (r *Reclaimer) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.look(ctx)):
		}
	}
}

// look reads what is available, does what that asks for, and returns the pause until the next look.
func (r *Reclaimer) look(ctx context.Context) time.Duration {
	view := r.View()
	if !view.Config.Config.ReclaimBeforeEviction {
		return longest
	}
	signal, err := r.nearest(view)
	if err != nil {
		if r.report.Unknown == "" {
			r.Log.WithError(err).Warn("what the kubelet takes for available memory is not known: no page cache is reclaimed")
		}
		r.publish(Report{Unknown: err.Error()})
		return longest
	}
	if signal.Threshold == 0 { // the kubelet evicts nobody
		r.publish(Report{})
		return longest
	}
	r.follow(view, signal, time.Now())
	if left := signal.left(); left < 0 {
		r.free(ctx, view, signal, uint64(-left))
	}
	r.publish(Report{Signal: &signal, Below: signal.Begin(), Containers: r.taken()})
	return signal.next()
}

func (r *Reclaimer) publish(report Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report = report
}

// free asks containers for page cache, one class after the other, until so many bytes more are available, nobody has more to give, or
// it is time to look again.
func (r *Reclaimer) free(ctx context.Context, view *ledger.View, signal Signal, missing uint64) {
	end := time.Now().Add(round)
	for _, class := range classes {
		candidates := r.candidates(view, class, signal.evicts())
		for c := most(candidates); c != nil; c = most(candidates) {
			if missing == 0 || ctx.Err() != nil || time.Now().After(end) {
				return
			}
			more, made := r.ask(c, signal, view.Config.Config.DryRun())
			if missing -= min(missing, more); made && !signal.evicts() {
				return // as long as no pod is about to be evicted for it, the others do not pay for what it makes
			}
		}
	}
}

// candidates are the running containers of a class that may be asked.
func (r *Reclaimer) candidates(view *ledger.View, class memoryqos.QOSClass, evicts bool) (all []*candidate) {
	now := time.Now()
	pods := map[*ledger.PodView]*podSpare{}
	for pod, v := range view.Containers() {
		if pod.Class != class || v.Cgroup == "" || !v.State.Alive() {
			continue
		}
		c := Container{ID: v.ID, Namespace: pod.Namespace, Pod: pod.Name, UID: pod.UID, Name: v.Name, Cgroup: v.Cgroup, Class: class, Keeps: v.Values.Promised(v.Request + v.Error)}
		usage, err := r.usage(c.Cgroup)
		spare := usage.spare(c.Keeps)
		if err != nil || spare < smallest {
			continue // it has just ended, or has nothing to give
		}
		w := r.containers[c.ID]
		if w == nil {
			w = &watched{refaulted: usage.Refaulted}
			r.containers[c.ID] = w
		}
		w.Container = c
		if pods[pod] == nil {
			pods[pod] = r.podSpare(pod)
		}
		if !r.busy(w) && w.brake.allows(usage.Refaulted, now, evicts) {
			all = append(all, &candidate{w, usage, spare, pods[pod]})
		}
	}
	return all
}

// podSpare is what a pod uses beyond what it has requested as a whole, which its cgroup's memory.min and memory.low protect.
func (r *Reclaimer) podSpare(pod *ledger.PodView) *podSpare {
	keeps := uint64(0)
	if pod.Request != nil {
		keeps = *pod.Request
	}
	if keeps = pod.Values.Promised(keeps); keeps == 0 {
		return &podSpare{math.MaxUint64}
	}
	usage, _ := r.usage(pod.Cgroup) // one that has just ended has nothing to spare
	return &podSpare{usage.workingSet() - min(usage.workingSet(), keeps)}
}

// ask has the kernel reclaim a batch of a container's page cache, and returns how much more is available by it. Made is set where the
// container has made as much meanwhile.
func (r *Reclaimer) ask(c *candidate, signal Signal, dryRun bool) (more uint64, made bool) {
	spare := c.gives()
	c.spare = 0 // unless it is found to have more
	if dryRun { // what could be had is said once a minute
		c.brake.until = time.Now().Add(quiet)
		r.took(c.watched, spare, signal)
		c.pod.left -= spare
		return spare, false
	}
	asked := call{before: c.usage, bytes: min(signal.batch(), spare), yields: c.brake.yields(time.Now())}
	if asked.yields {
		if asked.bytes = min(asked.bytes, r.again.left(time.Now())); asked.bytes < smallest {
			return 0, false
		}
	}
	if !r.call(c.watched, asked) {
		c.brake.rest(time.Now(), true)
		return 0, false
	}
	after, err := r.usage(c.Cgroup)
	if err != nil { // it has just ended
		return 0, false
	}
	more, worth := r.returned(c.watched, asked, after, signal)
	c.pod.left -= min(c.pod.left, max(after.taken(asked.before), more))
	if !worth {
		return more, false
	}
	if made = more < asked.bytes/gain; !made {
		c.usage, c.spare = after, after.spare(c.Keeps)
	}
	return more, made
}

// returned enters what came of a call: how much more is available by it, and whether it was worth making.
func (r *Reclaimer) returned(w *watched, asked call, after Usage, signal Signal) (more uint64, worth bool) {
	taken := after.taken(asked.before)
	more = asked.before.workingSet() - min(asked.before.workingSet(), after.workingSet())
	r.took(w, taken, signal)
	if asked.yields {
		r.again.spend(taken)
	}
	return more, w.brake.gave(asked.bytes, taken, more, time.Now())
}

// call writes memory.reclaim, and reports whether the kernel was done in time. It counts as busy until the kernel is.
func (r *Reclaimer) call(w *watched, asked call) bool {
	r.mu.Lock()
	free := r.calls < mostCalls
	if free {
		w.busy = true
		r.calls++
	}
	r.mu.Unlock()
	if !free {
		return false
	}
	done := make(chan struct{})
	cgroup := w.Cgroup
	go func() {
		defer close(done)
		// What it gave is read from its files.
		if err := r.Tree.ReclaimCache(cgroup, asked.bytes); errors.Is(err, unix.EINVAL) && !r.swap.Load() {
			_ = r.Tree.Reclaim(cgroup, asked.bytes)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		w.busy = false
		r.calls--
	}()
	select {
	case <-done:
		return true
	case <-time.After(callLimit):
		w.late = &asked
		return false
	}
}

func (r *Reclaimer) busy(w *watched) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return w.busy
}

// took notes what was taken of a container.
func (r *Reclaimer) took(w *watched, bytes uint64, signal Signal) {
	now := time.Now()
	if w.freed.Calls == 0 {
		w.freed = Freed{Container: w.Container, First: now}
	}
	w.freed.Last, w.freed.Signal = now, signal
	w.freed.Calls++
	w.freed.Bytes += bytes
	r.mu.Lock()
	defer r.mu.Unlock()
	r.totals.Calls++
	r.totals.Bytes[w.Class] += bytes
}

// follow counts what containers read again and what late calls gave, reports on those of which nothing was taken for a minute, and forgets
// the ended.
func (r *Reclaimer) follow(view *ledger.View, signal Signal, now time.Time) {
	if len(r.containers) == 0 {
		return
	}
	alive := map[string]bool{}
	for _, c := range view.Containers() {
		alive[c.ID] = true
	}
	for id, w := range r.containers {
		usage, err := r.usage(w.Cgroup)
		if err == nil {
			r.refaulted(w, usage.Refaulted)
			if w.late != nil && !r.busy(w) {
				r.returned(w, *w.late, usage, signal)
				w.late = nil
			}
		}
		over := w.freed.Calls > 0 && (now.Sub(w.freed.Last) >= quiet || !alive[id])
		if over {
			r.say(w.freed, view.Config.Config.DryRun())
			w.freed = Freed{}
		}
		if !alive[id] || w.freed.Calls == 0 && now.After(w.brake.until.Add(watch)) && !r.busy(w) {
			delete(r.containers, id)
		}
	}
}

// refaulted counts what a container has read again since it was asked first.
func (r *Reclaimer) refaulted(w *watched, now uint64) {
	again := now - min(now, w.refaulted)
	w.refaulted = now
	if w.freed.Calls == 0 {
		return
	}
	again = min(again, w.freed.Bytes-min(w.freed.Bytes, w.freed.Refaulted))
	w.freed.Refaulted += again
	r.mu.Lock()
	defer r.mu.Unlock()
	r.totals.Refaulted += again
}

func (r *Reclaimer) say(f Freed, dryRun bool) {
	log := r.Log.WithFields(logrus.Fields{"pod": f.Namespace + "/" + f.Pod, "container": f.Name, "id": f.ID})
	if dryRun {
		log.Info("dry run, nothing was reclaimed: " + f.Text())
		return
	}
	log.Info(f.Text())
	if r.OnFreed != nil {
		r.OnFreed(f)
	}
}

// taken are the containers of which something was taken, most first.
func (r *Reclaimer) taken() (all []Freed) {
	for _, w := range r.containers {
		if w.freed.Calls > 0 {
			all = append(all, w.freed)
		}
	}
	slices.SortFunc(all, func(a, b Freed) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.ID, b.ID)) })
	return all
}
