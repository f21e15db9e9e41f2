package world

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

const (
	lowered Promise = "a raised memory.high is lowered again once its container needs it no more"
	raising Promise = "how often and for how long a memory.high is raised is counted"
	inRoom  Promise = "a memory.high is raised beyond a request only as far as the node has memory"
)

// The stall guard lowers after five quiet minutes, which double, up to eightfold, each time that a container stalls once it was lowered.
const (
	quietBefore   = 5 * time.Minute
	mostDoubled   = 8 * quietBefore
	loweredWithin = 20 * time.Second // of that: it looks again two seconds later, and reclaims first
)

// raise is a container's memory.high as it was seen last, above what Memory QoS asks for.
type raise struct {
	high    uint64
	stalled time.Duration // for how long, all in all
	seen    time.Time     // last
	since   time.Time     // when all that speaks against lowering it had passed
	wait    time.Duration
	down    bool // it was more before
}

// followRaise follows the memory.high of a container that the guard may raise. It speaks against lowering that the container waits for memory, that
// what cannot be reclaimed would not fit below what Memory QoS asks for, with half of the room up to its limit to spare, and any trouble.
func (n *simulation) followRaise(s settings, p LivePod, c LiveContainer, high, wanted uint64) {
	now, stalled := time.Now(), n.kernel.fullStall(c.Cgroup)
	r := n.raises[c.ID]
	if r == nil {
		r = &raise{high: high, wait: quietBefore}
		n.raises[c.ID] = r
	}
	fixed := n.kernel.number(c.Cgroup, "memory.current") - n.kernel.charged(c.Cgroup, active, inactive, dirty)
	room := less(cmp.Or(n.limit(c), n.capacity()), wanted)
	if high > r.high && r.down { // or another writer had lowered it, which was taken back
		r.wait, r.down = min(2*r.wait, mostDoubled), false
	}
	r.down = r.down || high < r.high
	if high != r.high || high <= wanted || near(high, wanted) || stalled != r.stalled || now.Sub(r.seen) > 2*time.Second || fixed+room/2+mi > wanted || !s.guards(p) || p.isDaemon() || n.writesItself(p, c.Spec.Name) {
		r.since = now
	}
	unlimited := n.limit(c) == 0 && c.Spec.Limit > 0 // the daemon has a limit that another writer set before the cgroup was reset
	if high > wanted && !near(high, wanted) && !unlimited && s.guards(p) && !p.isDaemon() && !n.writesItself(p, c.Spec.Name) {
		n.countRaise(high > r.high && r.high > 0 && now.Sub(r.seen) <= 2*time.Second)
	}
	r.high, r.stalled, r.seen = high, stalled, now
	if since := latest(r.since, n.trouble.calm(lowered, now)); now.Sub(since) > r.wait+loweredWithin {
		n.broken(lowered, "%s/%s has memory.high %d since %s, want %d, and could have had less for %s", p.Name, c.Spec.Name, high, since.Sub(n.began).Round(time.Second), wanted, now.Sub(since).Round(time.Second))
	}
}

// raised is what was seen of raises in one life of the daemon.
type raised struct {
	times   uint64 // at least
	seconds float64
}

// countRaise is called each second for each container with a raised memory.high. Others write, too, where something goes wrong.
func (n *simulation) countRaise(again bool) {
	if now := time.Now(); n.trouble.calm(lowered, now).After(now) {
		return
	}
	r := n.raised[n.current()]
	if r == nil {
		r = &raised{}
		n.raised[n.current()] = r
	}
	if r.seconds++; again {
		r.times++
	}
}

// raisesCounted compares what was seen, each second, with the metrics.
func (n *simulation) raisesCounted(a answers) {
	saw := n.raised[n.current()]
	times, seconds := a.metrics["nri_memory_manager_stall_guard_raises_total"], a.metrics["nri_memory_manager_stall_guard_raised_seconds_total"]
	if saw != nil && (times < saw.times || float64(seconds) < 0.9*saw.seconds-10) {
		n.broken(raising, "%d times and for %ds, as metrics have it; seen were %d and %.0fs", times, seconds, saw.times, saw.seconds)
	}
}

// raisedInRoom looks at a write of memory.high that raises it above what Memory QoS asks for.
func (n *simulation) raisedInRoom(cgroup, text string) {
	const margin = 64 * mi // that others may have taken since the guard's look
	now, s := time.Now(), n.settings()
	if n.trouble.calm(lowered, now).After(now) {
		return
	}
	to, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		to = noLimit
	}
	for p, c := range n.containers() {
		if c.Cgroup != strings.TrimSuffix(cgroup, "/container") || c.Resizing || p.isDaemon() || n.writesItself(p, c.Spec.Name) || to == noLimit && n.limit(c) == 0 || !n.runs(c) { // what ends gets its max back
			continue
		}
		limited, bound := n.limitedFromOutside(p, c)
		wanted := s.wanted(p, limited.Spec, bound, n.capacity()).high
		felt, has := min(to, cmp.Or(n.limit(c), noLimit)), n.kernel.number(c.Cgroup, "memory.high")
		room := max(n.kernel.number(c.Cgroup, "memory.current")+n.available(), c.Spec.Request)
		if felt > max(has, wanted) && felt > room+margin {
			n.broken(inRoom, "%s/%s: from %dMi to %dMi, with room up to %dMi", p.Name, c.Spec.Name, has/mi, felt/mi, room/mi)
		}
	}
}
