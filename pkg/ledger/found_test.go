package ledger

import (
	"testing"
	"time"
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
