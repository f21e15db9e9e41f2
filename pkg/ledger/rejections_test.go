package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
)

// A tenant's refused resizes, which the kubelet tries again each second, leave the rejections of other namespaces in the view.
func TestRefusedResizesLeaveOthersInTheView(t *testing.T) {
	l := newLedger(t, "topologyManagerPolicy: single-numa-node")
	greedy, victim := claimPod("greedy", ""), claimPod("victim", "")
	victim.Namespace = "bank"
	more := int64(40 * claimGi)
	var resizes []Event
	for i := range RejectionsKept + 1 {
		create := claimed(greedy, fmt.Sprint("c", i), 1<<20)
		l.Step(time.Unix(1, 0), create)
		resizes = append(resizes, UpdateContainer{Pod: greedy, Container: create.Container, To: Resources{MemoryLimit: &more}})
	}
	for second := range 3 {
		if second == 1 {
			if e := l.Step(time.Unix(100, 0), claimed(victim, "main", 40*claimGi)); e.Err == nil {
				t.Fatal("it was not refused")
			}
		}
		for _, resize := range resizes {
			if e := l.Step(time.Unix(int64(100+second), 0), resize); e.Err == nil {
				t.Fatal("a resize was not refused")
			}
		}
	}
	rejections := l.View().Rejections
	for _, r := range rejections {
		if r.Pod == "victim" {
			return
		}
	}
	t.Errorf("%d rejections of pod greedy and none of pod victim, which was refused one second ago", len(rejections))
}

// A container that got its place is in the view's rejections no more, also when it has ended.
func TestAContainerThatWasPlacedIsNoLongerRejected(t *testing.T) {
	refused, large := int64(40*claimGi), int64(8*claimGi)
	other, victim := claimPod("other", ""), claimPod("victim", "")
	one, two, main, init := claimed(other, "one", 9*claimGi), claimed(other, "two", 9*claimGi), claimed(victim, "main", 9*claimGi), claimed(victim, "init", claimGi, claims.Ref{UID: "uid-a"})
	running := main.Container
	running.State = Running
	for name, test := range map[string]struct{ rejected, placed []Event }{
		"after another pod has ended": {
			[]Event{one, two, main, main}, []Event{EndPod{Pod: other, Gone: true}, main},
		},
		"once its claim is prepared": {
			[]Event{init}, []Event{PrepareClaim{claimOf("a", []string{"victim"}, on(0, claimGi))}, init},
		},
		"a smaller resize": {
			[]Event{claimed(victim, "main", claimGi), UpdateContainer{Pod: victim, Container: main.Container, To: Resources{MemoryLimit: &refused}}},
			[]Event{UpdateContainer{Pod: victim, Container: main.Container, To: Resources{MemoryLimit: &large}}},
		},
		"a resize, since nothing is placed": {
			[]Event{claimed(victim, "main", claimGi), UpdateContainer{Pod: victim, Container: main.Container, To: Resources{MemoryLimit: &refused}}},
			[]Event{reconfigured(t, "profile: QoS"), UpdateContainer{Pod: victim, Container: main.Container, To: Resources{MemoryLimit: &refused}}},
		},
		"that was created without an answer": {
			[]Event{one, two, main},
			[]Event{EndPod{Pod: other, Gone: true}, Synchronize{Pods: []Pod{victim}, Containers: []Container{running}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "topologyManagerPolicy: single-numa-node\ndra: {enabled: true, shares: [{limits: {memory: 10%}}]}")
			runs(t, l)
			if l.after(test.rejected...); len(l.View().Rejections) == 0 {
				t.Fatal("it is not rejected")
			}
			l.after(test.placed...)
			if left := l.View().Rejections; len(left) > 0 {
				t.Errorf("placed, it is still rejected: %+v", left)
			}
			for _, c := range l.pods["victim"].containers {
				l.after(EndContainer{ID: c.ID})
			}
			if left := l.View().Rejections; len(left) > 0 {
				t.Errorf("ended, it is rejected: %+v", left)
			}
		})
	}
}

// Pods without a UID differ by their names.
func TestAPlacedContainerLeavesTheRejectionsOfOtherPods(t *testing.T) {
	l := newLedger(t, "topologyManagerPolicy: single-numa-node")
	runs(t, l)
	refused, placed := claimPod("refused", ""), claimPod("placed", "")
	refused.UID, placed.UID = "", ""
	l.after(claimed(refused, "main", 40*claimGi), claimed(placed, "main", claimGi))
	if left := l.View().Rejections; len(left) != 1 || left[0].Pod != "refused" {
		t.Errorf("rejections %+v, want the one of pod refused", left)
	}
}

// A static pod whose manifest has a UID, and then another name, leaves no rejection of its old name behind.
func TestARenamedPodIsNoLongerRejected(t *testing.T) {
	l := newLedger(t, "topologyManagerPolicy: single-numa-node")
	runs(t, l)
	old := claimPod("web", "")
	renamed := old
	renamed.Name, renamed.ID = "web2", "sandbox-web2"
	l.after(claimed(old, "main", 40*claimGi), claimed(renamed, "main", claimGi))
	if left := l.View().Rejections; len(left) > 0 {
		t.Errorf("rejections %+v, want none", left)
	}
}

// A dry run says what a container would be rejected for until it has a place.
func TestADryRunKeepsTheRejectionOfABadAnnotation(t *testing.T) {
	l := newLedger(t, "profile: Observe\nonBadAnnotation: Reject")
	runs(t, l)
	web := annotated(claimPod("web", ""), "numa", "sometimes")
	main := claimed(web, "main", claimGi)
	l.after(main, StartContainer{Pod: web, Container: main.Container}, PodFacts{UID: web.Key(), PodInfo: specOf(web, "main")})
	if left := l.View().Rejections; len(left) != 1 || left[0].Reason != BadAnnotation.String() {
		t.Errorf("rejections %+v, want BadAnnotation", left)
	}
}
