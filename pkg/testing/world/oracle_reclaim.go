package world

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

const (
	makersFirst Promise = "page cache is taken of who makes it before the others"
	roomMade    Promise = "page cache is given back before the kubelet evicts for it"
	leastFirst  Promise = "the page cache of BestEffort containers is reclaimed first"
	callsMade   Promise = "no requests for page cache are counted but those that were made"
)

// muchCache, in bytes, is more than what a look at page cache may leave out.
const muchCache = 64 * mi

// makersFirst looks for a container that lost page cache in a minute in which another one of the class BestEffort gave nothing, although it had
// twice as much all the time and read nothing of it again; and for one that gave nothing while all gave nothing and the kubelet was about to evict.
func (n *simulation) makersFirst() {
	const span, every = time.Minute, 5 * time.Second // every is how often this is called
	now := time.Now()
	if !n.kernel.atLeast(5, 19) { // without memory.reclaim
		return
	}
	if n.trouble.calm(makersFirst, now).After(now) {
		n.caches, n.enough = nil, now
		return
	}
	if !n.evictsSoon() {
		n.enough = now
	}
	cached, look := n.kernel.Cached(), map[string]Cache{}
	for p, c := range n.containers() {
		if p.Class == "BestEffort" {
			look[c.Cgroup] = cached[c.Cgroup]
		}
	}
	if n.caches = append(n.caches, look); len(n.caches) <= int(span/every) {
		return
	}
	n.caches = n.caches[1:]
	waits := now.Sub(n.enough) > span
	for other := range look {
		waits = waits && look[other].Gave == n.caches[0][other].Gave
	}
	for maker, has := range look {
		least, _, idle := n.inMinute(maker)
		if !idle {
			continue
		}
		if waits && least >= muchCache && has.Again == 0 {
			n.broken(roomMade, "%s has given nothing of %dMi for a minute, and pods were about to be evicted", maker, least/mi)
		}
		for other := range look {
			if _, most, _ := n.inMinute(other); most < least/2 && look[other].Gave-n.caches[0][other].Gave >= muchCache {
				n.broken(makersFirst, "%s gave nothing of %dMi in a minute, and %s gave of %dMi", maker, has.Active/mi, other, most/mi)
			}
		}
	}
}

// bestEffortFirst is called as page cache of a Burstable container is reclaimed. It looks for one of the class BestEffort that has had some for a
// minute, and from which none was taken.
func (n *simulation) bestEffortFirst(p LivePod, c LiveContainer) {
	if len(n.caches) < 12 {
		return
	}
	now := n.kernel.Cached()
	for other, has := range n.caches[len(n.caches)-1] {
		if least, _, idle := n.inMinute(other); idle && min(least, now[other].Active) >= muchCache && now[other].Gave == has.Gave && has.Again == 0 {
			n.broken(leastFirst, "%s/%s of class %s is asked for some, and %s has had %dMi for a minute", p.Name, c.Spec.Name, p.Class, other, least/mi)
		}
	}
}

// reclaimsCounted compares the metric with the writes of memory.reclaim; some are the stall guard's. A dry run counts what it leaves out.
func (n *simulation) reclaimsCounted(a answers) {
	dry := strings.Contains(n.scenario.String(), "profile: Observe")
	if calls, made := a.metrics["nri_memory_manager_reclaim_calls_total"], n.current().reclaims; calls > made && !dry {
		n.broken(callsMade, "the metric has %d, and %d were made", calls, made)
	}
}

// evictsSoon reports whether the kubelet is about to evict pods, of a node whose page cache is to be reclaimed before.
func (n *simulation) evictsSoon() bool {
	s, kubepods := n.settings(), n.kubelet.Parent("Guaranteed")
	if !s.Reclaims || !s.writes() {
		return false
	}
	info, err := sysfs.Meminfo(filepath.Join(n.folder, "proc"))
	must(err)
	soon := func(capacity, used uint64) bool {
		return less(capacity, used) < evicts+min(max(capacity/20, 256*mi), 4*gi)
	}
	limit := n.kernel.number(kubepods, "memory.max")
	return soon(info["MemTotal"], less(info["AnonPages"]+info["Cached"]+info["SwapCached"], info["Inactive(file)"])) ||
		limit != noLimit && soon(limit, n.workingSet(kubepods))
}

// inMinute is how little and how much active page cache a container had, and whether it gave nothing and read nothing again.
func (n *simulation) inMinute(cgroup string) (least, most uint64, idle bool) {
	first := n.caches[0][cgroup]
	least, idle = first.Active, true
	for _, look := range n.caches {
		has := look[cgroup]
		least, most = min(least, has.Active), max(most, has.Active)
		idle = idle && has.Gave == first.Gave && has.Again == first.Again
	}
	return least, most, idle
}
