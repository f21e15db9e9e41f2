package world

import "slices"

// Shrink makes a scenario smaller as long as fails says that the same goes wrong: without pods, then without faults, then without what is
// done to pods and containers. It asks at most so often.
func Shrink(s Scenario, most int, fails func(Scenario) bool) Scenario {
	try := func(smaller Scenario) bool {
		if most--; most < 0 || !fails(smaller) {
			return false
		}
		s = smaller
		return true
	}
	for before := -1; before != weight(s) && most > 0; {
		before = weight(s)
		without(len(s.Pods), func(from, to int) bool {
			t := s
			t.Pods = slices.Concat(s.Pods[:from], s.Pods[to:])
			return len(t.Pods) > 0 && try(t)
		})
		without(len(s.Faults), func(from, to int) bool {
			t := s
			t.Faults = slices.Concat(s.Faults[:from], s.Faults[to:])
			return try(t)
		})
		for i := range s.Pods {
			change := func(change func(p *Pod)) bool {
				t := s
				t.Pods = slices.Clone(s.Pods)
				change(&t.Pods[i])
				return try(t)
			}
			without(len(s.Pods[i].Changes), func(from, to int) bool {
				return change(func(p *Pod) { p.Changes = slices.Concat(p.Changes[:from], p.Changes[to:]) })
			})
			without(len(s.Pods[i].Containers), func(from, to int) bool {
				return to-from < len(s.Pods[i].Containers) &&
					change(func(p *Pod) { p.Containers = slices.Concat(p.Containers[:from], p.Containers[to:]) })
			})
		}
	}
	return s
}

// without takes spans out of n things: half of them, then quarters, down to single ones. The function reports whether a span is gone.
func without(n int, take func(from, to int) bool) {
	for size := max(n/2, 1); n > 0; size /= 2 {
		for from := 0; from < n; {
			to := min(from+size, n)
			if take(from, to) {
				n -= to - from
			} else {
				from = to
			}
		}
		if size <= 1 {
			return
		}
	}
}

// weight is how much happens in a scenario.
func weight(s Scenario) int {
	n := len(s.Faults) + len(s.Pods)
	for _, p := range s.Pods {
		n += len(p.Changes) + len(p.Containers)
	}
	return n
}
