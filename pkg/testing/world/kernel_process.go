package world

import (
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// process lives in a cgroup.
type process struct {
	Program
	who     Who
	pid     int
	group   *group
	started time.Time
	exited  func(Exit)

	heap, slab uint64   // bytes, with what is swapped out
	huge       []uint64 // huge pages by NUMA node
	cache      uint64   // bytes that it has read or written so far
	volume     *uint64  // bytes in its files in memory
	wrote      bool
	gone       bool

	// Of the last second:
	busy     bool
	stalled  time.Duration // waiting for memory; what is beyond the second is of the next ones
	atHigh   bool
	standing time.Duration // at its memory.high, without a break
	freed    uint64        // bytes that reclaim has freed so far of its cgroup, without what was read again
}

func (p *process) stall(d time.Duration) { p.stalled += d }

// run is what a process does in a while.
func (k *Kernel) run(p *process, passed time.Duration) {
	debt := max(0, p.stalled-k.last)
	p.busy, p.stalled = false, debt
	if p.Exit > 0 && k.now.Sub(p.started) >= time.Duration(p.Exit) {
		k.finish(p, false)
		return
	}
	if p.Writes != "" && !p.wrote {
		p.wrote = true
		file, text, _ := strings.Cut(p.Writes, "=")
		_ = k.write(p.group, file, text, 0) // a tenant's mistakes are its own
	}
	p.atHigh = p.atHigh && debt > 0
	k.take(p, slab, less(ownKernel, p.slab), passed, &p.slab)
	if k.now.Sub(p.started) >= time.Duration(p.Late) {
		k.take(p, anon, limited(less(p.Heap, p.heap), p.Rate, passed), passed, &p.heap)
	}
	if p.Falls > 0 && k.now.Sub(p.started) >= time.Duration(p.Falls) {
		p.Falls, p.Heap = 0, p.Heap/4
		k.release(p.group, anon, less(p.heap, p.Heap))
		p.heap = min(p.heap, p.Heap)
	}
	if p.Tmpfs > 0 {
		if p.volume == nil {
			p.volume = k.volume(p)
		}
		k.take(p, shmem, limited(less(p.Tmpfs, *p.volume), p.Rate, passed), passed, p.volume)
	}
	if p.Cache > 0 {
		k.cachePages(p, passed)
	}
	if p.gone {
		return
	}
	p.busy = p.busy || p.stalled > 0
	if p.busy {
		ran := passed - min(passed, p.stalled)
		for a := p.group; a != nil; a = a.parent {
			a.cpu += ran
		}
	}
	slow := passed / 2
	if k.fullStands() { // what runs for longer is taken for another task, beside one that waits
		slow = passed - passed/100
	}
	if !p.getsOn(passed, k.leastFreed()) && p.atHigh && min(p.stalled, passed) > slow {
		p.standing += passed
	} else {
		p.standing = 0
	}
}

// leastFreed is how much of reclaim a second counts as getting on: the guard weighs it against full, and where that stands, can only see whether
// there is some.
func (k *Kernel) leastFreed() uint64 {
	if k.fullStands() {
		return 1 << 20
	}
	return 4 << 20
}

// getsOn reports whether a process at its memory.high is slow rather than stopped, as one whose page cache the disk takes, which waits for that:
// reclaim frees a few MiB a second that are not read again, and the rest fits below memory.high.
func (p *process) getsOn(passed time.Duration, least uint64) bool {
	g, high := p.group, uint64(cgroup.Max)
	for a := range g.above {
		high = min(high, a.high)
	}
	before := p.freed
	p.freed = less(g.stolen, g.refault)
	return less(p.freed, before) > limited(cgroup.Max, least, passed) && g.total(anon, shmem, slab) <= high
}

// limited is what a process wants now, at a rate by the second; 0 is no rate.
func limited(want, rate uint64, passed time.Duration) uint64 {
	if rate > 0 {
		want = min(want, uint64(float64(rate)*passed.Seconds()))
	}
	return (want + page - 1) &^ (page - 1)
}

// take has a process get memory as long as its time is not over, and counts it.
func (k *Kernel) take(p *process, of kind, want uint64, passed time.Duration, counter *uint64) {
	step := max(batch, want/64&^(page-1)) // no more than 64 charges a second and process
	for want > 0 && p.stalled < passed && !p.gone {
		n := min(want, max(p.group.quiet(), step))
		if !k.charge(p, of, n) {
			return
		}
		*counter += n
		want -= n
		p.busy = true
		if delay := k.overHigh(p, n); delay > 0 {
			p.stall(delay)
			p.atHigh = true
		}
	}
}

// volume counts the bytes in the files in memory of a container, which are in an emptyDir and outlive its processes.
func (k *Kernel) volume(p *process) *uint64 {
	at := p.group
	for at.parent != nil && cgroup.LevelOf(at.name) != cgroup.LevelPod {
		at = at.parent
	}
	name := at.name + "/" + p.who.Container
	if at.parent == nil {
		name = p.group.name + "/"
	}
	if k.volumes[name] == nil {
		k.volumes[name] = new(uint64)
	}
	return k.volumes[name]
}

// cachePages reads or writes page cache.
func (k *Kernel) cachePages(p *process, passed time.Duration) {
	g := p.group
	if p.Dirty { // it writes its files once
		want := limited(less(p.Cache, p.cache), p.CacheRate, passed)
		k.take(p, dirty, min(want, k.dirtyRoom(g)), passed, &p.cache)
		return
	}
	has := g.sum(inactive, active)
	if p.Fresh {
		k.take(p, inactive, limited(less(p.Cache, has), p.CacheRate, passed), passed, &p.cache)
	} else if has < p.Cache {
		before := p.cache
		k.take(p, inactive, limited(p.Cache-has, p.CacheRate, passed), passed, &p.cache)
		if again := p.cache - max(before, min(p.cache, p.Cache)); again > 0 { // it was there before: mm/workingset.c
			for a := g; a != nil; a = a.parent {
				a.refault += again
			}
			p.stall(time.Duration(float64(again) / readRate * float64(time.Second)))
		}
		return
	}
	if k.multiGen() { // what is only read stays inactive there (measured on 6.12.95)
		return
	}
	// Read a second time, it becomes active (mm/swap.c, folio_mark_accessed).
	k.turn(g, inactive, active, limited(g.sum(inactive), p.CacheRate, passed))
}

// multiGen reports whether the multi-gen LRU is on, as in the kernels of Debian from 6.12 on.
func (k *Kernel) multiGen() bool { return k.version == [2]int{6, 12} }

// dirtyRoom is how much more page cache may wait for the disk before a writer waits, too (mm/page-writeback.c, domain_dirty_limits: vm.dirty_ratio
// 20, of what the machine and, by mdtc_calc_avail, the cgroup could have as page cache). On Linux 6.12 with XFS writers were seen to fill their
// cgroup's limit with it, and to be killed.
func (k *Kernel) dirtyRoom(g *group) uint64 {
	cache := k.top.total(inactive, active, dirty)
	for node := range k.nodes.All() {
		cache += k.free(node)
	}
	room := less(cache/5, k.top.total(dirty))
	if k.version != [2]int{6, 12} {
		room = min(room, less((min(g.quiet(), cache)+g.sum(inactive, active, dirty))/5, g.sum(dirty)))
	}
	return room &^ (page - 1)
}

// finish ends a process by itself or by the kernel.
func (k *Kernel) finish(p *process, killed bool) {
	if p.gone {
		return
	}
	k.end(p)
	exit := Exit{At: k.now, OOM: killed}
	k.ends = append(k.ends, func() { p.exited(exit) })
}
