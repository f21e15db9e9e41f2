// Package guard keeps memory.high a brake and never a wall.
//
// Without swap a container that grows beyond its memory.high is not slowed but stopped: every allocation reclaims, finds
// nothing, and sleeps (Documentation/admin-guide/cgroup-v2.rst, "memory.high"; mm/memcontrol.c,
// mem_cgroup_handle_over_high). The guard waits for the kernel's own pressure trigger, makes sure that it is this
// container's memory.high that stops it and not a node that is short as a whole, and raises memory.high in growing steps
// until the container moves again or its limit decides. When it has been quiet for long, the value goes back in steps.
//
// Brake decides and knows no kernel; Guard watches the containers and carries the decisions out.
package guard

import (
	"cmp"
	"math"
	"time"
)

// Unlimited stands for "max" in memory.high: the container's memory.max alone decides.
const Unlimited = math.MaxUint64

const (
	// looksPerWindow is how often an open episode is looked at within a window, at most.
	looksPerWindow = 20
	// smallestStep, in bytes, keeps a container with a narrow gap from being raised a page at a time. One that gains so
	// much by reclaim while it stalls is slow, and not stopped.
	smallestStep = 1 << 20
	// slack is the share of memory.high by which usage may stand below it and still count as "at" it: the kernel
	// charges in batches and reclaims a little below the value.
	slack = 0.05
	// mostDoublings bounds how often the steps of an episode double.
	mostDoublings = 8
	// longestBackoff bounds how far repeated episodes stretch RestoreAfter.
	longestBackoff = 8
	// smallestCache is the page cache, in bytes, below which asking for reclaim is not worth the call.
	smallestCache = 1 << 20
	// roomStall divides Stall for a container in the room for page cache: nothing is to be learned from more of it.
	roomStall = 5
	// shareOfShortNode divides what one raise may take of the node's available memory while other allocations have to
	// reclaim.
	shareOfShortNode = 8
)

// Defaults are the settings of a daemon: a container is stopped after half a second of full stall within two, gets a quarter of the
// gap first, and gives it back after five quiet minutes.
func Defaults() Settings {
	return Settings{Stall: 500 * time.Millisecond, Window: 2 * time.Second, Step: 0.25, RestoreAfter: 5 * time.Minute}
}

// Settings are the guard's thresholds.
type Settings struct {
	Stall        time.Duration // full memory stall within Window that counts as stopped
	Window       time.Duration // window of the pressure trigger, 500 ms to 10 s
	Step         float64       // first raise, as a share of the gap between the computed memory.high and the ceiling
	RestoreAfter time.Duration // quiet before a raised memory.high is lowered
}

// Bounds are what a container's memory.high may move between, in bytes.
type Bounds struct {
	Computed uint64 // the memory.high of Memory QoS
	Request  uint64 // what the container may count on: up to here it is raised whatever the node has
	Limit    uint64 // memory.max; 0 when the container has none
	// CacheRoom is set where Computed lies below Limit for page cache alone: what writes files waits there for the disk, and a heap
	// gets all of Limit as soon as it fills what is below.
	CacheRoom bool
}

// Sample is one reading of the kernel's files for a container and its node.
type Sample struct {
	At            time.Time
	Current       uint64        // memory.current, bytes
	File          uint64        // active_file + inactive_file of memory.stat, bytes
	Swap          uint64        // bytes that the container can still swap out
	Reclaimed     uint64        // pgsteal of memory.stat without what came back (workingset_refault_*), bytes
	HighEvents    uint64        // high of memory.events
	FullStall     time.Duration // total of the full line of memory.pressure
	SomeStall     time.Duration // total of the some line
	NodeReclaims  uint64        // allocstall_* of /proc/vmstat: allocations that had to reclaim for want of node memory
	NodeAvailable uint64        // bytes that the node can still give to this container
}

// fixed is what a container holds besides page cache, in bytes: without swap it cannot be reclaimed.
func (s Sample) fixed() uint64 { return s.Current - min(s.File, s.Current) }

// Verb is what is to be done with a container.
type Verb int

// The verbs of an Action.
const (
	Nothing Verb = iota
	Reclaim      // write Bytes to memory.reclaim
	Raise        // set memory.high to Bytes
	Restore      // lower memory.high to Bytes
)

// Action is a decision: the verb, its bytes (Unlimited for "max") and when to look again. LookIn 0 means: only when the
// kernel's trigger fires.
type Action struct {
	Verb   Verb
	Bytes  uint64
	LookIn time.Duration
}

// Brake is the decision core for one container. It is not safe for concurrent use.
type Brake struct {
	settings Settings
	bounds   Bounds
	high     uint64 // what stands in memory.high

	since     Sample    // the reading since which stall is counted; the zero time between episodes
	raises    int       // of this episode
	reclaimed bool      // memory.reclaim was tried in this episode
	quietFrom time.Time // last stall, or last step back
	backoff   int       // multiplies RestoreAfter: doubles when a step back was followed by a new stall
	lowered   bool      // the last action was a step back
}

// NewBrake returns the core for a container whose memory.high stands at high: the computed value, or a raised one that
// survived a restart of the plugin.
func NewBrake(settings Settings, bounds Bounds, high uint64) *Brake {
	return &Brake{settings: settings, bounds: bounds, high: max(high, bounds.Computed), backoff: 1}
}

// High returns the memory.high that the brake holds to be set, in bytes.
func (b *Brake) High() uint64 { return b.high }

// Raised reports whether memory.high stands above its computed value.
func (b *Brake) Raised() bool { return b.high > b.bounds.Computed }

// Rebound takes new bounds (a resize or a reload) and returns the memory.high for them: a raise stays as far as the new
// bounds leave room for it.
func (b *Brake) Rebound(bounds Bounds) uint64 {
	raised := b.Raised()
	b.bounds = bounds
	switch {
	case !raised || b.high <= bounds.Computed:
		b.high = bounds.Computed
	case bounds.Limit > 0 && b.high >= bounds.Limit:
		b.high = Unlimited
	}
	return b.high
}

// Next decides on a sample, taken because the trigger fired or because LookIn had passed.
func (b *Brake) Next(s Sample) Action {
	if b.quietFrom.IsZero() {
		b.quietFrom = s.At
	}
	if b.since.At.IsZero() { // the trigger fired, or it may be time to lower: a window will show
		b.since = s
	}
	stall, watched := s.FullStall-b.since.FullStall, s.At.Sub(b.since.At)
	enough, after := b.threshold(s)
	switch {
	case stall >= enough && watched >= after && b.stopped(s, stall):
		b.quietFrom = s.At
		return b.relieve(s)
	case watched < b.settings.Window: // look when it can be enough
		return Action{LookIn: max(enough-stall, after-watched, b.settings.Window/looksPerWindow)}
	case stall >= b.settings.Stall/2 && s.HighEvents > b.since.HighEvents: // slow, but it gets on: stay with it
		b.quietFrom, b.since = s.At, s
		return Action{LookIn: max(enough, after)}
	}
	b.since, b.raises, b.reclaimed = Sample{}, 0, false
	return b.quiet(s)
}

// trigger is the full stall within Window at which a container is to be looked at.
func (b *Brake) trigger() time.Duration {
	if b.bounds.CacheRoom {
		return b.settings.Stall / roomStall
	}
	return b.settings.Stall
}

// threshold is the stall to be seen, and for how long to watch. Half of the trigger's stall is enough, since the trigger
// has seen a whole one. But one that swaps sleeps between two steps forward: a whole window shows it.
func (b *Brake) threshold(s Sample) (stall, watched time.Duration) {
	if s.Swap >= smallestStep {
		return b.settings.Stall, b.settings.Window
	}
	return b.trigger() / 2, 0
}

// stopped reports whether the stall since the last reading is that of a container stopped by its own memory.high. One to
// which reclaim gives pages that it does not need again, as when it reads a large file or swaps, gets on. In the room for page cache
// the cache is what has to wait: what counts is all else.
func (b *Brake) stopped(s Sample, stall time.Duration) bool {
	if b.bounds.CacheRoom && !b.full(s) {
		return false
	}
	return b.high != Unlimited &&
		(s.HighEvents > b.since.HighEvents || s.Current > b.high) && // one asleep for its excess counts no event
		float64(s.Current) >= float64(b.high)*(1-slack) &&
		s.Reclaimed < b.since.Reclaimed+smallestStep*uint64(1+2*stall/b.settings.Stall)
}

// full reports whether all but page cache fills memory.high.
func (b *Brake) full(s Sample) bool { return float64(s.fixed()) >= float64(b.high)*(1-slack) }

// relieve frees page cache or raises memory.high, as far as the node can give: where it is short as a whole, more room
// for one container takes memory from the others. What the container has requested is its own.
func (b *Brake) relieve(s Sample) Action {
	if b.lowered {
		b.backoff, b.lowered = min(2*b.backoff, longestBackoff), false
	}
	room := s.NodeAvailable
	if s.NodeReclaims > b.since.NodeReclaims {
		room /= shareOfShortNode
	}
	b.since = s
	if room < smallestStep && b.high >= b.bounds.Request {
		return Action{LookIn: b.settings.Window}
	}
	step := b.step(s)
	for range min(b.raises, mostDoublings) {
		step = sum(step, step)
	}
	if !b.bounds.CacheRoom && !b.reclaimed && s.File >= smallestCache {
		b.reclaimed, b.since = true, Sample{} // what it frees is no step forward of the container
		return Action{Verb: Reclaim, Bytes: min(step, s.File), LookIn: time.Millisecond}
	}
	next := sum(max(b.high, s.Current), step)
	if b.bounds.Limit > 0 && next >= b.bounds.Limit {
		next = Unlimited
	}
	// What the node can give bounds containers with a limit too: limits may be overcommitted.
	if most := max(sum(s.Current, room), b.bounds.Request); min(next, b.limit()) > most {
		next = most
	}
	if next < sum(b.high, smallestStep) { // it stands below memory.high, and the node gives little
		return Action{LookIn: b.settings.Window}
	}
	b.high, b.raises = next, b.raises+1
	return Action{Verb: Raise, Bytes: next, LookIn: b.settings.Stall / 2}
}

// quiet lowers a raised memory.high by a step when its time has come, and otherwise says when to look again.
func (b *Brake) quiet(s Sample) Action {
	if !b.Raised() {
		b.backoff = 1
		return Action{}
	}
	wait := time.Duration(b.backoff) * b.settings.RestoreAfter
	if rest := wait - s.At.Sub(b.quietFrom); rest > 0 {
		return Action{LookIn: rest}
	}
	b.quietFrom = s.At
	step := b.step(s)
	from := min(b.high, max(b.limit(), sum(b.bounds.Computed, step)))
	if from == Unlimited { // raised by hand or by an older release: begin where the container stands
		from = sum(s.Current, step)
	}
	target := max(b.bounds.Computed, from-min(step, from))
	// What reclaim cannot take must fit below the new value with half a step to spare, else it would stall again.
	if sum(s.fixed(), step/2) > target {
		return Action{LookIn: wait}
	}
	b.high, b.lowered = target, true
	return Action{Verb: Restore, Bytes: target, LookIn: wait}
}

// limit is memory.max in bytes, Unlimited when there is none.
func (b *Brake) limit() uint64 { return cmp.Or(b.bounds.Limit, Unlimited) }

// step is the first step in bytes: a share of the gap from the computed memory.high to the limit or, without one, to
// what the node can give.
func (b *Brake) step(s Sample) uint64 {
	ceiling := cmp.Or(b.bounds.Limit, sum(s.Current, s.NodeAvailable))
	gap := ceiling - min(b.bounds.Computed, ceiling)
	if b.bounds.CacheRoom { // a heap has its limit at once
		return max(gap, smallestStep)
	}
	return max(uint64(float64(gap)*b.settings.Step), smallestStep)
}

// sum adds bytes and ends at Unlimited: a limit may be any number, also one that means none.
func sum(a, b uint64) uint64 { return a + min(b, Unlimited-a) }

// Open reports whether an episode is being watched: a trigger fired and it is not quiet again.
func (b *Brake) Open() bool { return !b.since.At.IsZero() || b.reclaimed }
