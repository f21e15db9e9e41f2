package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

// Container is a running container with a memory.high of this plugin.
type Container struct {
	ID     string
	Pod    string // namespace/name, for people
	Name   string
	Cgroup string // relative to the cgroup mount
	Bounds Bounds
	High   uint64 // the current memory.high: Bounds.Computed, or a raised value
	Off    bool   // the pod or the configuration switches the guard off
}

// Host writes the values that the guard decides.
type Host interface {
	// SetHigh sets the memory.high of a running container in bytes, Unlimited for "max".
	SetHigh(ctx context.Context, id string, bytes uint64) error
}

// Options are the inputs of New.
type Options struct {
	Tree     *cgroupfs.Tree
	Node     Node
	Host     Host
	Log      logrus.FieldLogger
	Settings Settings
	// OnEpisode, if set, receives every episode when it ends. It must not call the guard.
	OnEpisode func(Episode)
}

// Guard watches all containers with a memory.high of this plugin. Its methods may be called from any goroutine.
type Guard struct {
	tree      *cgroupfs.Tree
	node      Node
	host      Host
	log       logrus.FieldLogger
	settings  Settings
	onEpisode func(Episode)
	noPSI     sync.Once
	noFull    sync.Once
	doubtful  bool // full of memory.pressure may be broken on this kernel

	triggers cgroupfs.Triggers

	mu        sync.Mutex // not held during system calls
	watched   map[string]*watched
	byTrigger map[int32]*watched
	restoring map[string]bool // containers with Off whose raise is being taken back
	totals    Totals
}

type watched struct {
	Container
	brake    *Brake
	blind    *blind // set if the kernel reports no pressure, or full is broken: the container is sampled every window
	compared comparison
	noFull   bool          // full of memory.pressure does not advance although the container is stopped
	look     time.Time     // time of the next sample; zero waits for the trigger
	next     time.Time     // the brake's next sample; zero waits for a stall
	busy     bool          // a write is under way
	trigger  int32         // the kernel's, if byTrigger has it
	dropped  bool          // no longer watched
	armed    bool          // the kernel's trigger is set, or blind replaces it
	written  uint64        // the last value written to memory.high; if it differs from the brake's value, that must be written
	failures int           // consecutive failures to arm, read or write it
	stall    time.Duration // full stall of the last sample
	episode  *Episode      // nil between episodes
	before   time.Duration // full stall at the beginning of the episode
	raisedAt time.Time
}

// New returns a Guard that watches no container yet.
func New(o Options) (*Guard, error) {
	triggers, err := o.Tree.Triggers()
	if err != nil {
		return nil, err
	}
	return &Guard{tree: o.Tree, node: o.Node, host: o.Host, log: o.Log, settings: o.Settings, onEpisode: o.OnEpisode,
		doubtful: o.Node.doubtful(), triggers: triggers, watched: map[string]*watched{}, byTrigger: map[int32]*watched{}, restoring: map[string]bool{}}, nil
}

// Set replaces the watched containers. It cuts a raise that new bounds (a resize, a reload) do not allow, and ends the raise of a container
// with Off. Set does not wait for writes: they are made in the background until ctx ends. Calls of Set must not overlap.
func (g *Guard) Set(ctx context.Context, containers []Container) {
	for _, c := range g.update(ctx, containers) {
		g.begin(c)
	}
}

// update returns the new containers, including those whose CacheRoom changed, because they need another trigger.
func (g *Guard) update(ctx context.Context, containers []Container) (begin []Container) {
	g.mu.Lock()
	defer g.mu.Unlock()
	ended := maps.Clone(g.watched)
	for _, c := range containers {
		w, known := g.watched[c.ID]
		switch {
		case c.Off:
			g.restore(ctx, c)
		case known && w.Bounds.CacheRoom == c.Bounds.CacheRoom:
			delete(ended, c.ID)
			g.rebound(w, c)
		default:
			begin = append(begin, c)
		}
	}
	for id := range ended {
		g.drop(id)
	}
	return begin
}

// restore takes back the raise of a container with Off. If that fails, the next Set tries again.
func (g *Guard) restore(ctx context.Context, c Container) {
	if c.High == c.Bounds.Computed || g.restoring[c.ID] {
		return
	}
	g.restoring[c.ID] = true
	go func() {
		if err := g.host.SetHigh(ctx, c.ID, c.Bounds.Computed); err != nil {
			g.log.WithError(err).WithFields(c.fields()).Debug("stall guard: memory.high cannot be set: trying again")
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.restoring, c.ID)
	}()
}

// Notice samples a pod's containers after the kernel has counted an event at a memory.high, if their heap fills everything below the room for
// page cache: a trigger may come two seconds later, or not at all if full is broken.
func (g *Guard) Notice(pod string) { g.notice(pod, time.Now()) }

func (g *Guard) notice(pod string, now time.Time) {
	if g.doubtful {
		g.compare(pod, now)
	}
	for _, c := range g.of(pod, func(w *watched) bool { return w.Bounds.CacheRoom && w.look.IsZero() }) {
		current, err := g.tree.Current(c.Cgroup)
		stat, err2 := g.tree.Stat(c.Cgroup)
		if err != nil || err2 != nil {
			continue // it has ended
		}
		s := Sample{Current: current, File: stat["active_file"] + stat["inactive_file"]}
		g.mu.Lock()
		if w := g.watched[c.ID]; w != nil && w.look.IsZero() && w.brake.full(s) {
			w.look = now
			g.triggers.Interrupt()
		}
		g.mu.Unlock()
	}
}

// of returns the containers of a pod that are wanted.
func (g *Guard) of(pod string, wanted func(*watched) bool) (all []*watched) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.watched {
		if strings.HasPrefix(w.Cgroup, pod+"/") && wanted(w) {
			all = append(all, w)
		}
	}
	return all
}

func (g *Guard) rebound(w *watched, c Container) {
	w.Bounds = c.Bounds
	if w.brake.Rebound(c.Bounds); !w.brake.Raised() {
		g.endRaise(w, time.Now())
	}
	if !w.busy {
		w.written = c.High
	}
	if w.written != w.brake.High() {
		w.look = time.Now()
	}
	g.triggers.Interrupt()
}

// begin watches a container, unless it has ended. The lock is not held.
func (g *Guard) begin(c Container) {
	now := time.Now()
	w := &watched{Container: c, brake: NewBrake(g.settings, c.Bounds, c.High), written: c.High}
	if w.brake.Raised() {
		w.raisedAt, w.brake.quietFrom, w.next = now, now, now.Add(g.settings.RestoreAfter)
		w.look = w.next
	}
	err := g.arm(w)
	if err != nil && g.tree.Ended(c.Cgroup) {
		g.log.WithError(err).WithFields(c.fields()).Debug("stall guard: the container has ended and is not watched")
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.retry(w, err, now)
	}
	if w.written != w.brake.High() {
		w.look = now
	}
	g.watched[c.ID] = w
	g.triggers.Interrupt()
}

// arm sets the kernel's trigger on a container; if the kernel has none, the container is sampled every window. The lock is not held.
func (g *Guard) arm(w *watched) error {
	g.mu.Lock()
	stall := w.brake.trigger()
	g.mu.Unlock()
	id, err := g.trigger(w.Cgroup, stall)
	none, counts := errors.Is(err, ErrNoPressure) && !g.tree.Ended(w.Cgroup), false
	if none {
		_, counts, _ = g.tree.Pressure(w.Cgroup) // an unreadable file is not counted
		counts = counts && !g.doubtful
		g.noPSI.Do(func() {
			lacks, read := "pressure", "memory.events"
			if counts {
				lacks, read = "pressure triggers", "memory.pressure"
			}
			g.log.WithError(err).Warnf("stall guard: without %s from the kernel, %s is read every window instead", lacks, read)
		})
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case none:
		w.blind, w.look = &blind{counts: counts}, time.Now().Add(g.settings.Window)
	case err != nil:
		return err
	case w.dropped:
		g.triggers.Remove(id)
	default:
		w.trigger, g.byTrigger[id] = id, w
	}
	w.armed = true
	return nil
}

// drop stops watching a container, whose cgroup may be gone.
func (g *Guard) drop(id string) {
	w, ok := g.watched[id]
	if !ok {
		return
	}
	if g.byTrigger[w.trigger] == w {
		g.triggers.Remove(w.trigger)
		delete(g.byTrigger, w.trigger)
	}
	g.endEpisode(w)
	g.endRaise(w, time.Now())
	w.dropped = true
	delete(g.watched, id)
}

// Run watches until ctx ends. Without stalls it sleeps in the kernel.
func (g *Guard) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, g.triggers.Interrupt)()
	for {
		fired, err := g.triggers.Wait(g.untilNextLook(time.Now()))
		if ctx.Err() != nil {
			_ = g.triggers.Close() // nothing can be lost
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for pressure: %w", err)
		}
		g.handle(ctx, fired, time.Now())
	}
}

// untilNextLook returns the time until the next sample; 0 if none is due.
func (g *Guard) untilNextLook(now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	var next time.Duration
	for _, w := range g.watched {
		if w.look.IsZero() || w.busy {
			continue
		}
		if wait := max(w.look.Sub(now), time.Millisecond); next == 0 || wait < next {
			next = wait
		}
	}
	return next
}

func (g *Guard) handle(ctx context.Context, fired []int32, now time.Time) {
	defer progress.Begin("the stall guard")()
	for _, w := range g.due(ctx, fired, now) {
		g.lookAt(ctx, w, now)
	}
}

// due returns the containers to sample now. Those with a pending write are written instead.
func (g *Guard) due(ctx context.Context, fired []int32, now time.Time) (all []*watched) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range fired {
		if w := g.byTrigger[id]; w != nil && !w.brake.Open() {
			w.look = now
		}
	}
	for _, w := range g.watched {
		switch {
		case w.busy || w.look.IsZero() || w.look.After(now):
		case w.written != w.brake.High():
			g.setHigh(ctx, w, 0)
		default:
			all = append(all, w)
		}
	}
	return all
}

// failed drops a container whose cgroup is gone, and retries any other. The lock is not held.
func (g *Guard) failed(w *watched, err error, now time.Time) {
	ended := g.tree.Ended(w.Cgroup)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case w.dropped:
	case ended:
		g.drop(w.ID)
	default:
		g.retry(w, err, now)
	}
}

// longestRetry bounds the delay of retry.
const longestRetry = time.Minute

// retry samples a container again after a window, and doubles the delay with each further failure: the failure may pass while the container is
// still stopped.
func (g *Guard) retry(w *watched, err error, now time.Time) {
	if w.failures == 0 {
		g.log.WithError(err).WithFields(w.fields()).Warn("stall guard: the container cannot be watched or given room: trying again")
	}
	w.look = now.Add(min(g.settings.Window<<min(w.failures, 10), longestRetry))
	w.failures++
}

// lookAt samples a container and carries out its brake's decision.
func (g *Guard) lookAt(ctx context.Context, w *watched, now time.Time) {
	var (
		sample Sample
		err    error
	)
	if !w.armed {
		err = g.arm(w)
	}
	if err == nil {
		sample, err = g.sample(w.Cgroup, now)
	}
	if err != nil {
		g.failed(w, err, now)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.dropped && w.written == w.brake.High() { // otherwise new bounds must be written first
		g.act(ctx, w, sample)
	}
}

func (g *Guard) act(ctx context.Context, w *watched, sample Sample) {
	now := sample.At
	if w.blind != nil {
		sample.FullStall = w.blind.stall(sample, w.brake.High(), w.brake.trigger())
	}
	w.stall, w.failures = sample.FullStall, 0
	if w.blind != nil && !w.blind.stuck && !w.brake.Open() && (w.next.IsZero() || now.Before(w.next)) {
		g.lookNext(w, now)
		return
	}
	before := w.brake.High()
	action := w.brake.Next(sample)
	if w.next = (time.Time{}); action.LookIn > 0 {
		w.next = now.Add(action.LookIn)
	}
	g.lookNext(w, now)
	switch action.Verb {
	case Reclaim:
		g.beginEpisode(w, before)
		g.inBackground(w, func() { g.reclaim(w, action.Bytes) })
	case Raise:
		g.beginEpisode(w, before)
		w.episode.To = action.Bytes
		w.episode.Raises++
		g.totals.Raises++
		if w.raisedAt.IsZero() {
			w.raisedAt = now
		}
		g.setHigh(ctx, w, 0)
	case Restore:
		g.totals.Restores++
		if !w.brake.Raised() {
			g.endRaise(w, now)
		}
		g.setHigh(ctx, w, sample.Current-min(sample.Current, action.Bytes))
	}
	if !w.brake.Open() {
		g.endEpisode(w)
	}
}

// lookNext schedules the next sample as the brake decided; if the kernel does not report stalls, within a window.
func (g *Guard) lookNext(w *watched, now time.Time) {
	w.look = w.next
	if within := now.Add(g.settings.Window); w.blind != nil && (w.look.IsZero() || within.Before(w.look)) {
		w.look = within
	}
}

// setHigh writes the brake's value to memory.high. Before, it reclaims the given bytes, because the write would reclaim them while others wait
// for it. If it fails, or the brake has another value meanwhile, it is tried again.
func (g *Guard) setHigh(ctx context.Context, w *watched, reclaim uint64) {
	high := w.brake.High()
	g.inBackground(w, func() {
		if reclaim > 0 {
			_ = g.tree.Reclaim(w.Cgroup, reclaim)
		}
		if err := g.host.SetHigh(ctx, w.ID, high); err != nil {
			g.failed(w, err, time.Now())
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if w.written = high; w.brake.High() != high {
			w.look = time.Now()
		}
	})
}

// inBackground makes a write that may take long, so that no other container waits for it. The container is not sampled meanwhile.
func (g *Guard) inBackground(w *watched, write func()) {
	w.busy = true
	go func() {
		write()
		g.mu.Lock()
		defer g.mu.Unlock()
		w.busy = false
		g.triggers.Interrupt()
	}()
}

// reclaim frees page cache with one bounded call, which is not repeated.
func (g *Guard) reclaim(w *watched, bytes uint64) {
	before, err := g.tree.Current(w.Cgroup)
	if err != nil {
		return
	}
	_ = g.tree.Reclaim(w.Cgroup, bytes) // if it frees too little, or the kernel (before 5.19) has no such file, a raise follows
	after, err := g.tree.Current(w.Cgroup)
	if err != nil || after >= before {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.totals.Reclaimed += before - after
	if w.episode != nil {
		w.episode.Reclaimed += before - after
	}
}
