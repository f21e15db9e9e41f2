// Package reclaim frees page cache before the kubelet evicts pods for it.
//
// The kubelet counts page cache that was used twice (active_file) as memory in use, although the kernel would free it at once
// (https://github.com/kubernetes/kubernetes/issues/43916). A Reclaimer computes the kubelet's eviction signals. Before one reaches its
// threshold, the Reclaimer frees page cache of containers (memory.reclaim): first of BestEffort containers, then of Burstable ones above
// their requests, and not of containers that read it again.
//
// Signal, Usage and brake decide; Reclaimer reads the kernel's files and carries out the decisions.
package reclaim

import (
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const (
	// batch bounds one call in bytes: until the kernel has finished it, nothing shows what is read again.
	batch = 32 << 20
	// lastBatch replaces batch if pods are about to be evicted. The kernel first reclaims inactive page cache, which counts as available
	// already, and deactivates active page cache only if much less is inactive (mm/vmscan.c, inactive_is_low): a small call ends before.
	lastBatch = 4 * batch
	// smallest is the least active page cache, in bytes, that is worth a call.
	smallest = 4 << 20
	// Reclaim begins above the kubelet's threshold, by a share of all memory (divided by marginShare) within bounds in bytes. The kubelet
	// checks its thresholds each ten seconds.
	marginShare = 20
	leastMargin = 256 << 20
	mostMargin  = 4 << 30
)

// Names of the kubelet's signals (pkg/kubelet/eviction/api/types.go).
const (
	Available            = "memory.available"
	AllocatableAvailable = "allocatableMemory.available"
)

// Signal is an eviction signal of the kubelet, in bytes.
type Signal struct {
	Name string `json:"signal"`
	// Available is the part of Capacity that the kubelet counts as available.
	Capacity  uint64 `json:"capacity"`
	Available uint64 `json:"available"`
	// Threshold is the larger of evictionHard and evictionSoft: below it the kubelet evicts pods.
	Threshold uint64 `json:"threshold"`
}

// Begin returns the available memory, in bytes, below which page cache is reclaimed.
func (s Signal) Begin() uint64 {
	return s.Threshold + min(max(s.Capacity/marginShare, leastMargin), mostMargin)
}

// evicts reports whether the kubelet evicts pods, or is about to.
func (s Signal) evicts() bool { return s.Available < s.Threshold+(s.Begin()-s.Threshold)/4 }

// batch returns the bound of one call in bytes.
func (s Signal) batch() uint64 {
	if s.evicts() {
		return lastBatch
	}
	return batch
}

// left returns the bytes above Begin, or the missing ones as a negative number.
func (s Signal) left() int64 { return int64(s.Available) - int64(s.Begin()) }

// next returns the pause until the next check: it is short if little is left, because page cache grows as fast as files are read.
func (s Signal) next() time.Duration {
	const fastest = 1 << 30 // bytes a second
	return min(shortest+time.Duration(max(s.left(), 0)/(fastest/1000))*time.Millisecond, longest)
}

// Container is a container whose page cache may be reclaimed.
type Container struct {
	ID        string             `json:"id"`
	Namespace string             `json:"namespace"`
	Pod       string             `json:"pod"`
	UID       string             `json:"uid"`
	Name      string             `json:"container"`
	Class     memoryqos.QOSClass `json:"qosClass"`
	// Cgroup is relative to the cgroup mount.
	Cgroup string `json:"-"`
	// Keeps are the bytes that are not reclaimed: its request, or memory.min or memory.low if that is more.
	Keeps uint64 `json:"-"`
}

// Usage is what a container's files show, in bytes.
type Usage struct {
	Current   uint64 // memory.current
	Active    uint64 // active_file of memory.stat
	Inactive  uint64 // inactive_file
	Unwritten uint64 // file_dirty and file_writeback, which must be written first
	Refaulted uint64 // page cache that was reclaimed and read again (workingset_refault_file)
	Stolen    uint64 // reclaimed by the kernel (pgsteal)
}

// taken returns the bytes reclaimed since an earlier reading, even if the container has filled its page cache again.
func (u Usage) taken(before Usage) uint64 {
	return max(before.Current-min(before.Current, u.Current), u.Stolen-min(u.Stolen, before.Stolen))
}

// workingSet returns the bytes that the kubelet counts as used.
func (u Usage) workingSet() uint64 { return u.Current - min(u.Current, u.Inactive) }

// spare returns the active page cache that may be reclaimed.
func (u Usage) spare(keeps uint64) uint64 {
	above, clean := u.workingSet()-min(u.workingSet(), keeps), u.Active-min(u.Active, u.Unwritten)
	return min(above, clean)
}

// classes are the QoS classes to reclaim from, in this order. A Guaranteed container uses nothing above its request.
var classes = []memoryqos.QOSClass{memoryqos.BestEffort, memoryqos.Burstable}

// candidate is a container with page cache to spare, and its pod.
type candidate struct {
	*watched
	usage Usage
	spare uint64
	pod   *podSpare
}

// podSpare holds the bytes that a pod uses beyond its own request.
type podSpare struct{ left uint64 }

// gives returns the bytes that may be reclaimed.
func (c *candidate) gives() uint64 { return min(c.spare, c.pod.left) }

// most returns the candidate with the most to spare, so that the container that fills page cache comes first; nil if none has enough.
func most(all []*candidate) (first *candidate) {
	for _, c := range all {
		if c.gives() >= smallest && (first == nil || c.gives() > first.gives()) {
			first = c
		}
	}
	return first
}

const (
	// watch is how long reclaimed page cache is compared with what is read again.
	watch = 30 * time.Second
	// enough, in bytes, must have been reclaimed before the comparison: the kernel first takes pages that were read once.
	enough = 64 << 20
	// firstRest is the first pause of a container; each further pause in a row doubles it, up to mostDoublings times.
	firstRest     = 2 * time.Second
	mostDoublings = 7
	// gain divides the bytes of a call: a call that frees less counts as useless.
	gain = 8
	// restingRate bounds what is reclaimed on the node from resting containers, in bytes per second, because they read it again.
	restingRate = 512 << 20
)

// brake decides when a container rests: after it read at least half of its reclaimed page cache again, or after a call freed nothing. If pods
// would be evicted, the first kind is reclaimed from all the same, because an evicted pod loses all of its page cache.
type brake struct {
	began time.Time
	from  uint64 // refaulted bytes at began
	taken uint64 // bytes reclaimed since
	until time.Time
	needs bool // it rests because it needs its page cache
	rests int  // in a row
}

// allows reports whether page cache of the container may be reclaimed.
func (b *brake) allows(refaulted uint64, now time.Time, evicts bool) bool {
	switch {
	case now.Before(b.until):
		return evicts && b.needs
	case b.began.IsZero():
		b.began, b.from, b.taken = now, refaulted, 0
	case b.taken >= enough && 2*(refaulted-min(refaulted, b.from)) >= b.taken:
		b.rest(now, true)
		return evicts
	case now.Sub(b.began) >= watch:
		b.began, b.from, b.taken, b.rests = now, refaulted, 0, 0
	}
	return true
}

// gave records a call: the bytes asked for and reclaimed, and how many more are available. It reports whether the call was worth making.
func (b *brake) gave(asked, taken, more uint64, now time.Time) (worth bool) {
	b.taken += taken
	if max(taken, more) < asked/gain {
		b.rest(now, false)
		return false
	}
	return true
}

// rest starts a pause; needs says that the container needs its page cache. What it reads again meanwhile does not count.
func (b *brake) rest(now time.Time, needs bool) {
	b.until, b.began, b.needs = now.Add(firstRest<<min(b.rests, mostDoublings)), time.Time{}, needs
	b.rests++
}

// resting reports whether the container rests.
func (b *brake) resting(now time.Time) bool { return now.Before(b.until) }

// allowance is the unused part of restingRate.
type allowance struct {
	bytes uint64
	at    time.Time
}

func (a *allowance) left(now time.Time) uint64 {
	a.bytes = min(restingRate, a.bytes+uint64(min(now.Sub(a.at).Seconds(), 1)*restingRate))
	a.at = now
	return a.bytes
}

func (a *allowance) spend(bytes uint64) { a.bytes -= min(a.bytes, bytes) }
