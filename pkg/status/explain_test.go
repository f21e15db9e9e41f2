package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// A container without a place has one list of reasons, whatever has changed since its rejection.
func TestExplainGivesOneReason(t *testing.T) {
	const head, then = "default/web app (Guaranteed)\n", "no set of NUMA nodes has room:\nnode 0: 8Gi of 16Gi free, 20Gi needed"
	last := &ledger.Rejection{Last: time.Date(2026, 5, 4, 11, 58, 3, 0, time.UTC), Reason: "UnexpectedAdmissionError", Text: then}
	refused := *last
	refused.Refused = true
	lacks := []memorymanager.Candidate{{Nodes: nodeset.Of(0), Why: "4Gi of 16Gi free, 20Gi needed"}}
	for name, test := range map[string]struct {
		pinning   string
		rejection *ledger.Rejection
		now, want string
	}{
		"it runs unpinned": {"not pinned: UnexpectedAdmissionError, confined to node 0", last, then,
			"  not pinned: UnexpectedAdmissionError, confined to node 0, 2026-05-04 11:58:03 UTC:\n" +
				"    no set of NUMA nodes has room:\n    node 0: 8Gi of 16Gi free, 20Gi needed\n" +
				"  placed now, it would be rejected for the same reason\n"},
		"less is free now": {"", &refused, strings.Replace(then, "8Gi", "4Gi", 1),
			"  last rejection, 2026-05-04 11:58:03 UTC (UnexpectedAdmissionError):\n" +
				"    no set of NUMA nodes has room:\n    node 0: 8Gi of 16Gi free, 20Gi needed\n" +
				"  placed now, it would be rejected, too\n  considered now:\n    node 0    4Gi of 16Gi free, 20Gi needed\n"},
		"its resize was refused": {"pinned under restricted", &refused, "",
			"  pinned under restricted\n  last rejection, 2026-05-04 11:58:03 UTC (UnexpectedAdmissionError):\n" +
				"    no set of NUMA nodes has room:\n    node 0: 8Gi of 16Gi free, 20Gi needed\n" +
				"  placed now, it would get:\n  considered now:\n    node 0    4Gi of 16Gi free, 20Gi needed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			d := Explanation{Namespace: "default", Pod: "web", QOSClass: "Guaranteed", Container: "app", Pinning: test.pinning, Rejection: test.rejection,
				Placement: &memorymanager.Explanation{Rejected: test.now, Candidates: lacks}}
			var out strings.Builder
			if err := WriteExplanations(&out, []Explanation{d}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(head+test.want, out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
