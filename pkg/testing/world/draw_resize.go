package world

import "time"

// slowUpdates has the runtime take its time for an update on a quarter of the nodes, in which the daemon may look at the files.
func (d drawer) slowUpdates(s *Scenario) {
	d.Rand = draws(s.Seed, "slow updates")
	if d.oneIn(4) {
		s.Runtime.Updates = Duration(d.between(50*time.Millisecond, 3*time.Second))
	}
}

// crowded gives a fifth of the scenarios a pod that most of a NUMA node is allocated to, until it ends, or to the end, and one that is resized to as much before.
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
}
