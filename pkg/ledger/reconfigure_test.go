package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// A configuration that does not fit the machine is refused, and the old one stays until a good one comes.
func TestAConfigurationThatDoesNotFit(t *testing.T) {
	l, now := newLedger(t, "topologyManagerPolicy: restricted"), time.Unix(1, 0)
	l.Step(now, RunPod{Pod: Pod{ID: "outside", UID: "outside", CgroupParent: "/system.slice"}})
	l.Step(now, claimed(claimPod("web", ""), "main", claimGi))
	bad := l.Config()
	bad.Nodes = append(slices.Clone(bad.Nodes), bad.Nodes[0])
	const want = "memory manager: check NUMA nodes: NUMA node 0 is there twice"
	effects := l.Step(now.Add(time.Minute), Reconfigure{Config: bad})
	if got := fmt.Sprint(effects.Err); got != want || said(effects, "") != "new configuration refused, the old one stays in force: "+want {
		t.Errorf("%s; %s", got, said(effects, ""))
	}
	condition := func() Condition {
		conditions := l.View().Conditions
		return conditions[slices.IndexFunc(conditions, func(c Condition) bool { return c.Name == ConditionConfig })]
	}
	if c := condition(); c.OK || c.Message != want || !c.Since.Equal(now.Add(time.Minute)) || len(l.Config().Nodes) != 2 {
		t.Errorf("%+v", c)
	}
	good := resolve(t, l, "topologyManagerPolicy: best-effort")
	good.Warnings = []string{"a kubelet would do otherwise"}
	effects = l.Step(now.Add(time.Hour), Reconfigure{Config: good})
	if says := said(effects, ""); effects.Err != nil || says != "a kubelet would do otherwise; configuration in force" || !condition().OK {
		t.Errorf("%v; %s; %+v", effects.Err, says, condition())
	}
	if counters := l.Counters(); counters.Reloads != 1 || counters.BadReloads != 1 {
		t.Errorf("%d reloads, %d refused", counters.Reloads, counters.BadReloads)
	}
	if _, err := New(now, Options{Config: bad}); fmt.Sprint(err) != want {
		t.Errorf("a start with it: %v", err)
	}
}

// Without a Memory Manager nothing is restored, and nothing is lost: the driver keeps the file.
func TestRestoreWithoutAMemoryManager(t *testing.T) {
	l := newLedger(t, "memoryManagerPolicy: None")
	stored := memorymanager.State{Entries: []memorymanager.Entry{{Pod: "web", Container: "main"}}}
	report, err := l.Restore(stored)
	if _, has := l.Allocations(); err != nil || report.Restored != 0 || has {
		t.Errorf("%+v, %v", report, err)
	}
}

// A reload to memoryManagerPolicy None, and one back, leave each container where its memory is.
func TestWithoutAMemoryManagerForAWhile(t *testing.T) {
	l := newLedger(t, "")
	for _, pod := range []string{"b", "a"} { // not the order in which containers are placed
		e := claimed(claimPod(pod, ""), "main", 10*claimGi)
		l.after(e, StartContainer{Pod: e.Pod, Container: e.Container})
	}
	for _, step := range []struct{ yaml, want string }{
		{"memoryManagerPolicy: None", "b on , a on "},
		{"", "b on 0, a on 1"},
	} {
		l.after(Reconfigure{Config: resolve(t, l, step.yaml)})
		var all []string
		for _, p := range l.View().Pods {
			all = append(all, p.Name+" on "+p.Containers[0].Nodes.String())
		}
		if got := strings.Join(all, ", "); got != step.want {
			t.Errorf("%q: %s, want %s", step.yaml, got, step.want)
		}
	}
}
