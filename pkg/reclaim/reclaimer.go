package reclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	// shortest and longest bound the pause between two checks of the available memory. Page cache becomes active as fast as memory is read,
	// and the kubelet may check at any time.
	shortest = 250 * time.Millisecond
	longest  = 10 * time.Second
	// round is how long page cache is reclaimed between two checks.
	round = time.Second
	// callLimit is how long to wait for a call. The kernel may take longer: until then the container is skipped.
	callLimit = 2 * time.Second
	// mostCalls bounds the concurrent calls: each occupies a thread.
	mostCalls = 16
	// quiet is the time without reclaim after which a container's reclaimed page cache is reported.
	quiet = time.Minute
)

// Options are the inputs of New.
type Options struct {
	Tree *cgroupfs.Tree
	Proc string // usually /proc
	View func() *ledger.View
	Log  logrus.FieldLogger
	// OnFreed, if set, receives the reclaimed page cache of a container after a minute without reclaim.
	OnFreed func(Freed)
}

// Freed describes the page cache that was reclaimed from a container.
type Freed struct {
	Container
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Calls uint64    `json:"calls"`
	// Bytes of page cache were reclaimed; the container has read Refaulted of them again.
	Bytes     uint64 `json:"bytes"`
	Refaulted uint64 `json:"refaultedBytes"`
	// Signal is the kubelet's signal at the last call.
	Signal Signal `json:"signal"`
}

// Text says in one line what was taken and why, without the container's name.
func (f Freed) Text() string {
	return fmt.Sprintf("%s of its page cache was reclaimed in %s, %s of which it read again: %s was %s, and below %s the kubelet evicts pods",
		quantity.Short(f.Bytes), f.Last.Sub(f.First).Round(time.Second), quantity.Short(f.Refaulted),
		f.Signal.Name, quantity.Short(f.Signal.Available), quantity.Short(f.Signal.Threshold))
}

// Report is the current state.
type Report struct {
	// Unknown says why nothing is reclaimed: the kubelet's memory.available is not known, or the kernel has no memory.reclaim; else absent.
	Unknown string `json:"unknown,omitempty"`
	// Signal is nearest to its threshold, and Below is the available memory below which page cache is reclaimed; absent before the first check.
	*Signal
	Below uint64 `json:"reclaimBelow,omitempty"`
	// Containers are living containers with reclaimed page cache, the largest first.
	Containers []Freed `json:"containers,omitempty"`
}

// Totals count since the daemon started. In a dry run Calls and Bytes count what would have been reclaimed.
type Totals struct {
	Calls     uint64
	Bytes     map[memoryqos.QOSClass]uint64
	Refaulted uint64
}

// Reclaimer frees page cache of containers while the configuration enables it.
type Reclaimer struct {
	Options
	containers map[string]*watched // with reclaimed page cache, or resting, by ID
	swap       atomic.Bool         // the node has some
	unable     time.Time           // until then it has no memory.reclaim
	resting    allowance

	mu     sync.Mutex
	calls  int // under way
	report Report
	totals Totals
}

// watched is a container whose page cache was reclaimed.
type watched struct {
	Container
	brake     brake
	freed     Freed // not reported yet; Calls is 0 if nothing was reclaimed
	refaulted uint64
	busy      bool  // a call is under way; guarded by Reclaimer.mu
	late      *call // a call that did not return within callLimit, until its result is recorded
}

// call is one write of memory.reclaim.
type call struct {
	before  Usage
	bytes   uint64
	resting bool // the container rests
}

// New returns a Reclaimer.
func New(o Options) *Reclaimer {
	return &Reclaimer{Options: o, containers: map[string]*watched{}, totals: Totals{Bytes: map[memoryqos.QOSClass]uint64{}}}
}

// Report returns the current state; nil if the configuration disables reclaim.
func (r *Reclaimer) Report() *Report {
	if !r.View().Config.Config.ReclaimBeforeEviction {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	report := r.report
	return &report
}

// Totals returns the totals.
func (r *Reclaimer) Totals() Totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := Totals{Calls: r.totals.Calls, Refaulted: r.totals.Refaulted, Bytes: map[memoryqos.QOSClass]uint64{}}
	for _, class := range classes {
		t.Bytes[class] = r.totals.Bytes[class]
	}
	return t
}

// Run checks the available memory until ctx ends.
func (r *Reclaimer) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.look(ctx)):
		}
	}
}

// look reads the available memory, reclaims page cache if needed, and returns the pause until the next check.
func (r *Reclaimer) look(ctx context.Context) time.Duration {
	view := r.View()
	if !view.Config.Config.ReclaimBeforeEviction {
		return longest
	}
	if time.Now().Before(r.unable) {
		r.publish(Report{Unknown: unable})
		return longest
	}
	signal, err := r.nearest(view)
	if err != nil {
		if r.report.Unknown == "" {
			r.Log.WithError(err).Warn("the kubelet's available memory is unknown: no page cache is reclaimed")
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

const (
	// unable is why nothing is reclaimed on an old kernel, and unableFor how long no container is tried after one had no such file.
	unable    = "this kernel has no memory.reclaim, which Linux has from 5.19 on"
	unableFor = 10 * time.Minute
)

func (r *Reclaimer) publish(report Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report = report
}

// free reclaims page cache, one QoS class after the other, until the missing bytes are available, no container has more to spare, or the round
// is over.
func (r *Reclaimer) free(ctx context.Context, view *ledger.View, signal Signal, missing uint64) {
	end := time.Now().Add(round)
	for _, class := range classes {
		candidates := r.candidates(view, class, signal.evicts())
		for c := most(candidates); c != nil; c = most(candidates) {
			if missing == 0 || time.Now().Before(r.unable) || ctx.Err() != nil || time.Now().After(end) {
				return
			}
			now := r.View().Config.Config // a reload or a rollback may have come meanwhile
			if !now.ReclaimBeforeEviction {
				return
			}
			more, made := r.ask(c, signal, now.DryRun())
			if missing -= min(missing, more); made && !signal.evicts() {
				return // unless pods are about to be evicted, other containers do not pay for the page cache that this one fills
			}
		}
	}
}

// candidates returns the running containers of a class with page cache to spare.
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
			continue // it has ended, or has nothing to spare
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
		if w.late == nil && !r.busy(w) && w.brake.allows(usage.Refaulted, now, evicts) {
			all = append(all, &candidate{w, usage, spare, pods[pod]})
		}
	}
	return all
}

// podSpare returns what a pod uses beyond its share.
func (r *Reclaimer) podSpare(pod *ledger.PodView) *podSpare {
	keeps := pod.Share()
	if keeps == 0 {
		return &podSpare{math.MaxUint64}
	}
	usage, _ := r.usage(pod.Cgroup) // a pod that has ended has nothing to spare
	return &podSpare{usage.workingSet() - min(usage.workingSet(), keeps)}
}

// ask reclaims a batch of a container's page cache and returns how many more bytes are available. made is set if the container has filled
// as much page cache meanwhile.
func (r *Reclaimer) ask(c *candidate, signal Signal, dryRun bool) (more uint64, made bool) {
	spare := c.gives()
	c.spare = 0 // until it is found to have more
	if dryRun { // it is reported once a minute
		c.brake.until = time.Now().Add(quiet)
		r.took(c.watched, spare, signal)
		c.pod.left -= spare
		return spare, false
	}
	asked := call{before: c.usage, bytes: min(signal.batch(), spare), resting: c.brake.resting(time.Now())}
	if asked.resting {
		if asked.bytes = min(asked.bytes, r.resting.left(time.Now())); asked.bytes < smallest {
			return 0, false
		}
	}
	returned, failed := r.call(c.watched, asked)
	if !returned {
		c.brake.rest(time.Now(), true)
		return 0, false
	}
	after, err := r.usage(c.Cgroup)
	if err != nil { // it has ended
		return 0, false
	}
	if errors.Is(failed, fs.ErrNotExist) {
		if r.unable.IsZero() {
			r.Log.Warn("no page cache is reclaimed: " + unable)
		}
		r.unable = time.Now().Add(unableFor)
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

// returned records the result of a call: how many more bytes are available, and whether the call was worth making.
func (r *Reclaimer) returned(w *watched, asked call, after Usage, signal Signal) (more uint64, worth bool) {
	taken := after.taken(asked.before)
	more = asked.before.workingSet() - min(asked.before.workingSet(), after.workingSet())
	r.took(w, taken, signal)
	if asked.resting {
		r.resting.spend(taken)
	}
	return more, w.brake.gave(asked.bytes, taken, more, time.Now())
}

// call writes memory.reclaim, and reports whether the write returned in time and its error. The container is busy until it has returned.
func (r *Reclaimer) call(w *watched, asked call) (returned bool, err error) {
	r.mu.Lock()
	free := r.calls < mostCalls
	if free {
		w.busy = true
		r.calls++
	}
	r.mu.Unlock()
	if !free {
		return false, nil
	}
	done := make(chan error, 1)
	cgroup := w.Cgroup
	go func() {
		err := r.Tree.ReclaimCache(cgroup, asked.bytes)
		if errors.Is(err, unix.EINVAL) && !r.swap.Load() {
			err = r.Tree.Reclaim(cgroup, asked.bytes)
		}
		defer func() { done <- err }()
		r.mu.Lock()
		defer r.mu.Unlock()
		w.busy = false
		r.calls--
	}()
	select {
	case err := <-done:
		return true, err
	case <-time.After(callLimit):
		w.late = &asked
		return false, nil
	}
}

func (r *Reclaimer) busy(w *watched) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return w.busy
}

// took counts page cache that was reclaimed from a container.
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

// follow counts what containers have read again and the results of late calls, reports containers after a quiet minute, and forgets those that
// have ended.
func (r *Reclaimer) follow(view *ledger.View, signal Signal, now time.Time) {
	if len(r.containers) == 0 {
		return
	}
	alive := map[string]bool{}
	for _, c := range view.Containers() {
		alive[c.ID] = true
	}
	for id, w := range r.containers {
		returned := w.late != nil && !r.busy(w) // before its files are read, which it changes
		usage, err := r.usage(w.Cgroup)
		if err == nil {
			r.refaulted(w, usage.Refaulted)
			if returned {
				r.returned(w, *w.late, usage, signal)
				w.late = nil
			}
		}
		over := w.freed.Calls > 0 && (now.Sub(w.freed.Last) >= quiet || !alive[id])
		if over {
			r.logFreed(w.freed, view.Config.Config.DryRun())
			w.freed = Freed{}
		}
		if !alive[id] || w.freed.Calls == 0 && now.After(w.brake.until.Add(watch)) && !r.busy(w) {
			delete(r.containers, id)
		}
	}
}

// refaulted counts what a container has read again since the first call.
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

func (r *Reclaimer) logFreed(f Freed, dryRun bool) {
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

// taken returns the containers with reclaimed page cache, the largest first.
func (r *Reclaimer) taken() (all []Freed) {
	for _, w := range r.containers {
		if w.freed.Calls > 0 {
			all = append(all, w.freed)
		}
	}
	slices.SortFunc(all, func(a, b Freed) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.ID, b.ID)) })
	return all
}
