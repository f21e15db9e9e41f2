package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDefaultsOfTheFirstRuleThatMatches has pods, and what a rule gives their container app beside their own annotations.
func TestDefaultsOfTheFirstRuleThatMatches(t *testing.T) {
	c, err := Files(nil).Parse("c.yaml", []byte(`
annotationRules:
- name: databases
  labels: {app: "postgres*", tier: db}
  allowedAnnotations: [reservation, throttling-factor, memory-high]
  defaults: {reservation: min, numa: required, stall-guard: off, cache-room: 0.1, oom-group: container}
- namespaces: ["batch-*", jobs]
  labels: {restarts: "*"}
  allowedAnnotations: [throttling-factor, memory-high]
  defaults: {memory-high: 900Mi, throttling-factor: "0.6", memory-policy: interleave}
- {namespaces: [jobs], defaults: {numa: none}}
- {namespaces: [ci], priorityClasses: {batch: first}, defaults: {numa: none, oom-score-adj: 100}}
`))
	if err != nil {
		t.Fatal(err)
	}
	database, batch := map[string]string{"app": "postgres-14", "tier": "db", "x": "y"}, map[string]string{"restarts": ""}
	const databases = "annotationRules[0] (databases) stands for the annotations "
	for name, tc := range map[string]struct {
		pod      Subject
		own      string // annotations of the pod, as name=value
		want     func(Wishes) bool
		sets     string
		problems int
	}{
		"no rule": {Subject{Namespace: "a"}, "", func(w Wishes) bool { return cmp.Equal(w, Wishes{}) }, "", 0},
		"labels": {Subject{"a", database}, "", func(w Wishes) bool {
			return w.QoS.Reservation == "min" && w.NUMA == NUMARequired && w.StallGuardOff && *w.QoS.CacheRoom == 0.1 && *w.QoS.OOMGroup == 1
		}, databases + "cache-room: 0.1, numa: required, oom-group: container, reservation: min, stall-guard: off", 0},
		"a label is missing":  {Subject{"a", map[string]string{"app": "postgres"}}, "", func(w Wishes) bool { return w.NUMA == "" }, "", 0},
		"another label value": {Subject{"a", map[string]string{"app": "web", "tier": "db"}}, "", func(w Wishes) bool { return w.NUMA == "" }, "", 0},
		"its own annotation":  {Subject{"a", database}, "reservation=low", func(w Wishes) bool { return w.QoS.Reservation == "low" }, databases + "cache-room: 0.1, numa: required, oom-group: container, stall-guard: off", 0},
		"one that is not allowed": {Subject{"a", database}, "numa=none", func(w Wishes) bool { return w.NUMA == NUMARequired },
			databases + "cache-room: 0.1, numa: required, oom-group: container, reservation: min, stall-guard: off", 1},
		"one that is wrong": {Subject{"a", database}, "reservation=much", func(w Wishes) bool { return w.QoS.Reservation == "min" },
			databases + "cache-room: 0.1, numa: required, oom-group: container, reservation: min, stall-guard: off", 1},
		"namespace and label": {Subject{"batch-1", batch}, "", func(w Wishes) bool { return *w.QoS.High == 900<<20 && *w.QoS.Factor == 0.6 },
			"annotationRules[1] stands for the annotations memory-high: 900Mi, memory-policy: interleave, throttling-factor: 0.6", 0},
		"a factor of its own has no memory.high of a rule": {Subject{"jobs", batch}, "throttling-factor=0.8", func(w Wishes) bool { return w.QoS.High == nil && *w.QoS.Factor == 0.8 },
			"annotationRules[1] stands for the annotations memory-policy: interleave", 0},
		"the next rule":         {Subject{"jobs", nil}, "", func(w Wishes) bool { return w.NUMA == NUMANone }, "annotationRules[2] stands for the annotations numa: none", 0},
		"another PriorityClass": {Subject{"ci", nil}, "", func(w Wishes) bool { return *w.OOMScoreAdj == 100 }, "annotationRules[3] stands for the annotations numa: none, oom-score-adj: 100", 0},
	} {
		t.Run(name, func(t *testing.T) {
			own := map[string]string{}
			if key, value, has := strings.Cut(tc.own, "="); has {
				own[key+ours] = value
			}
			rules := c.AnnotationRulesFor(tc.pod)
			wishes, problems := parseAnnotations(own, "app", rules)
			if !tc.want(wishes) || len(problems) != tc.problems {
				t.Errorf("%+v, %v", wishes, problems)
			}
			if got := rules.Sets(wishes, "web"); got != tc.sets {
				t.Errorf("got  %s\nwant %s", got, tc.sets)
			}
			withoutScore := strings.TrimSuffix(tc.sets, ", oom-score-adj: 100")
			if got := rules.Sets(wishes, "batch"); got != withoutScore {
				t.Errorf("of a PriorityClass with a value: got  %s\nwant %s", got, withoutScore)
			}
		})
	}
}
