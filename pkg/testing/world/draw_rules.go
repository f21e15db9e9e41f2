package world

import (
	"fmt"
	"strings"
	"time"
)

// rules gives a third of the scenarios rules on annotations, with defaults by namespace and label, PriorityClasses, and pods that they concern. Some
// of the configurations that take the first one's place have others, or none; half of the scenarios that are not calm get a daemon that starts while the pod API is
// silent.
func (d drawer) rules(s *Scenario) {
	d.Rand = draws(s.Seed, "annotation rules")
	if !d.oneIn(3) {
		return
	}
	s.Config += d.annotationRules()
	for i := range s.Faults {
		if s.Faults[i].Kind == NewConfig && d.IntN(3) > 0 {
			s.Faults[i].Target += d.annotationRules()
		}
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if d.oneIn(2) {
			p.Labels = map[string]string{"tier": pick(d, "database", "web")}
		}
		p.PriorityClass = pick(d, "", "gold", "bronze")
		if d.oneIn(4) && p.Name != ownPod {
			p.annotate("oom-score-adj", pick(d, "first", "last", "-500", "985", "993"))
		}
		if i > 0 && p.Static && p.Name == s.Pods[i-1].Name { // a static pod with another manifest would have another UID
			p.Labels, p.Annotations, p.PriorityClass = s.Pods[i-1].Labels, s.Pods[i-1].Annotations, s.Pods[i-1].PriorityClass
		}
	}
	if at := d.between(time.Minute, d.length); d.oneIn(2) && !d.calm { // requests are estimated from what the kubelet gave containers
		s.Faults = append(s.Faults, Fault{At: d.when(at), Kind: PodAPISilent, Length: Duration(3 * time.Minute)},
			Fault{At: d.when(at + d.between(5*time.Second, time.Minute)), Kind: DaemonKilled, Length: Duration(2 * time.Second)})
	}
}

// annotationRules are one or two rules. The first may match pods that the second would, too.
func (d drawer) annotationRules() string {
	var b strings.Builder
	b.WriteString("annotationRules:\n")
	for range 1 + d.IntN(2) {
		b.WriteString(pick(d, "- namespaces: [\"sh?p\"]\n", "- namespaces: [data, bank]\n", "- labels: {tier: database}\n", "- labels: {tier: w*}\n  namespaces: [\"*\"]\n"))
		fmt.Fprintf(&b, "  allowedAnnotations: [%s]\n", pick(d, "", "oom-score-adj", "oom-score-adj, throttling-factor, numa", "reservation"))
		fmt.Fprintf(&b, "  defaults: {%s}\n", pick(d, "", "reservation: low", `throttling-factor: "0.6"`, `numa: preferred, oom-score-adj: "985"`, "oom-score-adj: first, reservation: none"))
		fmt.Fprintf(&b, "  priorityClasses: {%s}\n", pick(d, "", "gold: last", "gold: -900, bronze: 990"))
	}
	return b.String()
}
