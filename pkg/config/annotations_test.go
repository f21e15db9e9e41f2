package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const ours = ".memory-manager.noderesource.dev"

func parseAnnotations(annotations map[string]string, container string, rules AnnotationRules) (Wishes, []Problem) {
	return ReadAnnotations(annotations).Wishes(container, rules)
}

func all() AnnotationRules { return AnnotationRules{Allowed: annotations()} }

func TestAnnotations(t *testing.T) {
	factor, other, quarter, high, process, whole := 0.7, 0.5, 0.25, uint64(512<<20), uint64(0), uint64(1)
	tests := map[string]struct {
		annotations map[string]string
		want        Wishes
	}{
		"none":              {map[string]string{"kubernetes.io/x": "y"}, Wishes{}},
		"factor":            {map[string]string{"throttling-factor" + ours: "0.7"}, Wishes{QoS: memoryqos.Overrides{Factor: &factor}}},
		"older domain":      {map[string]string{"throttling-factor.memory-manager.nri.io": "0.7"}, Wishes{QoS: memoryqos.Overrides{Factor: &factor}}},
		"newer domain wins": {map[string]string{"throttling-factor.memory-manager.nri.io": "0.5", "throttling-factor" + ours: "0.7"}, Wishes{QoS: memoryqos.Overrides{Factor: &factor}}},
		"pod above bare":    {map[string]string{"throttling-factor" + ours: "0.5", "throttling-factor.memory-manager.nri.io/pod": "0.7"}, Wishes{QoS: memoryqos.Overrides{Factor: &factor}}},
		"container above pod": {map[string]string{"throttling-factor" + ours + "/pod": "0.7", "throttling-factor" + ours: "0.7",
			"throttling-factor.memory-manager.nri.io/container.app": "0.5"}, Wishes{QoS: memoryqos.Overrides{Factor: &other}}},
		"another container": {map[string]string{"throttling-factor" + ours + "/container.db": "0.5", "numa" + ours + "/container.db": "never"}, Wishes{}},
		"cache-room":        {map[string]string{"cache-room" + ours: "0.25"}, Wishes{QoS: memoryqos.Overrides{CacheRoom: &quarter}}},
		"memory-high off":   {map[string]string{"memory-high" + ours: "off"}, Wishes{QoS: memoryqos.Overrides{NoHigh: true}}},
		"oom-group":         {map[string]string{"oom-group" + ours: "process"}, Wishes{QoS: memoryqos.Overrides{OOMGroup: &process}}},
		"oom-group of one": {map[string]string{"oom-group" + ours: "process", "oom-group" + ours + "/container.app": "container"},
			Wishes{QoS: memoryqos.Overrides{OOMGroup: &whole}}},
		"killed first": {map[string]string{"oom-score-adj" + ours: "first"}, Wishes{OOMScoreAdj: new(FirstKilled)}},
		"killed last":  {map[string]string{"oom-score-adj" + ours: "last"}, Wishes{OOMScoreAdj: new(LastKilled)}},
		"killed in an order": {map[string]string{"oom-score-adj" + ours: "-5", "oom-score-adj" + ours + "/container.app": "-500"},
			Wishes{OOMScoreAdj: new(int64(-500))}},
		"memory-high":         {map[string]string{"memory-high" + ours: "512Mi"}, Wishes{QoS: memoryqos.Overrides{High: &high}}},
		"off for the pod":     {map[string]string{"memory-high" + ours: "off", "memory-high" + ours + "/container.app": "512Mi"}, Wishes{QoS: memoryqos.Overrides{High: &high}}},
		"off for a container": {map[string]string{"memory-high" + ours + "/container.app": "off", "memory-high" + ours + "/pod": "512Mi"}, Wishes{QoS: memoryqos.Overrides{NoHigh: true}}},
		"the others": {map[string]string{"reservation" + ours: "low", "numa" + ours: "required", "stall-guard" + ours: "off", "memory-policy" + ours: "prefer-available"},
			Wishes{QoS: memoryqos.Overrides{Reservation: memoryqos.ReserveLow}, NUMA: NUMARequired, StallGuardOff: true, MemoryPolicy: PolicyPreferAvailable}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, problems := parseAnnotations(tc.annotations, "app", all())
			if diff := cmp.Diff(tc.want, got); diff != "" || len(problems) > 0 {
				t.Errorf("problems %v (-want +got):\n%s", problems, diff)
			}
		})
	}
}

func TestBadAnnotationIsToldAsKubernetesWould(t *testing.T) {
	const at = "metadata.annotations["
	tests := map[string]struct{ key, value, want string }{
		"factor 0":                    {"throttling-factor" + ours, "0", at + "throttling-factor" + ours + `]: Invalid value: "0": must be a number greater than 0 and at most 1`},
		"factor NaN":                  {"throttling-factor" + ours, "NaN", at + "throttling-factor" + ours + `]: Invalid value: "NaN": must be a number greater than 0 and at most 1`},
		"factor a text":               {"throttling-factor" + ours, "half", at + "throttling-factor" + ours + `]: Invalid value: "half": must be a number greater than 0 and at most 1`},
		"factor infinite":             {"throttling-factor" + ours, "1e999", at + "throttling-factor" + ours + `]: Invalid value: "1e999": must be a number greater than 0 and at most 1`},
		"factor too low":              {"throttling-factor" + ours, "0.2", at + "throttling-factor" + ours + `]: Invalid value: "0.2": must be at least 0.25, the minimumThrottlingFactor of annotationRules[1] (tenants)`},
		"cache-room large":            {"cache-room" + ours, "0.6", at + "cache-room" + ours + `]: Invalid value: "0.6": must be a number from 0 to 0.5: the share of the limit between memory.high and memory.max`},
		"cache-room no number":        {"cache-room" + ours, "NaN", at + "cache-room" + ours + `]: Invalid value: "NaN": must be a number from 0 to 0.5: the share of the limit between memory.high and memory.max`},
		"high a text":                 {"memory-high" + ours, "much", at + "memory-high" + ours + `]: Invalid value: "much": must be "off" or a quantity: "much" is not a quantity such as 64Mi, 2G or 4096`},
		"high zero":                   {"memory-high" + ours, "0", at + "memory-high" + ours + `]: Invalid value: "0": must be "off" or more than 0`},
		"high negative":               {"memory-high" + ours, "-1Gi", at + "memory-high" + ours + `]: Invalid value: "-1Gi": must be "off" or a quantity: "-1Gi" is negative`},
		"high huge":                   {"memory-high" + ours, "1e999999999", at + "memory-high" + ours + `]: Invalid value: "1e999999999": must be "off" or a quantity: "1e999999999" has an exponent beyond 30`},
		"reservation":                 {"reservation" + ours + "/pod", "max", at + "reservation" + ours + `/pod]: Unsupported value: "max": supported values: "none", "low", "min"`},
		"numa":                        {"numa.memory-manager.nri.io", "always", at + `numa.memory-manager.nri.io]: Unsupported value: "always": supported values: "none", "preferred", "required"`},
		"spread":                      {"numa" + ours, "spread", at + "numa" + ours + `]: Invalid value: "spread": ` + noSpread},
		"oom-group":                   {"oom-group" + ours, "pod", at + "oom-group" + ours + `]: Unsupported value: "pod": supported values: "container", "process"`},
		"the order of the node's own": {"oom-score-adj" + ours, "-998", at + "oom-score-adj" + ours + `]: Invalid value: "-998": must be first, last or a whole number from -997 to 1000`},
		"an order above 1000":         {"oom-score-adj" + ours, "1001", at + "oom-score-adj" + ours + `]: Invalid value: "1001": must be first, last or a whole number from -997 to 1000`},
		"an order with a fraction":    {"oom-score-adj" + ours, "1.5", at + "oom-score-adj" + ours + `]: Invalid value: "1.5": must be first, last or a whole number from -997 to 1000`},
		"no order":                    {"oom-score-adj" + ours, "", at + "oom-score-adj" + ours + `]: Invalid value: "": must be first, last or a whole number from -997 to 1000`},
		"policy":                      {"memory-policy" + ours, "bind", at + "memory-policy" + ours + `]: Unsupported value: "bind": supported values: "none", "prefer-available", "interleave", "weighted-interleave"`},
		"guard":                       {"stall-guard" + ours, "on", at + "stall-guard" + ours + `]: Unsupported value: "on": supported values: "off"`},
		"domain before the slash":     {ours[1:] + "/numa", "none", at + ours[1:] + `/numa]: Invalid value: "none": unknown annotation, did you mean numa` + ours + `?`},
		"misspelt domain":             {"numa.memory-manager.noderesouce.dev", "none", at + `numa.memory-manager.noderesouce.dev]: Invalid value: "none": unknown annotation, did you mean numa` + ours + `?`},
		"misspelt domain and scope":   {"numa.memorymanager.noderesource.dev/pod", "none", at + `numa.memorymanager.noderesource.dev/pod]: Invalid value: "none": unknown annotation, did you mean numa` + ours + `?`},
		"unknown":                     {"nuna" + ours, "none", at + "nuna" + ours + `]: Invalid value: "none": unknown annotation, did you mean numa` + ours + `?`},
		"not allowed":                 {"numa" + ours + "/container.app", "none", at + "numa" + ours + `/container.app]: Forbidden: annotationRules[1] (tenants) does not allow numa`},
		"not allowed by a rule":       {"oom-score-adj" + ours, "last", at + "oom-score-adj" + ours + `]: Forbidden: no rule of annotationRules allows oom-score-adj`},
		"scope":                       {"numa" + ours + "/node", "none", at + "numa" + ours + `/node]: Invalid value: "none": want the key to end in /pod or /container.NAME, or without either`},
		"empty scope":                 {"numa" + ours + "/", "none", at + "numa" + ours + `/]: Invalid value: "none": want the key to end in /pod or /container.NAME, or without either`},
		"no container":                {"numa" + ours + "/container.", "none", at + "numa" + ours + `/container.]: Invalid value: "none": want the key to end in /pod or /container.NAME, or without either`},
		"control characters":          {"numa" + ours, "a\x00\n\x1b[2J", at + "numa" + ours + `]: Unsupported value: "a\x00\n\x1b[2J": supported values: "none", "preferred", "required"`},
		"long value":                  {"numa" + ours, strings.Repeat("x", 1<<20), at + "numa" + ours + `]: Unsupported value: "` + strings.Repeat("x", 80) + `…": supported values: "none", "preferred", "required"`},
		"control in the key":          {"\x00\n" + ours, "none", at + `"\x00\n` + ours + `"]: Invalid value: "none": unknown annotation; want throttling-factor, memory-high, cache-room, reservation, numa, stall-guard, memory-policy, oom-group or oom-score-adj before ` + ours},
		"broken UTF-8 in key":         {"\xff" + ours, "none", at + `"\xff` + ours + `"]: Invalid value: "none": unknown annotation; want throttling-factor, memory-high, cache-room, reservation, numa, stall-guard, memory-policy, oom-group or oom-score-adj before ` + ours},
		"long key":                    {strings.Repeat("k", 500) + ours, "", at + `"` + strings.Repeat("k", 80) + `…"]: Invalid value: "": unknown annotation; want throttling-factor, memory-high, cache-room, reservation, numa, stall-guard, memory-policy, oom-group or oom-score-adj before ` + ours},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rules := all()
			rules.MinimumFactor, rules.Rule = 0.25, "annotationRules[1] (tenants)"
			switch name {
			case "not allowed":
				rules.Allowed = []Annotation{AnnotationMemoryHigh}
			case "not allowed by a rule":
				rules = Default().AnnotationRulesFor(Subject{})
			}
			got, problems := parseAnnotations(map[string]string{tc.key: tc.value}, "app", rules)
			if diff := cmp.Diff(Wishes{}, got); diff != "" {
				t.Errorf("wishes of a bad annotation:\n%s", diff)
			}
			if len(problems) != 1 || problems[0].Annotation != tc.key || !strings.HasPrefix(problems[0].Message, tc.want) {
				t.Errorf("problems = %+v\nwant %s", problems, tc.want)
			}
		})
	}
}

func TestBadAnnotationDoesNotHideAGoodOne(t *testing.T) {
	got, problems := parseAnnotations(map[string]string{"numa" + ours: "required", "numa" + ours + "/container.app": "x"}, "app", all())
	if got.NUMA != NUMARequired || len(problems) != 1 {
		t.Errorf("%+v, %v", got, problems)
	}
}

func TestProblemsAreBoundedAndSorted(t *testing.T) {
	annotations := map[string]string{}
	for i := range 1000 {
		annotations["k"+strings.Repeat("z", i)+ours] = ""
	}
	_, problems := parseAnnotations(annotations, "", all())
	if len(problems) != mostProblems {
		t.Fatalf("%d problems, want %d", len(problems), mostProblems)
	}
	for i := 1; i < len(problems); i++ {
		if problems[i-1].Annotation >= problems[i].Annotation {
			t.Errorf("problems %d and %d are not in order", i-1, i)
		}
	}
}

// TestPodWithoutOursCostsNothing: most pods have none of our annotations.
func TestPodWithoutOursCostsNothing(t *testing.T) {
	annotations := map[string]string{"kubernetes.io/config.source": "api", "memory-manager.nri.io": "x", "a/b.memory-manager.nri.io": "y"}
	rules := all()
	if n := testing.AllocsPerRun(100, func() { parseAnnotations(annotations, "app", rules) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestRulesOfANamespace(t *testing.T) {
	c, err := Files(nil).Parse("c.yaml", []byte(`
annotationRules:
- {namespaces: [kube-system], minimumThrottlingFactor: 0}
- {namespaces: [db, "team-?"], allowedAnnotations: [numa], minimumThrottlingFactor: 0.5}
- {namespaces: ["team-*", app], allowedAnnotations: [memory-high], minimumThrottlingFactor: 0.2}
`))
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]AnnotationRules{
		"default":     {Allowed: annotations()[:len(annotations())-1]}, // without oom-score-adj
		"kube-system": {Rule: "annotationRules[0]"},
		"team-a":      {Allowed: []Annotation{AnnotationNUMA}, MinimumFactor: 0.5, Rule: "annotationRules[1]"},
		"team-blue":   {Allowed: []Annotation{AnnotationMemoryHigh}, MinimumFactor: 0.2, Rule: "annotationRules[2]"},
	} {
		if diff := cmp.Diff(want, c.AnnotationRulesFor(Subject{Namespace: namespace})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", namespace, diff)
		}
	}
	r, err := c.Resolve(fixture(t, "task-page"))
	if err != nil || r.QoS.MinimumFactor != 0 || r.SettingsFor(r.Config.AnnotationRulesFor(Subject{Namespace: "team-a"})).MinimumFactor != 0.5 {
		t.Errorf("%v, minimum factors %v and %v", err, r.QoS.MinimumFactor, r.SettingsFor(r.Config.AnnotationRulesFor(Subject{Namespace: "team-a"})).MinimumFactor)
	}
}
