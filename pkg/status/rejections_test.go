package status

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

func TestRejectionsOfAPodAreJoined(t *testing.T) {
	began := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	at := func(minute int) time.Time { return began.Add(time.Duration(minute) * time.Minute) }
	view := func(minute int, pod, container string) ledger.Rejection {
		return ledger.Rejection{At: at(minute), Last: at(minute), Count: 1, Namespace: "default", Pod: pod, UID: "uid-" + pod, Container: container,
			Reason: "TopologyAffinityError", Text: fmt.Sprintf("no room at %d", minute), Refused: true}
	}
	changed := func(r ledger.Rejection, change func(*ledger.Rejection)) ledger.Rejection {
		change(&r)
		return r
	}
	brief := func(r ledger.Rejection) string {
		return fmt.Sprintf("%s/%s %d× %d–%d %s %t: %s", r.Pod, r.Container, r.Count, int(r.At.Sub(began).Minutes()), int(r.Last.Sub(began).Minutes()), r.Reason, r.Refused, r.Text)
	}
	for name, test := range map[string]struct {
		views []ledger.Rejection // newest first
		want  []string
	}{
		"none": {},
		"one":  {[]ledger.Rejection{view(1, "web", "app")}, []string{"web/app 1× 1–1 TopologyAffinityError true: no room at 1"}},
		"a create that is tried again and again": {
			[]ledger.Rejection{view(9, "web", "app"), view(5, "web", "app"), view(1, "web", "app")},
			[]string{"web/app 3× 1–9 TopologyAffinityError true: no room at 9"},
		},
		"a resize that is tried again and again": {
			[]ledger.Rejection{changed(view(1, "web", "app"), func(r *ledger.Rejection) { r.Last, r.Count = at(8), 400 }), view(0, "web", "app")},
			[]string{"web/app 401× 0–8 TopologyAffinityError true: no room at 1"},
		},
		"the pods in turn": {
			[]ledger.Rejection{view(9, "web", "app"), view(8, "api", "app"), view(7, "web", "proxy"), view(6, "api", "app"), view(5, "web", "app")},
			[]string{
				"web/app 2× 5–9 TopologyAffinityError true: no room at 9", "web/proxy 1× 7–7 TopologyAffinityError true: no room at 7",
				"api/app 2× 6–8 TopologyAffinityError true: no room at 8",
			},
		},
		"another reason, another outcome, another pod of the name": {
			[]ledger.Rejection{
				view(9, "web", "app"), changed(view(8, "web", "app"), func(r *ledger.Rejection) { r.Reason = "BadAnnotation" }),
				changed(view(7, "web", "app"), func(r *ledger.Rejection) { r.Refused = false }),
				changed(view(6, "web", "app"), func(r *ledger.Rejection) { r.UID = "other" }),
			},
			[]string{
				"web/app 1× 9–9 TopologyAffinityError true: no room at 9", "web/app 1× 8–8 BadAnnotation true: no room at 8",
				"web/app 1× 7–7 TopologyAffinityError false: no room at 7", "web/app 1× 6–6 TopologyAffinityError true: no room at 6",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range rejections(test.views) {
				got = append(got, brief(r))
			}
			if difference := cmp.Diff(test.want, got); difference != "" {
				t.Error(difference)
			}
		})
	}
}
