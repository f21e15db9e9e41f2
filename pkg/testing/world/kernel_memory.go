package world

import (
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

const (
	page     = 4096
	hugePage = 2 << 20
	batch    = 64 * page // mm/memcontrol.c, MEMCG_CHARGE_BATCH
	// diskRate is what the disk takes in a second, readRate what it gives; as the slower disks of cloud machines.
	diskRate = 50 << 20
	readRate = 500 << 20
	// reclaimRate is what reclaim frees in a second of clean page cache, kswapdRate what kswapd does meanwhile.
	reclaimRate = 4 << 30
	kswapdRate  = 512 << 20
	ownKernel   = 128 << 10 // kernel memory of a process: its stack, page tables, dentries
)

// kind is what memory is used for.
type kind int

const (
	anon     kind = iota
	inactive      // clean page cache
	active
	dirty // page cache that the disk has not taken, on the inactive list
	shmem // files in memory
	slab  // all of the kernel's
	kinds
)

// event is a counter of memory.events.
type event int

const (
	eventLow event = iota
	eventHigh
	eventMax
	eventOOM
	eventOOMKill
	eventOOMGroupKill
	eventKinds
)

// memory is what is charged to a cgroup. Each change is added on the way up, so that nothing is summed up over cgroups.
type memory struct {
	own, all [][kinds]uint64 // bytes by NUMA node: its own, and with those below
	ownSwap  uint64          // bytes
	swapped  uint64          // with those below
	current  uint64          // all, without swap
	peak     uint64
	events   [eventKinds]uint64
	local    [eventKinds]uint64
	stolen   uint64 // bytes, with those below
	refault  uint64 // bytes of page cache, with those below
	gave     uint64 // bytes, to writes of its memory.reclaim
}

func newMemory(nodes int) memory {
	return memory{own: make([][kinds]uint64, nodes), all: make([][kinds]uint64, nodes)}
}

func (m *memory) sum(of ...kind) (bytes uint64)   { return sumOf(m.own, of) }
func (m *memory) total(of ...kind) (bytes uint64) { return sumOf(m.all, of) }

func sumOf(nodes [][kinds]uint64, of []kind) (bytes uint64) {
	for node := range nodes {
		for _, kind := range of {
			bytes += nodes[node][kind]
		}
	}
	return bytes
}

// change adds to what is charged to a cgroup, or takes from it.
func (k *Kernel) change(g *group, node int, of kind, bytes int64) {
	if bytes == 0 {
		return
	}
	g.own[node][of] += uint64(bytes)
	k.used[node] += uint64(bytes)
	for a := g; a != nil; a = a.parent {
		a.all[node][of] += uint64(bytes)
		a.current += uint64(bytes)
		a.peak = max(a.peak, a.current)
	}
}

func (k *Kernel) swap(g *group, bytes int64) {
	g.ownSwap += uint64(bytes)
	k.swapFree -= uint64(bytes)
	for a := g; a != nil; a = a.parent {
		a.swapped += uint64(bytes)
	}
}

// release frees what a process had of its cgroup's own memory.
func (k *Kernel) release(g *group, of kind, part uint64) {
	has := []uint64{0}
	for node := range g.own {
		has = append(has, g.own[node][of])
	}
	if of == anon {
		has[0] = g.ownSwap
	}
	each := shares(part, has)
	k.swap(g, -int64(each[0]))
	for node := range g.own {
		k.change(g, node, of, -int64(each[node+1]))
	}
}

// scale is a·b/c for sizes in bytes.
func scale(a, b, c uint64) uint64 {
	if c == 0 {
		return 0
	}
	return uint64(float64(a) * (float64(b) / float64(c)))
}

func less(a, b uint64) uint64 { return a - min(a, b) }

// moved counts an event (include/linux/memcontrol.h, memcg_memory_event): for the cgroup itself, and for it and those above, unless
// memory_localevents is mounted.
func (k *Kernel) moved(g *group, e event, times uint64) {
	g.local[e] += times
	g.toTell.local = true
	for a := range g.above {
		a.events[e] += times
		if !a.toTell.events {
			a.toTell.events = true
			k.noticed = append(k.noticed, a)
		}
		if k.local {
			break
		}
	}
}

// effectiveProtection is a cgroup's share of what its parent is protected by (mm/page_counter.c, effective_protection): protected is the sum of what the
// cgroups in the parent use and claim, recursive whether memory_recursiveprot is mounted.
func effectiveProtection(usage, parentUsage, setting, parentEffective, protected uint64, recursive bool) uint64 {
	own := min(usage, setting)
	switch {
	case protected > parentEffective: // overcommitted: in proportion to what each claims and uses
		return scale(own, parentEffective, protected)
	case recursive && parentEffective > protected && parentUsage > protected && usage > own:
		return own + scale(parentEffective-protected, usage-own, parentUsage-protected)
	}
	return own
}

// giver is a cgroup that reclaim may take from.
type giver struct {
	*group
	can uint64 // bytes
	low bool   // although it is below its memory.low
}

// scan is one reclaim: mm/vmscan.c, struct scan_control.
type scan struct {
	target *group
	nodes  nodeset.Set
	swap   bool // may swap out
	low    bool // memory.low does not hold any more (memcg_low_reclaim)
}

// givers finds them from a cgroup down; minimum and low are its effective protection, which the target has none of (mem_cgroup_unprotected).
func (k *Kernel) givers(s scan, g *group, minimum, low uint64, found []giver) []giver {
	if reclaimable(g.all, s) == 0 && k.swapRoom(s, g) == 0 {
		return found
	}
	protection := minimum
	if !s.low {
		protection = max(minimum, low)
	}
	can := min(reclaimable(g.own, s)+min(k.swapRoom(s, g), swappable(g.own, s)), less(g.current, protection)) &^ (page - 1)
	if below := s.low && low > 0 && g.current <= low; can > 0 || below {
		found = append(found, giver{g, can, below})
	}
	var mins, lows uint64
	for _, child := range g.children {
		mins, lows = mins+min(child.current, child.min), lows+min(child.current, child.low)
	}
	for _, child := range g.children {
		childMin, childLow := child.min, child.low
		if g != s.target { // right below the target a cgroup's own values hold (mem_cgroup_calculate_protection, parent == root)
			childMin = effectiveProtection(child.current, g.current, child.min, minimum, mins, k.recursive)
			childLow = effectiveProtection(child.current, g.current, child.low, low, lows, k.recursive)
		}
		found = k.givers(s, child, childMin, childLow, found)
	}
	return found
}

// reclaimable is clean page cache.
func reclaimable(of [][kinds]uint64, s scan) (bytes uint64) {
	for node := range s.nodes.All() {
		bytes += of[node][inactive] + of[node][active]
	}
	return bytes
}

func swappable(of [][kinds]uint64, s scan) (bytes uint64) {
	for node := range s.nodes.All() {
		bytes += of[node][anon] + of[node][shmem]
	}
	return bytes
}

// swapRoom is what a cgroup may still swap out.
func (k *Kernel) swapRoom(s scan, g *group) uint64 {
	if !s.swap || k.swapFree == 0 {
		return 0
	}
	room := k.swapFree
	for a := range g.above {
		room = min(room, less(a.swapMax, a.swapped))
	}
	return room &^ (page - 1)
}

// reclaim takes memory from a cgroup and those below. What is below memory.low is taken from when all others have nothing more to give.
func (k *Kernel) reclaim(s scan, want uint64) (got uint64) {
	for _, s.low = range []bool{false, true} {
		for got < want {
			givers := k.givers(s, s.target, 0, 0, nil)
			var can []uint64
			for _, giver := range givers {
				can = append(can, giver.can)
			}
			before := got
			for i, bytes := range shares(want-got, can) {
				if givers[i].low && (bytes > 0 || can[i] == 0) { // one with pages only below it is passed, too
					k.moved(givers[i].group, eventLow, 1)
				}
				got += k.shrink(s, givers[i].group, bytes)
			}
			if got == before {
				break
			}
		}
	}
	return got
}

// shares divides what is wanted in proportion to what each can give, in pages: reclaim scans all lists at the same priority.
func shares(want uint64, can []uint64) []uint64 {
	var all uint64
	for _, bytes := range can {
		all += bytes
	}
	want = min((want+page-1)&^(page-1), all)
	each, left := make([]uint64, len(can)), want
	for i, bytes := range can {
		each[i] = min(scale(bytes, want, all)&^(page-1), bytes, left)
		left -= each[i]
	}
	for i, bytes := range can {
		more := min(bytes-each[i], left)
		each[i] += more
		left -= more
	}
	return each
}

// shrink takes from a cgroup's own pages: page cache first, what was not used for long before the rest.
func (k *Kernel) shrink(s scan, g *group, want uint64) (got uint64) {
	for _, of := range []kind{inactive, active, anon, shmem} {
		for node := range s.nodes.All() {
			take := min(g.own[node][of], want-got)
			if of == anon || of == shmem {
				take = min(take, k.swapRoom(s, g))
				k.swap(g, int64(take))
			}
			k.change(g, node, of, -int64(take))
			got += take
		}
	}
	for a := g; a != nil; a = a.parent {
		a.stolen += got
	}
	return got
}

// watermarks are those of a NUMA node in bytes: mm/page_alloc.c, __setup_per_zone_wmarks.
func (k *Kernel) watermarks(node int) (minimum, low, high uint64) {
	minimum = scale(minFree, k.machine.Nodes[node].Memory, k.installed())
	return minimum, minimum + minimum/4, minimum + minimum/2
}

func (k *Kernel) installed() (bytes uint64) {
	for _, node := range k.machine.Nodes {
		bytes += node.Memory
	}
	return bytes
}

func (k *Kernel) free(node int) uint64 {
	n := k.machine.Nodes[node]
	return less(n.Memory, n.Outside+n.Hugepages*hugePage+k.used[node])
}

// kswapd reclaims on each of these NUMA nodes that is below its low watermark, up to the high one, beside the processes and as fast as it can.
func (k *Kernel) kswapd(nodes nodeset.Set) (got uint64) {
	for node := range nodes.All() {
		_, low, high := k.watermarks(node)
		if free := k.free(node); free < low {
			got += k.reclaim(scan{target: k.top, nodes: nodeset.Of(node), swap: true}, min(high-free, k.stats.kswapdLeft))
			k.stats.kswapdLeft = less(k.stats.kswapdLeft, got)
		}
	}
	k.stats.kswapd += got
	return got
}

// writeBack has the disk take dirty pages, from all cgroups in proportion.
func (k *Kernel) writeBack(passed time.Duration) {
	if k.top.total(dirty) == 0 {
		return
	}
	writers := k.top.writers(nil)
	var has []uint64
	for _, g := range writers {
		has = append(has, g.sum(dirty))
	}
	for i, bytes := range shares(uint64(passed.Seconds()*diskRate), has) {
		k.turn(writers[i], dirty, inactive, bytes)
	}
}

// turn makes one kind of a cgroup's own memory another.
func (k *Kernel) turn(g *group, from, to kind, bytes uint64) {
	for node := range g.own {
		part := min(bytes, g.own[node][from])
		k.change(g, node, from, -int64(part))
		k.change(g, node, to, int64(part))
		bytes -= part
	}
}

// writers are the cgroups that have dirty pages.
func (g *group) writers(found []*group) []*group {
	if g.total(dirty) == 0 {
		return found
	}
	found = append(found, g)
	for _, child := range g.children {
		found = child.writers(found)
	}
	return found
}

// charge gives memory to a process: mm/memcontrol.c, try_charge_memcg, and mm/page_alloc.c. It reports whether the process has it.
func (k *Kernel) charge(p *process, of kind, bytes uint64) bool {
	for over := p.group.overLimit(bytes); over != nil; over = p.group.overLimit(bytes) {
		k.moved(over, eventMax, 1)
		need := over.current + bytes - over.max
		got := k.reclaim(scan{target: over, nodes: k.nodes, swap: true}, need)
		p.stall(reclaiming(got))
		if got >= need {
			continue
		}
		k.moved(over, eventOOM, 1)
		if !k.outOfMemory(p, over) || p.gone {
			return false
		}
	}
	for bytes > 0 {
		node, room := k.roomiest(p.group)
		if room == 0 { // mm/page_alloc.c, __alloc_pages_slowpath: wakes kswapd, and then reclaims itself
			if k.kswapd(p.group.effective) > 0 {
				continue
			}
			k.stats.allocstall++
			got := k.reclaim(scan{target: k.top, nodes: p.group.effective, swap: true}, max(bytes, 32*page))
			p.stall(reclaiming(got))
			if got == 0 && (!k.outOfMemory(p, nil) || p.gone) {
				return false
			}
			continue
		}
		part := min(bytes, room)
		k.change(p.group, node, of, int64(part))
		bytes -= part
	}
	return true
}

func reclaiming(bytes uint64) time.Duration {
	return time.Duration(float64(bytes) / reclaimRate * float64(time.Second))
}

// overLimit is the first cgroup on the way up that has no room for so many bytes.
func (g *group) overLimit(bytes uint64) *group {
	for a := range g.above {
		if a.max != cgroup.Max && a.current+bytes > a.max {
			return a
		}
	}
	return nil
}

// roomiest is the NUMA node of those that a cgroup may use with the most free above its minimum.
func (k *Kernel) roomiest(g *group) (best int, room uint64) {
	for node := range g.effective.All() {
		minimum, _, _ := k.watermarks(node)
		if free := less(k.free(node), minimum) &^ (page - 1); free > room {
			best, room = node, free
		}
	}
	return best, room
}

// quiet is how many bytes a cgroup can have with nothing happening.
func (g *group) quiet() uint64 {
	room := uint64(cgroup.Max)
	for a := range g.above {
		room = min(room, less(min(a.max, a.high), a.current))
	}
	return room &^ (page - 1)
}

// highDelay is how long an allocation sleeps that finds its cgroup above its memory.high by so much (mm/memcontrol.c, calculate_overage and
// calculate_high_delay): the square of the overage in parts of high, at most two seconds, and nothing below 10 ms.
func highDelay(usage, high, charged uint64) time.Duration {
	if usage <= high {
		return 0
	}
	const precision, scaling, hz = 20, 14, 250
	overage := ((usage - high) / page << precision) / max(high/page, 1)
	overage = min(overage, 1<<28) // far beyond the longest
	jiffies := overage * overage >> precision * hz >> scaling
	jiffies = min(jiffies*(charged/page)/(batch/page), 2*hz)
	if jiffies <= hz/100 {
		return 0
	}
	return time.Duration(jiffies) * time.Second / hz
}

// overHigh reclaims and stops a process whose cgroup, or one above, is above its memory.high (mem_cgroup_handle_over_high).
func (k *Kernel) overHigh(p *process, charged uint64) (delay time.Duration) {
	for a := range p.group.above {
		if a.current <= a.high {
			continue
		}
		k.moved(a, eventHigh, 1)
		p.stall(reclaiming(k.reclaim(scan{target: a, nodes: k.nodes, swap: true}, a.current-a.high)))
		if one := highDelay(a.current, a.high, charged); one > 0 {
			k.moved(a, eventHigh, 16) // MAX_RECLAIM_RETRIES without progress
			delay = max(delay, one)
		}
	}
	return delay
}

// migrate moves the pages that processes have mapped to the nodes that a cgroup and those below may use (kernel/cgroup/cpuset.c,
// cpuset_migrate_mm), as far as there is room.
func (k *Kernel) migrate(g *group, parent nodeset.Set) {
	nodes := parent
	if g.parent != nil {
		// A child cannot leave its parent's nodes, and has them where nothing is left (update_nodemasks_hier).
		if nodes = g.mems.Intersect(parent); nodes.Empty() {
			nodes = parent
		}
	}
	if g.effective != nodes {
		g.effective = nodes
		if g.hasProcess() {
			for node := range k.nodes.Minus(nodes).All() {
				k.evacuate(g, node)
			}
		}
	}
	for _, child := range g.children {
		k.migrate(child, nodes)
	}
}

// mapped is what a cgroup has on some NUMA nodes that would move, in bytes.
func (k *Kernel) mapped(cgroup string, nodes int) (bytes uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for node := range k.used {
		if g := k.groups[cgroup]; g != nil && nodes&(1<<node) != 0 {
			bytes += g.all[node][anon]
		}
	}
	return bytes
}

func (k *Kernel) evacuate(g *group, from int) {
	for g.own[from][anon] > 0 {
		to, room := k.roomiest(g)
		part := min(g.own[from][anon], room)
		if part == 0 {
			return
		}
		k.change(g, from, anon, -int64(part))
		k.change(g, to, anon, int64(part))
	}
}

// shrinkTo is a write of memory.max or memory.high: the writer reclaims, and for memory.max kills (memory_max_write, memory_high_write).
func (k *Kernel) shrinkTo(g *group, limit uint64, kill bool) {
	for g.current > limit {
		if k.reclaim(scan{target: g, nodes: k.nodes, swap: true}, g.current-limit) > 0 {
			continue
		}
		if !kill {
			return
		}
		k.moved(g, eventOOM, 1)
		if !k.outOfMemory(nil, g) {
			return
		}
	}
}

// mapHuge takes huge pages of the NUMA nodes that a cgroup may use from their pools, in whole; nil is where there are too few.
func (k *Kernel) mapHuge(g *group, bytes uint64) []uint64 {
	taken, left := make([]uint64, len(k.hugeFree)), (bytes+hugePage-1)/hugePage
	for node := range g.effective.All() {
		taken[node] = min(left, k.hugeFree[node])
		left -= taken[node]
	}
	if left > 0 {
		return nil
	}
	for node := range taken {
		k.hugeFree[node] -= taken[node]
	}
	return taken
}
