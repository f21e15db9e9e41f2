package ledger

import (
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
)

// TestNodesThatTheRecordHas are the kubelet's unless the file of a running container lets it use all nodes, as a rollback leaves it.
func TestNodesThatTheRecordHas(t *testing.T) {
	const none = "memoryManagerPolicy: None"
	for name, test := range map[string]struct {
		yaml, recorded, held string
		want                 string
	}{
		"one node, which the file has":             {none, "0", "0", "0"},
		"one node, and all in the file":            {none, "0", "0-1", ""},
		"all nodes, and in the file":               {none, "0-1", "0-1", ""},
		"all nodes in another form":                {none, "0,1", "0-1", ""},
		"a cgroup without processes, as gVisor's":  {none, "0", "", "0"},
		"all nodes under a policy, as one group's": {"topologyManagerPolicy: best-effort", "0,1", "0-1", "0-1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedgerOn(t, twoNodes, test.yaml)
			pod := claimPod("web", "")
			c := claimed(pod, "main", claimGi).Container
			c.State, c.Resources.Mems = Running, test.recorded
			l.Step(time.Unix(1, 0), Synchronize{Pods: []Pod{pod}, Containers: []Container{c},
				Found: Found{Files: map[string]Files{c.ID: {Mems: &test.held}}}})
			found := l.containers[c.ID].Placement
			if got := found.Nodes.String(); got != test.want || found.ByKubelet != (test.yaml == none && got != "") {
				t.Errorf("got nodes %q, by the kubelet: %t, want nodes %q", got, found.ByKubelet, test.want)
			}
		})
	}
}

// TestNodesThatARollbackHasLeftInTheRecord are not the kubelet's under any policy: the plugin sets the container's nodes again after the rollback.
func TestNodesThatARollbackHasLeftInTheRecord(t *testing.T) {
	const rolledBack, kubelets = "0-2", "0"
	for name, test := range map[string]struct {
		yaml, class, recorded string
		claims                []claims.Ref
		held                  string
		want                  string // its nodes, why, and the cpuset.mems that is set
	}{
		"of a claim":                   {"dra: {enabled: true}", "", "1", []claims.Ref{{UID: "uid-a"}}, rolledBack, "1: pinned by resource claim default/a; sets 1"},
		"of a confined container":      {confine, "burstable/", "0-1", nil, rolledBack, ": not pinned: only Guaranteed pods are, confined to nodes 0-1; sets 0-1"},
		"of one beside a device there": {confine, "burstable/", "0-2", nil, rolledBack, ": not pinned: only Guaranteed pods are, confined to nodes 0-2; sets 0-2"},
		"of one that was confined":     {"", "burstable/", "0-1", nil, rolledBack, ": not pinned: only Guaranteed pods are; sets 0-2"},
		"of an allocation":             {"", "", "1", nil, rolledBack, "1: found pinned; sets 1"},
		"of a claim, by the kubelet":   {"dra: {enabled: true}", "", "0", []claims.Ref{{UID: "uid-a"}}, kubelets, "0: pinned by the kubelet; sets "},
		"of a claim, without journal":  {"dra: {enabled: true}", "", "1", []claims.Ref{{UID: "uid-a"}}, "1", "1: pinned by resource claim default/a; sets 1"},
		"of a Burstable pod, by it":    {confine, "burstable/", "0", nil, kubelets, "0: not pinned: only Guaranteed pods are; sets "},
	} {
		t.Run(name, func(t *testing.T) {
			_, resolved := resolvedOn(t, thirdWithoutCPUs, test.yaml)
			a := claimOf("a", []string{"web"}, on(1, claimGi))
			l, err := New(time.Unix(0, 0), Options{Config: resolved, Claims: []claims.Claim{a}})
			if err != nil {
				t.Fatal(err)
			}
			pod := claimPod("web", test.class)
			c := claimed(pod, "main", claimGi, test.claims...).Container
			c.State, c.Resources.Mems = Running, test.recorded
			effects := l.after(Synchronize{Pods: []Pod{pod}, Containers: []Container{c}, Found: Found{Files: map[string]Files{c.ID: {Mems: &test.held}}}})
			if got := placed(l, effects, "web", "main") + "; sets " + l.mems(l.containers[c.ID]); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// A container is confined again when a rollback ends, also if the runtime has connected meanwhile.
func TestARollbackEndsAfterTheRuntimeHasConnected(t *testing.T) {
	l := newLedgerOn(t, thirdWithoutCPUs, confine)
	create := claimed(claimPod("web", "burstable/"), "main", claimGi)
	found := create.Container
	found.State, found.Resources.Mems = Running, "0-1"
	all, rolledBack := "0-2", resolve(t, l, confine)
	rolledBack.Config.RolledBack = true
	runs(t, l, create)
	effects := l.after(Reconfigure{Config: rolledBack},
		Synchronize{Pods: []Pod{create.Pod}, Containers: []Container{found}, Found: Found{Files: map[string]Files{found.ID: {Mems: &all}}}},
		Reconfigure{Config: resolve(t, l, confine)})
	const want = ": not pinned: only Guaranteed pods are, confined to nodes 0-1"
	if got := placed(l, effects, "web", "main"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
