package cases

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

var chosenBy = regexp.MustCompile(`chosen by: +its oom_score_adj 1000 by annotation`)

// TestOOMKillTakesWhomPodsChoose fills the memory of all pods four times, 31 times with FULL=1. In the kubelet's order the kernel kills the Burstable pod that grows,
// and not the Guaranteed one beside it, which has a third of its memory. In that of their annotations it is the other way round each
// further time.
func TestOOMKillTakesWhomPodsChoose(t *testing.T) {
	k := criOf(t)
	p := killsPlugin(t, "annotationRules: [{namespaces: ['*'], allowedAnnotations: [oom-group, oom-score-adj]}]")
	rounds := 4
	if k.Plan.Full {
		rounds = 31
	}
	for i := range rounds {
		annotated := i > 0
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			c := kill{name: fmt.Sprint("grower-", i), request: 8 * MiB, limit: 128 * MiB, args: []string{fmt.Sprint("grow=", 44*MiB)},
				beside: 128 * MiB, instead: touching(16 * MiB), apart: true}
			grower, beside := c.pods()
			dies, container, lives, scores := grower, "app", beside, [2]string{"", "-997"}
			if annotated {
				grower.Annotations, beside.Annotations = killedIn("last"), killedIn("first")
				dies, container, lives, scores = beside, "beside", grower, [2]string{"-997", "1000"}
			}
			run(t, k, grower)
			run(t, k, beside)
			said(t, k, beside, "beside", "done "+c.instead[0])
			got := [2]string{oomScoreAdj(t, k, grower, "app"), oomScoreAdj(t, k, beside, "beside")}
			if t.Logf("oom_score_adj: %v", got); annotated && got != scores || got[1] != scores[1] {
				t.Errorf("oom_score_adj is %v, want %v", got, scores)
			}
			limitKubepods(36*MiB)(t, k, grower)
			touchFile(t, k.Control(grower), "go")
			if _, err := k.WaitExit(t.Context(), dies, container); err != nil {
				t.Fatal(err)
			}
			if annotated {
				said(t, k, grower, "app", "done "+c.args[0])
			}
			var out string
			eventually(t, "there is a verdict", func() string {
				if out, _ = p.ask("oom", dies.UID); len(p.verdicts(t, dies)) == 0 {
					return out
				}
				return ""
			})
			if v := p.verdicts(t, dies)[0]; v.Level != "parent" || chosenBy.MatchString(out) != annotated {
				t.Errorf("the verdict is\n%s", out)
			}
			if kills := event(k.Dir(lives), "memory.events", "oom_kill"); kills > 0 {
				t.Errorf("%d processes of %s were killed, too", kills, lives.Name)
			}
			for _, pod := range []*kubelet.Pod{grower, beside} {
				if err := k.Remove(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// killedIn are annotations of a pod that is killed first or last.
func killedIn(order string) map[string]string {
	return map[string]string{"oom-score-adj.memory-manager.noderesource.dev": order}
}
