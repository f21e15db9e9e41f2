// Package reclaim frees page cache before the kubelet evicts pods for it.
//
// The kubelet takes page cache that was used twice (active_file) for memory in use, although the kernel would free it at once
// (https://github.com/kubernetes/kubernetes/issues/43916). A Reclaimer computes what the kubelet compares with its thresholds, and before
// one is reached it asks the kernel for page cache of containers (memory.reclaim): of those of the class BestEffort, then of Burstable
// ones above their requests, and of those that do not need it again.
//
// Signal, Usage and brake decide; Reclaimer reads the kernel's files and carries out.
package reclaim

import (
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const (
	// batch bounds one call in bytes: the kernel does not answer before it is done, and on the way no one can tell what comes back.
	batch = 32 << 20
	// lastBatch is batch where pods are about to be evicted. The kernel takes what was read once first, which counts as available already, and
	// makes active page cache inactive only when much less is inactive (mm/vmscan.c, inactive_is_low): a small call ends before that.
	lastBatch = 4 * batch
	// smallest is the active page cache, in bytes, that is not worth a call.
	smallest = 4 << 20
	// marginShare, leastMargin and mostMargin say how far above the kubelet's threshold reclaim begins: a share of all memory, within bounds
	// in bytes. The kubelet looks each ten seconds.
	marginShare = 20
	leastMargin = 256 << 20
	mostMargin  = 4 << 30
)

// Names of the kubelet's signals (pkg/kubelet/eviction/api/types.go).
const (
	Available            = "memory.available"
	AllocatableAvailable = "allocatableMemory.available"
)

// Signal is what the kubelet compares with one of its thresholds, in bytes.
type Signal struct {
	Name string `json:"signal"`
	// Capacity is what there is at all, Available what the kubelet takes for available of it.
	Capacity  uint64 `json:"capacity"`
	Available uint64 `json:"available"`
	// Threshold is the larger of evictionHard and evictionSoft: below it pods are evicted.
	Threshold uint64 `json:"threshold"`
}

// Begin is the available memory, in bytes, below which page cache is asked for.
func (s Signal) Begin() uint64 {
	return s.Threshold + min(max(s.Capacity/marginShare, leastMargin), mostMargin)
}

// evicts reports whether the kubelet evicts pods, or is about to.
func (s Signal) evicts() bool { return s.Available < s.Threshold+(s.Begin()-s.Threshold)/4 }

// batch is the most that one call may ask for, in bytes.
func (s Signal) batch() uint64 {
	if s.evicts() {
		return lastBatch
	}
	return batch
}

// left are the bytes above Begin; negative where some are missing.
func (s Signal) left() int64 { return int64(s.Available) - int64(s.Begin()) }

// next is when to look again: sooner where little is left, for page cache grows as fast as files are read.
func (s Signal) next() time.Duration {
	const fastest = 1 << 30 // bytes a second
	return min(shortest+time.Duration(max(s.left(), 0)/(fastest/1000))*time.Millisecond, longest)
}

// Container is one whose page cache may be asked for.
type Container struct {
	ID        string             `json:"id"`
	Namespace string             `json:"namespace"`
	Pod       string             `json:"pod"`
	UID       string             `json:"uid"`
	Name      string             `json:"container"`
	Class     memoryqos.QOSClass `json:"qosClass"`
	// Cgroup is relative to the cgroup mount.
	Cgroup string `json:"-"`
	// Keeps are the bytes that it may use in peace: its request, or memory.min or memory.low where that is more.
	Keeps uint64 `json:"-"`
}

// Usage is one reading of a container's files, in bytes.
type Usage struct {
	Current   uint64 // memory.current
	Active    uint64 // active_file of memory.stat
	Inactive  uint64 // inactive_file
	Unwritten uint64 // file_dirty and file_writeback, which have to wait for the disk
	Refaulted uint64 // page cache that was reclaimed and read again (workingset_refault_file)
	Stolen    uint64 // what the kernel has reclaimed (pgsteal)
}

// taken is what was reclaimed since an earlier reading: who makes page cache meanwhile may use as much as before.
func (u Usage) taken(before Usage) uint64 {
	return max(before.Current-min(before.Current, u.Current), u.Stolen-min(u.Stolen, before.Stolen))
}

// workingSet is what the kubelet takes for used.
func (u Usage) workingSet() uint64 { return u.Current - min(u.Current, u.Inactive) }

// spare is the active page cache that a container may be asked for.
func (u Usage) spare(keeps uint64) uint64 {
	above, clean := u.workingSet()-min(u.workingSet(), keeps), u.Active-min(u.Active, u.Unwritten)
	return min(above, clean)
}

// classes are those that are asked, in this order. A Guaranteed container uses nothing above its request.
var classes = []memoryqos.QOSClass{memoryqos.BestEffort, memoryqos.Burstable}

// candidate is a container with what it can spare, and its pod.
type candidate struct {
	*watched
	usage Usage
	spare uint64
	pod   *podSpare
}

// podSpare is what a pod uses beyond its own request, in bytes.
type podSpare struct{ left uint64 }

// gives is what may be asked for.
func (c *candidate) gives() uint64 { return min(c.spare, c.pod.left) }

// most is the candidate with the most to spare, so that who makes page cache is asked before others of its class; nil where none has any.
func most(all []*candidate) (first *candidate) {
	for _, c := range all {
		if c.gives() >= smallest && (first == nil || c.gives() > first.gives()) {
			first = c
		}
	}
	return first
}

const (
	// watch is for how long what was taken is compared with what comes back.
	watch = 30 * time.Second
	// enough, in bytes, is what must have been taken to compare it: the kernel takes first what was read once, and may be read again.
	enough = 64 << 20
	// firstRest is how long a container is left alone first; each further time in a row doubles it, up to mostDoublings times.
	firstRest     = 2 * time.Second
	mostDoublings = 7
	// gain divides what was asked for: a call that gives less gives nothing.
	gain = 8
	// mostAgain, in bytes a second, is what may be taken of containers that read it again, of the whole node: it costs as much reading.
	mostAgain = 512 << 20
)

// brake says when a container is left alone: one that reads again at least half of what it lost needs it, and one that gives nothing
// need not be asked. Where pods would be evicted, the first one is asked all the same: an evicted pod loses all of its page cache.
type brake struct {
	began time.Time
	from  uint64 // refaulted bytes then
	taken uint64 // bytes since
	until time.Time
	needs bool // it rests although the container has something to give
	rests int  // in a row
}

// allows reports whether a container may be asked, after this reading.
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

// gave notes what a call that asked for some bytes took, and how much more is available by it.
func (b *brake) gave(asked, taken, more uint64, now time.Time) (worth bool) {
	b.taken += taken
	if max(taken, more) < asked/gain {
		b.rest(now, false)
		return false
	}
	return true
}

// rest has the container left alone for a while: one that needs what it has unless pods are about to be evicted. What it reads again
// meanwhile does not count.
func (b *brake) rest(now time.Time, needs bool) {
	b.until, b.began, b.needs = now.Add(firstRest<<min(b.rests, mostDoublings)), time.Time{}, needs
	b.rests++
}

// yields reports whether a container is asked although it rests.
func (b *brake) yields(now time.Time) bool { return now.Before(b.until) }

// allowance is what is left of mostAgain.
type allowance struct {
	bytes uint64
	at    time.Time
}

func (a *allowance) left(now time.Time) uint64 {
	a.bytes = min(mostAgain, a.bytes+uint64(min(now.Sub(a.at).Seconds(), 1)*mostAgain))
	a.at = now
	return a.bytes
}

func (a *allowance) spend(bytes uint64) { a.bytes -= min(a.bytes, bytes) }
