package world

import (
	"slices"
	"strings"
	"time"
)

// claimsOff has claims be turned off on a third of the nodes that have them: as docs/dra.md has it, with a restart once the pods with claims have
// ended, or while these run. These cannot end then, so that claims are turned on again.
func (d drawer) claimsOff(s *Scenario) {
	d.Rand = draws(s.Seed, "claims are turned off")
	at := strings.Index(s.Config, "dra: {")
	if at < 0 || !d.oneIn(3) {
		return
	}
	on, others := s.Config, s.Config[:at]
	off := others + "dra: {enabled: false}\n"
	last := slices.MaxFunc(s.Faults, func(a, b Fault) int { return int(a.At - b.At) })
	next := max(d.between(2*time.Minute, d.length/2), min(time.Duration(last.At)+time.Second, d.length*2/3))
	first := d.oneIn(2)
	s.Faults = slices.DeleteFunc(s.Faults, func(f Fault) bool {
		ends := f.Kind == NewConfig || first && (f.Kind == DaemonKilled || f.Kind == DaemonEnds || f.Kind == DaemonReplaced) // which would be the restart, and too early
		return ends && time.Duration(f.At) > next
	})
	then := func(kind, config string, most time.Duration) {
		s.Faults = append(s.Faults, Fault{At: d.when(next), Kind: kind, Target: config, Length: Duration(d.between(time.Second, 20*time.Second))})
		next += d.between(time.Second, most)
	}
	then(NewConfig, off, 2*time.Minute)
	if first {
		then(ClaimedPodsDeleted, "", time.Second)
	}
	then(pick(d, DaemonKilled, DaemonEnds), "", 3*time.Minute)
	if !first || d.oneIn(2) {
		then(NewConfig, on, 20*time.Second)
		then(pick(d, DaemonKilled, DaemonEnds), "", time.Second)
	}
}
