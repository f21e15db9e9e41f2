package memorymanager_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestFreePagesOfTheKernel: the nodes are chosen first, and then the kernel is believed.
func TestFreePagesOfTheKernel(t *testing.T) {
	small, large := memorymanager.Hugepages(2*mi), memorymanager.Hugepages(gi)
	nodes := []memorymanager.NodeCapacity{
		{ID: 0, Total: 16 * gi, Pools: []memorymanager.Pool{{PageSize: 2 * mi, Count: 2048}, {PageSize: gi, Count: 4}}},
		{ID: 1, Total: 16 * gi, Pools: []memorymanager.Pool{{PageSize: 2 * mi, Count: 2048}, {PageSize: gi, Count: 4}}},
	}
	asks := func(name memorymanager.MemoryType, bytes uint64) memorymanager.Request {
		return append(memorymanager.Request{{Type: name, Bytes: bytes}}, memory(gi)...)
	}
	free := func(name memorymanager.MemoryType, bytes ...uint64) (all []memorymanager.FreePages) {
		for node, n := range bytes {
			all = append(all, memorymanager.FreePages{Node: node, Type: name, Bytes: n})
		}
		return all
	}
	tests := map[string]struct {
		request memorymanager.Request
		free    []memorymanager.FreePages
		want    string // cause of the rejection
		nodes   string // otherwise
	}{
		"not read":        {request: asks(small, 4*gi), nodes: "0"},
		"enough":          {request: asks(small, 4*gi), free: free(small, 4*gi, 0), nodes: "0"},
		"a page too few":  {request: asks(small, 4*gi), free: free(small, 4*gi-2*mi, 4*gi), want: "insufficient hugepages-2Mi on NUMA node(s) [0]: requested 4Gi, available 4094Mi"},
		"the KEP's":       {request: asks(small, 4*gi), free: free(small, 2*gi, 4*gi), want: "insufficient hugepages-2Mi on NUMA node(s) [0]: requested 4Gi, available 2Gi"},
		"none at all":     {request: asks(large, gi), free: free(large, 0, 0), want: "insufficient hugepages-1Gi on NUMA node(s) [0]: requested 1Gi, available 0"},
		"two nodes":       {request: asks(small, 6*gi), free: free(small, gi, 3*gi), want: "insufficient hugepages-2Mi on NUMA node(s) [0,1]: requested 6Gi, available 4Gi"},
		"two nodes, some": {request: asks(small, 6*gi), free: free(small, 4*gi, 2*gi), nodes: "0-1"},
		"one node read":   {request: asks(small, 6*gi), free: free(small, gi), nodes: "0-1"},
		"another size":    {request: asks(small, 4*gi), free: free(large, 0, 0), nodes: "0"},
		"only memory":     {request: memory(gi), free: free(small, 0, 0), nodes: "0"},
		"the second size": {
			request: append(memorymanager.Request{{Type: large, Bytes: gi}}, asks(small, gi)...), free: append(free(large, gi, gi), free(small, 0, gi)...),
			want: "insufficient hugepages-2Mi on NUMA node(s) [0]: requested 1Gi, available 0",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := manager(t, nodes, topologymanager.Restricted)
			before := m.State()
			got, err := m.Allocate(memorymanager.Container{Pod: "p", Name: "c", Request: test.request, FreePages: test.free})
			if test.want == "" {
				if err != nil || got.Nodes.String() != test.nodes {
					t.Errorf("%s, %v, want %s", got.Nodes, err, test.nodes)
				}
				return
			}
			var rejected *memorymanager.AllocationError
			if !errors.As(err, &rejected) || rejected.Reason != memorymanager.InsufficientHugepages || rejected.Cause != test.want {
				t.Fatalf("got  %+v\nwant %s", rejected, test.want)
			}
			if diff := cmp.Diff(before, m.State()); diff != "" {
				t.Errorf("the state changed: %s", diff)
			}
		})
	}
}

// TestPagesThatAPodHasAlready are in use when its containers come again, and not missing.
func TestPagesThatAPodHasAlready(t *testing.T) {
	pages := memorymanager.Hugepages(2 * mi)
	nodes := []memorymanager.NodeCapacity{{ID: 0, Total: 16 * gi, Pools: []memorymanager.Pool{{PageSize: 2 * mi, Count: 2048}}}}
	m := manager(t, nodes, topologymanager.Restricted)
	container := func(name string, kind memoryqos.Kind, free uint64) memorymanager.Container {
		return memorymanager.Container{
			Pod: "p", Name: name, Kind: kind, Request: append(memorymanager.Request{{Type: pages, Bytes: 2 * gi}}, memory(gi)...),
			FreePages: []memorymanager.FreePages{{Type: pages, Bytes: free}},
		}
	}
	mustAdmit(t, m, container("init", memoryqos.Init, 2*gi))
	mustAdmit(t, m, container("init", memoryqos.Init, 0)) // restarts
	mustAdmit(t, m, container("app", memoryqos.App, 0))   // has what the init container leaves
	mustAdmit(t, m, container("app", memoryqos.App, 0))   // restarts
	const want = "insufficient hugepages-2Mi on NUMA node(s) [0]: requested 2Gi, available 1Gi"
	var rejected *memorymanager.AllocationError
	if _, err := m.Allocate(container("other", memoryqos.App, gi)); !errors.As(err, &rejected) || rejected.Cause != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
