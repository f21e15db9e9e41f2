package memorymanager_test

import (
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestForeignCPUs places containers whose exclusive CPUs the kubelet has spread over more nodes than their memory needs.
func TestForeignCPUs(t *testing.T) {
	const kubelet = "topologyManagerPolicy: restricted in the kubelet's configuration has it assign CPUs on fewer nodes"
	on := func(nodes ...int) nodeset.Set { return nodeset.Of(nodes...) }
	tests := map[string]struct {
		policy   topologymanager.Policy
		reject   bool // onConflict: Kubelet
		required bool
		first    []memorymanager.Container
		bytes    uint64
		cpus     nodeset.Set
		want     nodeset.Set
		err      string
	}{
		"all nodes of the CPUs":             {cpus: on(0, 1), want: on(0, 1)},
		"not the lowest nodes":              {cpus: on(1, 2), want: on(1, 2)},
		"a node of the CPUs is in use":      {first: []memorymanager.Container{app("a", gi)}, cpus: on(0, 1), want: on(0)},
		"the node in use is full":           {first: []memorymanager.Container{app("a", 10*gi)}, cpus: on(0, 1), want: on(1)},
		"both are in use":                   {first: []memorymanager.Container{app("a", 10*gi), app("b", gi)}, cpus: on(0, 1), want: on(1)},
		"two of three are enough":           {first: []memorymanager.Container{app("a", gi)}, bytes: 12 * gi, cpus: on(0, 1, 2), want: on(1, 2)},
		"the nodes are a group":             {first: []memorymanager.Container{app("a", 14*gi)}, cpus: on(0, 1), want: on(0, 1)},
		"the group has more nodes":          {first: []memorymanager.Container{app("a", 24*gi)}, cpus: on(0, 1), err: "its exclusive CPUs are on nodes 0-1, more than the policy admits for this request, and its memory does not fit there; " + kubelet},
		"the memory needs as many nodes":    {bytes: 14 * gi, cpus: on(0, 1), want: on(0, 1)},
		"no room on as many nodes":          {first: []memorymanager.Container{app("a", gi)}, bytes: 14 * gi, cpus: on(0, 1), err: "there is room on nodes 1-2, but its exclusive CPUs are on nodes 0-1: containers use node 0 already"},
		"no room at all":                    {first: []memorymanager.Container{app("a", 24*gi)}, bytes: 8 * gi, cpus: on(0, 1), err: "no set of NUMA nodes has room"},
		"CPUs on one node":                  {first: []memorymanager.Container{app("a", 10*gi)}, cpus: on(0), err: "there is room on node 1, but its exclusive CPUs are on node 0: node 0: 0 of"},
		"a node without memory":             {cpus: on(0, 5), want: on(0)},
		"rejected by choice":                {reject: true, cpus: on(0, 1), err: "its exclusive CPUs are on nodes 0-1, more than the policy admits for this request; onConflict: CPUs in the plugin's configuration lets its memory follow them, and " + kubelet},
		"required":                          {required: true, cpus: on(0, 1), err: "its exclusive CPUs are on nodes 0-1, more than the policy admits for this request, and the pod's annotation numa is required; " + kubelet},
		"single-numa-node":                  {policy: topologymanager.SingleNUMANode, cpus: on(0, 1), err: "its exclusive CPUs are on nodes 0-1, more than the policy admits for this request; topologyManagerPolicy: single-numa-node in the kubelet's configuration has it assign CPUs on fewer nodes"},
		"best-effort decides as always":     {policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", gi)}, cpus: on(0, 1), want: on(0)},
		"none does not look at the CPUs":    {policy: topologymanager.None, cpus: on(1, 2), want: on(0)},
		"best-effort with Reject is itself": {policy: topologymanager.BestEffort, reject: true, cpus: on(0, 1), want: on(0, 1)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.policy == "" {
				test.policy = topologymanager.Restricted
			}
			m, err := memorymanager.New(plain(3), memorymanager.Options{Policy: test.policy, FollowCPUs: !test.reject})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range test.first {
				mustAdmit(t, m, c)
			}
			c := app("p", max(test.bytes, gi))
			c.CPUs, c.Required = test.cpus, test.required
			p, err := m.Allocate(c)
			switch {
			case test.err != "":
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %s (%v), want %s", p.Nodes, err, test.err)
				}
			case err != nil || p.Nodes != test.want:
				t.Errorf("got %s (%v), want %s", p.Nodes, err, test.want)
			}
			if problem := unbalanced(m.State()); problem != "" {
				t.Error(problem)
			}
		})
	}
	t.Run("scope pod", func(t *testing.T) {
		m, err := memorymanager.New(plain(2), memorymanager.Options{Policy: topologymanager.Restricted, Scope: topologymanager.PodScope, FollowCPUs: true})
		if err != nil {
			t.Fatal(err)
		}
		first, second := app("p", gi), app("p", gi)
		second.Name = "d"
		first.CPUs = on(0, 1)
		hint, err := m.AlignPod("p", []memorymanager.Container{first, second})
		if err != nil || hint != (topologymanager.Hint{Nodes: on(0, 1)}) {
			t.Fatalf("the pod's affinity is %+v (%v)", hint, err)
		}
		for _, c := range []memorymanager.Container{first, second} {
			if p := mustAdmit(t, m, c); p.Nodes != on(0, 1) {
				t.Errorf("%s is on %s", c.Name, p.Nodes)
			}
		}
		first.Required = true
		first.Pod = "q"
		if _, err := m.AlignPod("q", []memorymanager.Container{first}); err == nil {
			t.Error("a pod that requires its nodes is admitted")
		}
	})
}
