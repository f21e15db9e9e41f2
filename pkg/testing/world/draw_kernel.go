package world

import "time"

// kernel adds what kernels differ in beyond their versions, and what goes wrong in them. It has draws of its own, so that the others stay.
func (d drawer) kernel(s *Scenario) {
	d.Rand = draws(s.Seed, "kernel")
	if s.Machine.Kernel == "6.12.0" && d.oneIn(2) {
		s.Machine.Kernel = "6.12.95"
	}
	for _, p := range s.Pods {
		for _, c := range p.Containers {
			for i := range c.Lives {
				c.Lives[i].Fresh = c.Lives[i].Cache > 0 && !c.Lives[i].Dirty && d.oneIn(4)
			}
		}
	}
	for _, kind := range []string{LateAnswers, SlowReclaim} {
		if d.oneIn(4) {
			s.Faults = append(s.Faults, Fault{At: d.when(d.between(10*time.Second, d.length)), Kind: kind, Length: Duration(d.between(time.Second, 4*time.Minute)), Draw: d.Uint64()})
		}
	}
}
