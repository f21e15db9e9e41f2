package world

import (
	"strings"
	"time"
)

// crowded gives a fifth of the scenarios a pod that most of a NUMA node is allocated to, until it ends, and one that is resized to as much before.
// Of those that are not calm, half have the daemon or the runtime start again shortly before or after that.
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
	s.Pods = append(s.Pods, fills, grows)
	if !d.calm && d.oneIn(2) {
		d.startsAgain(s, resized)
	}
}

// resized gives half of the scenarios that are not calm pods that are resized shortly before or after the daemon or the runtime starts again, after
// which that has what it knew of them from elsewhere.
func (d drawer) resized(s *Scenario) {
	d.Rand = draws(s.Seed, "resizes around a start")
	if d.calm || d.oneIn(2) {
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

// startsAgain has the daemon or the runtime start again up to a minute before or after a time.
func (d drawer) startsAgain(s *Scenario, about time.Duration) {
	at := about + pick[time.Duration](d, -1, 1)*d.between(10*time.Second, time.Minute)
	s.Faults = append(s.Faults, Fault{At: d.when(at), Kind: pick(d, DaemonKilled, DaemonEnds, RuntimeRestarted, RuntimeRestarted), Length: Duration(d.between(time.Second, 5*time.Second))})
}
