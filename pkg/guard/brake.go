// Package guard gives room to containers that their memory.high has stopped.
//
// Without swap a container that grows beyond its memory.high is not slowed but stopped: every allocation reclaims, finds
// nothing, and sleeps (Documentation/admin-guide/cgroup-v2.rst, "memory.high"; mm/memcontrol.c,
// mem_cgroup_handle_over_high). The guard waits for the kernel's pressure trigger and checks that this container's memory.high is the cause,
// not a shortage of the whole node. Then it raises memory.high in growing steps until the container runs again or reaches its limit. After a
// long quiet time it lowers the value in steps.
//
// Brake decides without reading files; Guard watches the containers and carries out the decisions.
package guard

import (
	"cmp"
	"math"
	"time"
)

// Unlimited stands for "max" in memory.high: only memory.max limits the container.
const Unlimited = math.MaxUint64

const (
	// looksPerWindow bounds how often a container is sampled within a window.
	looksPerWindow = 20
	// smallestStep, in bytes, keeps a container with a narrow gap from being raised a page at a time. A container that gains this much by
	// reclaim while it stalls is slow but not stopped.
	smallestStep = 1 << 20
	// slack is the share of memory.high by which usage may be below it and still count as "at" it: the kernel charges in batches and
	// reclaims a little below the value.
	slack = 0.05
	// mostDoublings bounds how often the steps of an episode double.
	mostDoublings = 8
	// longestBackoff bounds how far repeated episodes stretch RestoreAfter.
	longestBackoff = 8
	// smallestCache is the smallest page cache, in bytes, that is worth a call of memory.reclaim.
	smallestCache = 1 << 20
	// roomStall divides Stall for a container with CacheRoom, for which a shorter stall is enough.
	roomStall = 5
	// shareOfShortNode divides the part of the node's available memory that one raise may take while other allocations reclaim.
	shareOfShortNode = 8
)

// Defaults returns the settings of a daemon: a container counts as stopped after half a second of full stall within two seconds; its first
// raise is a quarter of the gap, and it is lowered after five quiet minutes.
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

// Bounds, in bytes, bound a container's memory.high.
type Bounds struct {
	Computed uint64 // the memory.high of Memory QoS
	Request  uint64 // up to the request it is raised even if the node is short
	Limit    uint64 // memory.max; 0 when the container has none
	// CacheRoom is set if Computed is below Limit only to leave room for page cache: writers of files wait there for the disk, and a heap
	// gets all of Limit as soon as it fills Computed.
	CacheRoom bool
}

// Sample is one reading of the kernel's files for a container and its node.
type Sample struct {
	At            time.Time
	Current       uint64        // memory.current, bytes
	File          uint64        // active_file + inactive_file of memory.stat, bytes
	Swap          uint64        // bytes that can still be swapped out
	Reclaimed     uint64        // pgsteal less workingset_refault_* of memory.stat, bytes
	HighEvents    uint64        // high of memory.events
	FullStall     time.Duration // total of the full line of memory.pressure
	SomeStall     time.Duration // total of the some line
	NodeReclaims  uint64        // allocstall_* of /proc/vmstat: allocations that had to reclaim because the node was short
	NodeAvailable uint64        // bytes that the node can still give to a container
}

// fixed returns the bytes besides page cache, which cannot be reclaimed without swap.
func (s Sample) fixed() uint64 { return s.Current - min(s.File, s.Current) }

// beyond reports whether no reclaim brings the container below this memory.high, so that each of its allocations sleeps.
func (s Sample) beyond(high uint64) bool { return s.Swap < smallestStep && s.fixed() > high }

// Verb is an action on a container.
type Verb int

// The verbs of an Action.
const (
	Nothing Verb = iota
	Reclaim      // write Bytes to memory.reclaim
	Raise        // set memory.high to Bytes
	Restore      // lower memory.high to Bytes
)

// Action is a decision: the verb, its bytes (Unlimited for "max") and the time until the next sample. LookIn 0 means to wait for the kernel's
// trigger.
type Action struct {
	Verb   Verb
	Bytes  uint64
	LookIn time.Duration
}

// Brake decides about one container. It is not safe for concurrent use.
type Brake struct {
	settings Settings
	bounds   Bounds
	high     uint64 // memory.high

	since     Sample    // the sample since which stall is counted; zero between episodes
	raises    int       // of this episode
	reclaimed bool      // memory.reclaim was tried in this episode
	quietFrom time.Time // last stall, or last step back
	backoff   int       // multiplies RestoreAfter; doubles when a stall follows a step back
	lowered   bool      // the last action was a step back
}

// NewBrake returns a Brake for a container with this memory.high, which is raised if it survived a restart of the plugin.
func NewBrake(settings Settings, bounds Bounds, high uint64) *Brake {
	return &Brake{settings: settings, bounds: bounds, high: max(high, bounds.Computed), backoff: 1}
}

// High returns the memory.high that the brake has decided, in bytes.
func (b *Brake) High() uint64 { return b.high }

// Raised reports whether memory.high is above its computed value.
func (b *Brake) Raised() bool { return b.high > b.bounds.Computed }

// Rebound sets new bounds, after a resize or a reload, and returns the memory.high for them. A raise is kept as far as the bounds allow.
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

// Next decides on a sample, which was taken because the trigger fired or LookIn had passed.
func (b *Brake) Next(s Sample) Action {
	if b.quietFrom.IsZero() {
		b.quietFrom = s.At
	}
	if b.since.At.IsZero() { // the trigger fired, or it may be time to lower: watch a window
		b.since = s
	}
	stall, watched := s.FullStall-b.since.FullStall, s.At.Sub(b.since.At)
	enough, after := b.threshold(s)
	switch {
	case stall >= enough && watched >= after && b.stopped(s, stall):
		b.quietFrom = s.At
		return b.relieve(s)
	case watched < b.settings.Window: // sample again when the stall can be enough
		return Action{LookIn: max(enough-stall, after-watched, b.settings.Window/looksPerWindow)}
	case stall >= b.settings.Stall/2 && s.HighEvents > b.since.HighEvents: // slow but not stopped: keep watching
		b.quietFrom, b.since = s.At, s
		return Action{LookIn: max(enough, after)}
	}
	b.since, b.raises, b.reclaimed = Sample{}, 0, false
	return b.quiet(s)
}

// trigger returns the full stall within Window at which a container is sampled.
func (b *Brake) trigger() time.Duration {
	if b.bounds.CacheRoom {
		return b.settings.Stall / roomStall
	}
	return b.settings.Stall
}

// threshold returns how much stall is enough, and the shortest time to watch. Half of the trigger's stall is enough, because the trigger has
// seen all of it before. But a container that swaps also sleeps while it makes progress, so it is watched for a whole window.
func (b *Brake) threshold(s Sample) (stall, watched time.Duration) {
	if s.Swap >= smallestStep {
		return b.settings.Stall, b.settings.Window
	}
	return b.trigger() / 2, 0
}

// stopped reports whether the container was stopped by its own memory.high. A container that gets pages by reclaim and does not need them
// again, for example because it reads a large file or swaps, makes progress, unless it is beyond memory.high without it. With CacheRoom, only
// memory besides page cache counts.
func (b *Brake) stopped(s Sample, stall time.Duration) bool {
	if b.bounds.CacheRoom && !b.full(s) {
		return false
	}
	return b.high != Unlimited &&
		(s.HighEvents > b.since.HighEvents || s.Current > b.high) && // a container that sleeps for its excess causes no event
		float64(s.Current) >= float64(b.high)*(1-slack) &&
		(s.beyond(b.high) || s.Reclaimed < b.since.Reclaimed+smallestStep*uint64(1+2*stall/b.settings.Stall))
}

// full reports whether memory besides page cache fills memory.high.
func (b *Brake) full(s Sample) bool { return float64(s.fixed()) >= float64(b.high)*(1-slack) }

// relieve frees page cache or raises memory.high, as far as the node has memory: on a short node, room for one container takes memory from the
// others. Up to its request the container is raised in any case.
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
		b.reclaimed, b.since = true, Sample{} // what it frees is not progress of the container
		return Action{Verb: Reclaim, Bytes: min(step, s.File), LookIn: time.Millisecond}
	}
	next := sum(max(b.high, s.Current), step)
	if b.bounds.Limit > 0 && next >= b.bounds.Limit {
		next = Unlimited
	}
	// The node's memory bounds containers with a limit too: limits may be overcommitted.
	if most := max(sum(s.Current, room), b.bounds.Request); min(next, b.limit()) > most {
		next = most
	}
	if next < sum(b.high, smallestStep) { // usage is below memory.high, and the node has little
		return Action{LookIn: b.settings.Window}
	}
	b.high, b.raises = next, b.raises+1
	return Action{Verb: Raise, Bytes: next, LookIn: b.settings.Stall / 2}
}

// quiet lowers a raised memory.high by a step after RestoreAfter, and otherwise waits.
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
	if from == Unlimited { // set by hand or by an older release: begin at the container's usage
		from = sum(s.Current, step)
	}
	target := max(b.bounds.Computed, from-min(step, from))
	// Unreclaimable memory must fit below the new value with half a step to spare, or the container would stall again.
	if sum(s.fixed(), step/2) > target {
		return Action{LookIn: wait}
	}
	b.high, b.lowered = target, true
	return Action{Verb: Restore, Bytes: target, LookIn: wait}
}

// limit returns memory.max in bytes; Unlimited if there is none.
func (b *Brake) limit() uint64 { return cmp.Or(b.bounds.Limit, Unlimited) }

// step returns the first step in bytes: a share of the gap between the computed memory.high and the limit or, without a limit, the memory that
// the node can give.
func (b *Brake) step(s Sample) uint64 {
	ceiling := cmp.Or(b.bounds.Limit, sum(s.Current, s.NodeAvailable))
	gap := ceiling - min(b.bounds.Computed, ceiling)
	if b.bounds.CacheRoom { // a heap gets its limit at once
		return max(gap, smallestStep)
	}
	return max(uint64(float64(gap)*b.settings.Step), smallestStep)
}

// sum adds bytes and saturates at Unlimited, because a limit may be any number.
func sum(a, b uint64) uint64 { return a + min(b, Unlimited-a) }

// Open reports whether an episode is under way: the trigger fired and the container is not quiet again.
func (b *Brake) Open() bool { return !b.since.At.IsZero() || b.reclaimed }
