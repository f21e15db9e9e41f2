package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// placed is where a container is and why, and what of its limit could not be allocated; or why it is not placed.
func placed(l *Ledger, effects Effects, pod, name string) string {
	if effects.Err != nil {
		for _, r := range l.View().Rejections {
			return r.Reason + ": " + r.Text
		}
		return effects.Err.Error()
	}
	for _, p := range l.View().Pods {
		for _, c := range p.Containers {
			if p.Name == pod && c.Name == name {
				text := fmt.Sprintf("%s: %s", c.Nodes, c.Pinning)
				if len(c.PendingResize) > 0 {
					text += ", short of " + c.PendingResize.String()
				}
				return text
			}
		}
	}
	return "not there"
}

// TestWhereAContainerIsPlaced looks at default/web main after the last event. Every node has 15.5Gi for pods.
func TestWhereAContainerIsPlaced(t *testing.T) {
	const gi = claimGi
	const bestEffort, restricted, single = "topologyManagerPolicy: best-effort", "topologyManagerPolicy: restricted", "topologyManagerPolicy: single-numa-node"
	web := claimPod("web", "")
	required := annotated(claimPod("web", ""), "numa", "required")
	other := func(name string, limit uint64) Event { return claimed(claimPod(name, ""), "main", limit) }
	withCPUs := func(pod Pod, id, cpus string, limit uint64) CreateContainer {
		e := claimed(pod, "main", limit)
		count := uint64(4 * 1024)
		e.Container.ID, e.Container.Resources.CPUs, e.Container.Resources.CPUShares = id, cpus, &count
		return e
	}
	guaranteed := pods.Container{Name: "main", Request: 10 * gi, Limit: 10 * gi, Guaranteed: true}
	known := func(e CreateContainer, containers ...pods.Container) CreateContainer {
		e.PodInfo = pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: e.Pod.Ref(), Class: memoryqos.Guaranteed, Containers: containers}}
		return e
	}
	for name, test := range map[string]struct {
		yaml   string
		events []Event
		want   string
	}{
		"under the policy": {bestEffort, []Event{claimed(web, "main", gi)}, "0: pinned under best-effort"},
		"on two nodes":     {restricted, []Event{claimed(web, "main", 20*gi)}, "0-1: pinned under restricted"},
		"near its CPUs":    {restricted, []Event{withCPUs(web, "1", "8-11", gi)}, "1: pinned under restricted"},

		"required, and fewer nodes would do": {bestEffort, []Event{other("large", 20*gi), claimed(required, "main", 4*gi)},
			"NotPreferred: policy best-effort, scope container: the pod's annotation numa is required: it could only have nodes 0-1, which are more than it needs: " +
				"node 1 has room, but only a container that gets all of nodes 0-1 may join the containers there:\n" +
				"node 0 (group 0-1): 0 of 15.5Gi free, 4Gi needed\nnode 1 (group 0-1): 11Gi of 15.5Gi free, 4Gi needed"},
		"nothing stays of it": {bestEffort, []Event{other("large", 20*gi), claimed(required, "main", 4*gi), EndPod{Pod: claimPod("large", ""), Gone: true},
			claimed(required, "main", 4*gi)}, "0: pinned under best-effort"},
		"not required": {bestEffort, []Event{other("large", 20*gi), claimed(web, "main", 4*gi)}, "0-1: pinned under best-effort"},
		"required, and its CPUs have moved": {bestEffort, []Event{withCPUs(required, "1", "0-3", gi), EndContainer{ID: "1"}, withCPUs(required, "2", "8-11", gi)},
			"0: pinned under best-effort"},

		"other CPUs at its next start": {restricted, []Event{withCPUs(web, "1", "0-3", gi), EndContainer{ID: "1"}, withCPUs(web, "2", "8-11", gi)},
			"1: pinned under restricted"},
		"other CPUs, and no room there": {restricted, []Event{withCPUs(web, "1", "0-3", 4*gi), EndContainer{ID: "1"}, other("neighbor", 12*gi), withCPUs(web, "2", "8-11", 4*gi)},
			"0: pinned under restricted"},
		"another limit at its next start": {restricted, []Event{claimed(web, "main", gi), EndContainer{ID: "web-main"}, other("neighbor", 12*gi), claimed(web, "main", 14*gi)},
			"1: pinned under restricted"},
		"another limit, and no room for it": {restricted, []Event{claimed(web, "main", gi), EndContainer{ID: "web-main"}, other("neighbor", 4*gi), claimed(web, "main", 28*gi)},
			"0-1: pinned under restricted, short of 16.5Gi of memory"},
		"its pod does not fit one node (scope pod)": {single + "\ntopologyManagerScope: pod", []Event{known(claimed(web, "main", 10*gi),
			pods.Container{Name: "main", Request: 10 * gi, Limit: 10 * gi}, pods.Container{Name: "side", Request: 10 * gi, Limit: 10 * gi})},
			`TopologyAffinityError: the pod's containers together, policy single-numa-node, scope pod: only nodes 0-1 together have room, not one by itself:
node 0: 15.5Gi of 15.5Gi free, 20Gi needed
node 1: 15.5Gi of 15.5Gi free, 20Gi needed`},
		"its next attempt finds room (scope pod)": {bestEffort + "\nonConflict: Kubelet\ntopologyManagerScope: pod", []Event{
			other("large", 12*gi), other("neighbor", 12*gi), known(claimed(web, "main", 10*gi), guaranteed), EndPod{Pod: claimPod("neighbor", ""), Gone: true},
			known(claimed(web, "main", 10*gi), guaranteed)}, "1: pinned under best-effort"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.yaml)
			if got := placed(l, l.after(test.events...), "web", "main"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// Who runs the node is told which container is in the way; the pod's message, which its namespace reads, names none.
func TestWhoIsInTheWayOfARejection(t *testing.T) {
	const preferred, gi = ", or, without NUMA nodes, the annotation numa: preferred", claimGi
	first := func(limit uint64) Event { return claimed(claimPod("first", ""), "main", limit) }
	required := func(limit uint64) CreateContainer {
		return claimed(annotated(claimPod("web", ""), "numa", "required"), "main", limit)
	}
	ofTwo := required(2 * gi)
	guaranteed := pods.Container{Name: "main", Request: 2 * gi, Limit: 2 * gi, Guaranteed: true}
	ofTwo.PodInfo = pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: ofTwo.Pod.Ref(), Class: memoryqos.Guaranteed, Containers: []pods.Container{
		guaranteed, {Name: "side", Request: gi, Limit: gi, Guaranteed: true}}}}
	near := func(e CreateContainer, cpus string) CreateContainer {
		count := uint64(4 * 1024)
		e.Container.Resources.CPUs, e.Container.Resources.CPUShares = cpus, &count
		return e
	}
	for name, test := range map[string]struct {
		yaml       string
		events     []Event
		want, says string
	}{
		"alone on a node that others need": {"topologyManagerPolicy: restricted", []Event{first(gi), claimed(claimPod("large", ""), "main", 20*gi)},
			"default/first, container main, on node 0\nwhat helps: all of these containers end, or a request that one NUMA node has free",
			"nodes 0-1 together have room, but containers use node 0 already"},
		"on a group where one node is required": {"", []Event{first(20 * gi), required(4 * gi)},
			"default/first, container main, on nodes 0-1\nwhat helps: all of these containers end", "node 1 has room, but only a container that gets all of nodes 0-1 may join the containers there"},
		"on a group where one node is required (scope pod)": {"topologyManagerScope: pod", []Event{first(20 * gi), ofTwo},
			"default/first, container main, on nodes 0-1\nwhat helps: all of these containers end",
			"the pod's containers together, policy best-effort, scope pod: the pod's annotation numa is required: it could only have nodes 0-1, which are more than it needs: node 1 has room"},
		"alone on a node of a group": {"onConflict: Kubelet", []Event{first(20 * gi), near(claimed(claimPod("part", ""), "main", gi), "8-11"), near(required(4*gi), "0-3")},
			"default/first, container main, on nodes 0-1; default/part, container main, on node 1\nwhat helps: all of these containers end",
			"the affinity 0-1 cuts through a group of NUMA nodes: containers use nodes 0-1 already"},
		"on a group, of which one node is another's alone": {"onConflict: Kubelet", []Event{claimed(claimPod("ended", ""), "main", 20*gi), first(6 * gi),
			EndPod{Pod: claimPod("ended", ""), Gone: true}, near(claimed(claimPod("part", ""), "main", gi), "0-3"), required(20 * gi)},
			"default/first, container main, on nodes 0-1; default/part, container main, on node 0\nwhat helps: all of these containers end, or a request that one NUMA node outside of a group has free",
			"nodes 0-1 together have room, but containers use node 0 and nodes 0-1 already"},
		"its CPUs are on more nodes than it is placed on": {"", []Event{first(15 * gi), near(required(4*gi), "6-9")}, "", "it could only have node 1, and its exclusive CPUs are on nodes 0-1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.yaml)
			effects := l.after(test.events...)
			want := "\nin the way: " + test.want + preferred
			if test.want == "" {
				want = "node 1: 15.5Gi of 15.5Gi free, 4Gi needed"
			}
			if got := l.View().Rejections[0].Why(); !strings.HasSuffix(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
			if text := effects.Err.Error(); strings.Contains(text, "first") || !strings.Contains(text, test.says) {
				t.Errorf("the pod's message is %q", text)
			}
		})
	}
}

func TestWhyAPodIsNotGuaranteed(t *testing.T) {
	for lacks, want := range map[string]string{
		"has no CPU limit": "has no CPU limit",
		"":                 "does not request and limit CPU and memory to the same", // in a recording of an older version
	} {
		l := newLedger(t, "")
		e := claimed(claimPod("web", "burstable/"), "main", 1<<30)
		e.PodInfo = pods.Answer{Pod: &pods.Pod{Ref: pods.Ref{UID: "web", Namespace: "default", Name: "web"}, Class: memoryqos.Burstable, Containers: []pods.Container{
			{Name: "setup", Kind: memoryqos.Init, Lacks: lacks}, {Name: "main", Request: 1 << 30, Limit: 1 << 30, Guaranteed: true}}}, Source: memoryqos.SourceKubelet}
		want = ": not pinned: only Guaranteed pods are: its container setup (init) " + want
		if got := placed(l, l.after(e), "web", "main"); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		e.PodInfo.Pod.PodRequest = new(uint64(1 << 30))
		want = ": not pinned: only Guaranteed pods are: its own resources (spec.resources) do not request and limit CPU and memory to the same"
		l = newLedger(t, "")
		if got := placed(l, l.after(e), "web", "main"); !strings.HasSuffix(got, want) {
			t.Errorf("with resources of its own: got %q, want %q", got, want)
		}
	}
}

// A search whose budget is used up still finds nodes, and says so.
func TestASearchThatIsCutShort(t *testing.T) {
	machine := "nodes:\n"
	const nodes = 48 // of different sizes and distances
	for id := range nodes {
		machine += fmt.Sprintf("  - {id: %d, memory: %dGi, cpus: %d, distances: [", id, 8+id%5, id)
		for other := range nodes {
			machine += fmt.Sprint(10+min(id^other, 1)*(10+id*other*37%41), ", ")
		}
		machine += "]}\n"
	}
	l := newLedgerOn(t, machine, "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}")
	got := placed(l, l.Step(time.Unix(1, 0), claimed(claimPod("web", ""), "main", 200*claimGi)), "web", "main")
	if want := "pinned under restricted, by a search that was cut short"; !strings.HasSuffix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}
