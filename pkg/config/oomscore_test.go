package config

import "testing"

// TestWhoSetsTheOOMScore has one rule for pods of the namespace a.
func TestWhoSetsTheOOMScore(t *testing.T) {
	const classes, byDefault, allowed = "  priorityClasses: {db: last, batch: 900}\n", "  defaults: {oom-score-adj: first}\n", "  allowedAnnotations: [oom-score-adj]\n"
	for name, tc := range map[string]struct {
		rule, own, class, namespace string
		want                        int64
		from                        string // "": nothing sets one
		problems                    int
	}{
		"nothing":                           {rule: "  allowedAnnotations: []\n", class: "db"},
		"the annotation":                    {rule: allowed, own: "-5", want: -5, from: ByAnnotation},
		"one that is not allowed":           {rule: classes, own: "-5", problems: 1},
		"one that is wrong":                 {rule: allowed, own: "-998", problems: 1},
		"a class":                           {rule: classes, class: "batch", want: 900, from: "PriorityClass batch"},
		"another class":                     {rule: classes, class: "web"},
		"no class":                          {rule: classes},
		"a class in another namespace":      {rule: classes, class: "db", namespace: "b"},
		"the annotation before its class":   {rule: allowed + classes, own: "7", class: "db", want: 7, from: ByAnnotation},
		"its class, not a wrong annotation": {rule: allowed + classes, own: "much", class: "db", want: -997, from: "PriorityClass db", problems: 1},
		"a default":                         {rule: byDefault + classes, class: "web", want: 1000, from: "annotationRules[0] (apps)"},
		"a class before the default":        {rule: byDefault + classes, class: "db", want: -997, from: "PriorityClass db"},
		"the annotation before the default": {rule: allowed + byDefault, own: "7", want: 7, from: ByAnnotation},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Files(nil).Parse("c.yaml", []byte("annotationRules:\n- name: apps\n  namespaces: [a]\n"+tc.rule))
			if err != nil {
				t.Fatal(err)
			}
			if tc.namespace == "" {
				tc.namespace = "a"
			}
			own := map[string]string{}
			if tc.own != "" {
				own["oom-score-adj"+ours] = tc.own
			}
			rules := c.AnnotationRulesFor(Subject{Namespace: tc.namespace})
			wishes, problems := parseAnnotations(own, "app", rules)
			score, from := rules.OOMScoreAdj(wishes, tc.class)
			if from != tc.from || (score == nil) != (from == "") || score != nil && *score != tc.want || len(problems) != tc.problems {
				t.Errorf("got %v from %q with the problems %v, want %d from %q", score, from, problems, tc.want, tc.from)
			}
		})
	}
}
