package ledger

import (
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestOOMScoreAfterAReload: of a running container's oom_score_adj the same is said after a reload as after a restart with that configuration.
func TestOOMScoreAfterAReload(t *testing.T) {
	const rule = "annotationRules: [{namespaces: ['*'], defaults: {oom-score-adj: last}}]"
	const classes = "annotationRules: [{namespaces: ['*'], priorityClasses: {db: last}}]"
	const unknown = "no pod API had reported its pod's PriorityClass when it was created"
	const last = "oom_score_adj -997 by annotationRules[0]: "
	for name, test := range map[string]struct {
		before, after, class string
		old                  bool // a runtime that applies none
		want                 string
		forgotten            bool // by a restart
	}{
		"a new rule":        {after: rule, want: last + "it was created without an answer of the plugin, or under another configuration"},
		"no rule any more":  {before: "profile: Observe\n" + rule, after: "profile: Observe"},
		"written from now":  {before: "profile: Observe\n" + rule, after: rule, want: last + "it was created without an answer of the plugin, or under another configuration"},
		"nothing written":   {before: "profile: Observe\n" + rule, after: "profile: Observe\n" + rule, want: last + "nothing is written"},
		"profile NUMA":      {after: "profile: NUMA\n" + rule, want: last + "the profile is NUMA"},
		"an old runtime":    {before: rule, after: rule, old: true, want: last + "containerd v1.7.20 applies none"},
		"another class":     {after: classes, class: "web"},
		"a class":           {after: classes, class: "db", want: "oom_score_adj -997 by PriorityClass db: it was created without an answer of the plugin, or under another configuration"},
		"a class not known": {after: classes},
		"known neither now": {before: classes, after: classes, want: unknown, forgotten: true},
		"it has the rule's": {before: rule, after: "profile: NUMA\n" + rule},
	} {
		t.Run(name, func(t *testing.T) {
			create := claimed(claimPod("web", "burstable/"), "main", claimGi)
			if test.class != "" {
				create.PodInfo = pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: create.Pod.Ref(), Class: memoryqos.Burstable, PriorityClass: test.class}}
			}
			start := func(yaml string) *Ledger {
				l := newLedgerOn(t, threeNodes, yaml)
				l.state.Runtime.OOMScores, l.state.Runtime.Name, l.state.Runtime.Version = !test.old, "containerd", "v1.7.20"
				return l
			}
			said := func(l *Ledger) string { return l.View().Pods[0].Containers[0].NoOOMScore }
			l := start(test.before)
			l.after(create, StartContainer{Pod: create.Pod, Container: create.Container}, Reconfigure{Config: resolve(t, l, test.after)})
			if got := said(l); got != test.want {
				t.Errorf("after a reload %q, want %q", got, test.want)
			}
			again := start(test.after)
			create.Container.State, create.Container.OOMScore = Running, l.View().Pods[0].Containers[0].OOMScore
			found := Synchronize{Pods: []Pod{create.Pod}, Containers: []Container{create.Container}}
			found.PodInfos = map[string]pods.Answer{create.Pod.Key(): create.PodInfo}
			again.Step(time.Unix(1, 0), found)
			if got := said(again); got != test.want && !(test.forgotten && got == "") {
				t.Errorf("after a restart %q, want %q", got, test.want)
			}
		})
	}
}
