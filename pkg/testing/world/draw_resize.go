package world

import (
	"slices"
	"strings"
	"time"
)

// slowUpdates has the runtime take its time for an update on a quarter of the nodes, in which the daemon may look at the files.
func (d drawer) slowUpdates(s *Scenario) {
	d.Rand = draws(s.Seed, "slow updates")
	if d.oneIn(4) {
		s.Runtime.Updates = Duration(d.between(50*time.Millisecond, 3*time.Second))
	}
}

// crowded gives a fifth of the scenarios a pod that most of a NUMA node is allocated to, until it ends, or to the end, and one that is resized to as
// much before. Of those that are not calm, half have the daemon and the runtime start again around that.
func (d drawer) crowded(s *Scenario) {
	d.Rand = draws(s.Seed, "pending resizes")
	if !d.oneIn(5) {
		return
	}
	size := s.Machine.Nodes[0].Memory / 16
	guaranteed := func(name string, limit uint64) Pod {
		return Pod{Name: name, Namespace: "data", Class: "Guaranteed", Containers: []Container{{Name: "app", Kind: "app", Request: limit, Limit: limit, Lives: []Program{{Heap: 16 * mi}}}}}
	}
	fills, grows := guaranteed("fills", 9*size), guaranteed("grows", 3*size)
	fills.At, grows.At = d.when(0), d.when(2*time.Second)
	resized := d.between(30*time.Second, d.length/2)
	grows.Changes = []Change{{At: d.when(resized), Kind: Resize, Container: "app", Limit: 10 * size}}
	fills.End = d.when(resized + d.between(20*time.Second, d.length/3))
	if d.oneIn(3) { // it is pending to the end
		fills.End = 0
	}
	s.Pods = append(s.Pods, fills, grows)
	if !d.calm && d.oneIn(2) {
		d.startsAgain(s, resized)
	}
}

// resized gives most of the scenarios that are not calm pods that are resized between a start of the daemon and one of the runtime, after which
// these have what they knew of them from elsewhere.
func (d drawer) resized(s *Scenario) {
	d.Rand = draws(s.Seed, "resizes around a start")
	if d.calm || d.oneIn(4) {
		return
	}
	at := d.between(2*time.Minute, d.length/2)
	for _, class := range []string{"Guaranteed", "Burstable"} {
		limit := uint64(200+d.IntN(300)) * mi
		c := Container{Name: "app", Kind: "app", Request: limit, Limit: limit, Lives: []Program{{Heap: 16 * mi}}}
		if class == "Burstable" {
			c.Request /= 2
		}
		s.Pods = append(s.Pods, Pod{Name: "resized-" + strings.ToLower(class), Namespace: "shop", Class: class, At: d.when(d.between(time.Second, time.Minute)), Containers: []Container{c},
			Changes: []Change{{At: d.when(at), Kind: Resize, Container: "app", Limit: pick(d, limit*2, limit-limit/4&^(page-1))}}})
	}
	d.startsAgain(s, at)
}

// startsAgain has the daemon start again in the minute before a time and the runtime in the minute after it; or the other way round, but for
// CRI-O, which has the limit of the creation again.
func (d drawer) startsAgain(s *Scenario, about time.Duration) {
	kinds := []string{pick(d, DaemonKilled, DaemonEnds), RuntimeRestarted}
	if s.Runtime.Name != "cri-o" && d.oneIn(2) {
		slices.Reverse(kinds)
	}
	for i, at := range []time.Duration{about - d.between(15*time.Second, time.Minute), about + d.between(10*time.Second, time.Minute)} {
		s.Faults = append(s.Faults, Fault{At: d.when(at), Kind: kinds[i], Length: Duration(d.between(time.Second, 5*time.Second))})
	}
}
