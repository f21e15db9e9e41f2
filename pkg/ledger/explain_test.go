package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestWhatIsExplained has where the memory manager would place default/web main, and the rejection that still matters.
func TestWhatIsExplained(t *testing.T) {
	const gi = claimGi
	const restricted, single = "topologyManagerPolicy: restricted", "topologyManagerPolicy: single-numa-node"
	web, burstable := claimPod("web", ""), claimPod("web", "burstable/")
	large := claimed(claimPod("large", ""), "main", 20*gi)
	create := claimed(web, "main", 4*gi)
	more := int64(40 * gi)
	budget := 6 * gi
	asPod := create
	asPod.PodInfo = pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{
		Ref: web.Ref(), Class: memoryqos.Guaranteed, PodRequest: &budget, PodLimit: &budget,
		Containers: []pods.Container{{Name: "main", Request: 4 * gi, Limit: 4 * gi, Guaranteed: true}, {Name: "side"}},
	}}
	wrong := claimed(annotated(web, "numa", "near"), "main", gi)
	var others []Event // whose rejections are kept instead
	for i := range RejectionsKept {
		others = append(others, claimed(claimPod(fmt.Sprint("other", i), ""), "main", 40*gi))
	}
	for name, test := range map[string]struct {
		yaml                string
		events              []Event
		placement, rejected string
	}{
		"placed": {restricted, []Event{create}, "0, 4Gi of memory", ""},
		"unplaced": {single, []Event{claimed(web, "main", 20*gi)},
			"only nodes 0-1 together have room, not one by itself", "TopologyAffinityError"},
		"unpinned": {single + "\nonUnsatisfiable: Unpinned", []Event{claimed(web, "main", 20*gi)},
			"only nodes 0-1 together have room, not one by itself", "TopologyAffinityError"},
		"unpinned, and many others since": {single + "\nonUnsatisfiable: Unpinned", append([]Event{claimed(web, "main", 20*gi)}, others...),
			"only nodes 0-1 together have room, not one by itself", "TopologyAffinityError"},
		"refused, and many others since": {single + "\nonBadAnnotation: Reject", append([]Event{wrong}, others...), "0, 1Gi of memory", ""},
		"refused, and unpinned at the next try": {single + "\nonBadAnnotation: Reject", []Event{wrong,
			Reconfigure{Config: resolve(t, newLedger(t, ""), "memoryManagerPolicy: None")}, create}, "", ""},
		"placed at the next try": {restricted, []Event{large, claimed(web, "main", 12*gi), EndPod{Pod: claimPod("large", ""), Gone: true}, create},
			"0, 4Gi of memory", ""},
		"a resize that is refused": {single, []Event{create, UpdateContainer{Pod: web, Container: create.Container, To: Resources{MemoryLimit: &more}}}, "0, 4Gi of memory", "ResizeInfeasible"},
		"never pinned":             {single, []Event{claimed(burstable, "main", 4*gi)}, "", ""},
		"given up":                 {single, []Event{claimed(burstable, "main", 4*gi), AbandonContainer{ID: "web-main"}}, "", ""},
		"a wrong annotation":       {single + "\nonBadAnnotation: Reject", []Event{wrong}, "0, 1Gi of memory", "BadAnnotation"},
		"a right annotation": {single + "\nonBadAnnotation: Reject", []Event{claimed(annotated(web, "numa", "required"), "main", gi)},
			"0, 1Gi of memory", ""},
		"a pod that is placed whole": {restricted + "\ntopologyManagerScope: pod\npodLevelResourceManagers: true", []Event{asPod},
			"0, 4Gi of memory", ""},
		"a pod that is not placed": {single + "\ntopologyManagerScope: pod\npodLevelResourceManagers: true", []Event{claimed(claimPod("a", ""), "main", 10*gi),
			claimed(claimPod("b", ""), "main", 10*gi), asPod},
			"nodes 0-1 together have room, but the policy admits one node", "UnexpectedAdmissionError"},
		"a container with a claim": {"dra: {enabled: true}", []Event{PrepareClaim{claimOf("a", []string{"web"}, on(1, gi))}, claimed(web, "main", gi, claims.Ref{UID: "uid-a"})}, "", ""},
		"a claim that is not prepared": {"dra: {enabled: true}", []Event{claimed(web, "main", gi, claims.Ref{UID: "uid-a"})},
			"", "ClaimNotPrepared"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.yaml)
			l.after(test.events...)
			answers, err := l.Explain("default/web", "main")
			if err != nil {
				t.Fatal(err)
			}
			explained := slices.Collect(answers)
			if len(explained) != 1 {
				t.Fatalf("%v", explained)
			}
			placement, rejected := "", ""
			if p := explained[0].Placement; p != nil && p.Rejected != "" { // "policy P, scope S: cause; relief:\nnode 0: …"
				cause, _, _ := strings.Cut(p.Rejected, "\n")
				_, cause, _ = strings.Cut(strings.TrimSuffix(cause, ":"), ": ")
				placement, _, _ = strings.Cut(cause, "; ")
			} else if p != nil {
				placement = p.Nodes.String()
				for _, b := range p.Blocks {
					placement += ", " + memorymanager.Request{{Type: b.Type, Bytes: b.Size}}.String()
				}
			}
			if r := explained[0].Rejection; r != nil {
				rejected = r.Reason
			}
			if placement != test.placement || rejected != test.rejected {
				t.Errorf("placement %q, want %q; rejection %q, want %q", placement, test.placement, rejected, test.rejected)
			}
		})
	}
}
