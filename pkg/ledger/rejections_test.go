package ledger

import (
	"fmt"
	"testing"
	"time"
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
