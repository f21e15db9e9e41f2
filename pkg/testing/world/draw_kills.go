package world

import (
	"slices"
	"strings"
	"time"
)

// ending has the daemon of a third of the scenarios that are not calm end right after a kill, whose verdict waits for what the kernel counts next.
func (d drawer) ending(s *Scenario) {
	d.Rand = draws(s.Seed, "kills before the end")
	if d.calm || !d.oneIn(3) {
		return
	}
	at := d.between(time.Minute, d.length/2).Truncate(time.Second)
	s.Pods = append(s.Pods, Pod{Name: "dies", Namespace: "data", Class: "Guaranteed", At: d.when(at - 12*time.Second), Containers: []Container{{Name: "app", Kind: "app",
		Request: 64 * mi, Limit: 64 * mi, Lives: []Program{{Heap: gi, Rate: 64 * mi, Forks: true, Exit: Duration(24 * time.Second)}, {Heap: 8 * mi}}}}})
	for range 2 { // memory is taken at whole seconds
		s.Faults = append(s.Faults, Fault{At: d.when(at + d.between(0, 250*time.Millisecond)), Kind: pick(d, DaemonEnds, DaemonKilled), Length: Duration(d.between(time.Second, 3*time.Second))})
		at += 6 * time.Second
	}
}

// grouped has a kill end whole containers on a third of the nodes, and every third pod of half of the scenarios say what a kill ends.
func (d drawer) grouped(s *Scenario) {
	s.GroupKills = draws(s.Seed, "the kubelet's kills").IntN(3) == 0
	d.Rand = draws(s.Seed, "what a kill ends")
	if s.hasRules() || d.oneIn(2) {
		return
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if again := i > 0 && p.Name == s.Pods[i-1].Name; again { // with another manifest it would have another UID
			p.Annotations = s.Pods[i-1].Annotations
		} else if d.oneIn(3) {
			p.annotate("oom-group", pick(d, "container", "process"))
		}
	}
}

// hasRules reports whether one of the configurations has rules on annotations.
func (s Scenario) hasRules() bool {
	return strings.Contains(s.Config, "annotationRules") || slices.ContainsFunc(s.Faults, func(f Fault) bool { return strings.Contains(f.Target, "annotationRules") })
}
