package world

import (
	"fmt"
	"time"
)

// guarded gives half of the scenarios heaps that outgrow their memory.high and fall later, every tenth pod no stall guard, and every eighth
// configuration none at all. It has draws of its own, so that the others stay.
func (d drawer) guarded(s *Scenario) {
	d.Rand = draws(s.Seed, "stall guard")
	if d.oneIn(8) {
		s.Config += "stallGuard: false\n"
	}
	for i := range s.Faults {
		if f := &s.Faults[i]; f.Kind == NewConfig && d.oneIn(5) {
			f.Target += "stallGuard: false\n"
		}
	}
	for i := range s.Pods {
		if d.oneIn(10) && !s.Pods[i].Static && s.Pods[i].Name != ownPod {
			s.Pods[i].annotate("stall-guard", "off")
		}
	}
	if d.oneIn(2) {
		return
	}
	for i := range 2 {
		limit := uint64(64+d.IntN(400)) * mi
		request := limit / pick[uint64](d, 4, 8) &^ (page - 1) // so that memory.high is well below what it wants
		at, grown := d.between(5*time.Second, 2*time.Minute), d.between(40*time.Second, 2*time.Minute)
		heap := Program{Heap: limit - limit/pick[uint64](d, 25, 50), Rate: limit / 20, Falls: Duration(grown)}
		if i == 1 && s.Seed%2 == 0 { // page cache has the room that the heap leaves
			heap.Cache, heap.CacheRate = limit/4*3, limit/50
		}
		p := Pod{Name: fmt.Sprintf("falls%d", i), Namespace: pick(d, "shop", "data"), Class: "Burstable", At: d.when(at),
			Containers: []Container{{Name: "app", Kind: "app", Request: request, Limit: limit, Lives: []Program{heap}}}}
		if d.oneIn(4) {
			p.annotate("stall-guard", "off")
		}
		s.Pods = append(s.Pods, p)
	}
}
