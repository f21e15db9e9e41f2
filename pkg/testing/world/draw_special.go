package world

import (
	"math/rand/v2"
	"time"
)

// special adds what is not on every node: to a third of the scenarios the daemon's own pod, to a third a pod whose children are killed again and
// again, and to a third a while in which the runtime serves the kubelet without plugins. It has draws of its own, so that the others stay.
func (d drawer) special(s *Scenario) {
	d.Rand = rand.New(rand.NewPCG(s.Seed, 2))
	pod := func(p Pod, c Container) {
		c.Kind = "app"
		p.Containers = []Container{c}
		s.Pods = append(s.Pods, p)
	}
	switch s.Seed % 3 {
	case 0:
		pod(Pod{Name: ownPod, Namespace: "kube-system", Class: "Burstable", At: d.when(time.Second)},
			Container{Name: "daemon", Request: 64 * mi, Limit: 128 * mi, Lives: []Program{{Heap: 40 * mi, Rate: 4 * mi, Daemon: true}}})
	case 1:
		pod(Pod{Name: "loop", Namespace: "data", Class: "Guaranteed", At: d.when(d.between(2*time.Minute, d.length/2))},
			Container{Name: "app", Request: 64 * mi, Limit: 64 * mi, Lives: []Program{{Heap: gi, Rate: 8 * mi, Forks: true}}})
	case 2:
		if len(s.Faults) > 0 {
			s.Faults = append(s.Faults, Fault{At: d.when(d.between(time.Minute, d.length)), Kind: NRIAway, Length: Duration(d.between(time.Second, 3*time.Minute))})
		}
	}
}
