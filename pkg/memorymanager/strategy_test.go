package memorymanager_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

const (
	none  = topologymanager.NoStrategy
	most  = topologymanager.MostAllocated
	least = topologymanager.LeastAllocated
)

// hundreds are nodes of 100 bytes and 50 pages of 2 bytes, all as far from the next.
func hundreds(n int) (nodes []memorymanager.NodeCapacity) {
	for id := range n {
		row := make([]int, n)
		for i := range row {
			row[i] = 20
		}
		row[id] = 10
		nodes = append(nodes, memorymanager.NodeCapacity{ID: id, Total: 200, Pools: []memorymanager.Pool{{PageSize: 2, Count: 50}}, Distances: row})
	}
	return nodes
}

// with is a manager of nodes with containers that were there before.
func with(t *testing.T, nodes []memorymanager.NodeCapacity, opts memorymanager.Options, before ...memorymanager.Block) *memorymanager.Manager {
	t.Helper()
	m, err := memorymanager.New(nodes, opts)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range before {
		if _, err := m.Adopt(fmt.Sprint("before", i), "c", memorymanager.Request{{Type: b.Type, Bytes: b.Size}}, b.Nodes); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestStrategies(t *testing.T) {
	pages := memorymanager.Hugepages(2)
	on := func(size uint64, name memorymanager.MemoryType, ids ...int) memorymanager.Block {
		return memorymanager.Block{Nodes: nodeset.Of(ids...), Type: name, Size: size}
	}
	both := append(memorymanager.Request{{Type: pages, Bytes: 10}}, memory(10)...)
	far := hundreds(4)
	far[0].Distances[1], far[1].Distances[0] = 30, 30
	tests := map[string]struct {
		nodes   []memorymanager.NodeCapacity
		before  []memorymanager.Block
		request memorymanager.Request
		weights map[memorymanager.MemoryType]uint64
		closest bool
		want    map[topologymanager.Strategy]nodeset.Set
	}{
		"the KEP's example": {
			hundreds(2), []memorymanager.Block{on(40, "memory", 0)}, memory(10), nil, false,
			map[topologymanager.Strategy]nodeset.Set{none: 1, most: 1, least: 2},
		},
		"the fuller node has no room": {
			hundreds(3), []memorymanager.Block{on(95, "memory", 0), on(40, "memory", 2)}, memory(10), nil, false,
			map[topologymanager.Strategy]nodeset.Set{none: 2, most: 4, least: 2},
		},
		"less than two percent is not seen": {
			hundreds(2), []memorymanager.Block{on(1, "memory", 0)}, memory(10), nil, false,
			map[topologymanager.Strategy]nodeset.Set{none: 1, most: 1, least: 1},
		},
		"narrower comes first": {
			hundreds(4), []memorymanager.Block{on(10, "memory", 0), on(140, "memory", 1, 2)}, memory(10), nil, false,
			map[topologymanager.Strategy]nodeset.Set{none: 1, most: 1, least: 8},
		},
		"groups": {
			hundreds(4), []memorymanager.Block{on(40, "memory", 0, 1)}, memory(150), nil, false,
			map[topologymanager.Strategy]nodeset.Set{none: 3, most: 3, least: 12},
		},
		"groups at last": {
			hundreds(4), []memorymanager.Block{on(40, "memory", 2, 3)}, memory(150), nil, false,
			map[topologymanager.Strategy]nodeset.Set{none: 3, most: 12, least: 3},
		},
		"closer comes first": {
			far, []memorymanager.Block{on(40, "memory", 0, 1)}, memory(150), nil, true,
			map[topologymanager.Strategy]nodeset.Set{none: 12, most: 12, least: 12},
		},
		"as close": {
			hundreds(4), []memorymanager.Block{on(40, "memory", 0, 1)}, memory(150), nil, true,
			map[topologymanager.Strategy]nodeset.Set{none: 3, most: 3, least: 12},
		},
		"types count alike": { // node 0 has 50 and 1 percent, node 1 has 10 and 60
			hundreds(2), []memorymanager.Block{on(50, "memory", 0), on(10, "memory", 1), on(60, pages, 1)}, both, nil, false,
			map[topologymanager.Strategy]nodeset.Set{none: 1, most: 2, least: 1},
		},
		"by weight": {
			hundreds(2), []memorymanager.Block{on(50, "memory", 0), on(10, "memory", 1), on(60, pages, 1)}, both,
			map[memorymanager.MemoryType]uint64{"memory": 3}, false,
			map[topologymanager.Strategy]nodeset.Set{none: 1, most: 1, least: 2},
		},
		"types that are not asked for": {
			hundreds(2), []memorymanager.Block{on(50, pages, 0)}, memory(10), nil, false,
			map[topologymanager.Strategy]nodeset.Set{none: 1, most: 1, least: 1},
		},
		"weight 0 is as none": {
			hundreds(2), []memorymanager.Block{on(40, "memory", 0)}, memory(10), map[memorymanager.MemoryType]uint64{"memory": 0}, false,
			map[topologymanager.Strategy]nodeset.Set{none: 1, most: 1, least: 1},
		},
	}
	for name, test := range tests {
		for strategy, want := range test.want {
			t.Run(name+"/"+string(strategy), func(t *testing.T) {
				opts := memorymanager.Options{
					Policy: topologymanager.Restricted, PreferClosest: test.closest, Strategy: strategy, Weights: test.weights,
				}
				got, err := with(t, test.nodes, opts, test.before...).Allocate(memorymanager.Container{Pod: "p", Name: "c", Request: test.request})
				if err != nil || got.Nodes != want {
					t.Errorf("%s, %v, want %s", got.Nodes, err, want)
				}
			})
		}
	}
}

// TestStrategyOfEveryPolicy: a policy that asks for no hints has none to choose from.
func TestStrategyOfEveryPolicy(t *testing.T) {
	want := map[topologymanager.Policy]nodeset.Set{
		topologymanager.None: 1, topologymanager.BestEffort: 2, topologymanager.Restricted: 2, topologymanager.SingleNUMANode: 2,
	}
	for policy, want := range want {
		for _, scope := range []topologymanager.Scope{topologymanager.ContainerScope, topologymanager.PodScope} {
			m := with(t, hundreds(2), memorymanager.Options{Policy: policy, Scope: scope, Strategy: least},
				memorymanager.Block{Nodes: 1, Type: "memory", Size: 40})
			first, second := app("p", 30), app("p", 10)
			second.Name = "d"
			wantSecond := want
			if scope == topologymanager.PodScope {
				if _, err := m.AlignPod("p", []memorymanager.Container{first, second}); err != nil {
					t.Fatal(err)
				}
			}
			if got := mustAdmit(t, m, first); got.Nodes != want {
				t.Errorf("%s, scope %s: %s, want %s", policy, scope, got.Nodes, want)
			}
			mustAdmit(t, m, app("q", 20)) // node 1 is fuller than node 0 now
			if scope == topologymanager.ContainerScope {
				wantSecond = 1
			}
			if got := mustAdmit(t, m, second); got.Nodes != wantSecond {
				t.Errorf("%s, scope %s: %s and then %s, want %s", policy, scope, want, got.Nodes, wantSecond)
			}
		}
	}
}

func TestExplainNamesTheStrategy(t *testing.T) {
	for strategy, want := range map[topologymanager.Strategy]string{
		none: "", most: "", // which takes the same node
		least: "numa-allocation-strategy least-allocated decided: node 1 (score 1) before node 0 (score 40)",
	} {
		m := with(t, hundreds(2), memorymanager.Options{Policy: topologymanager.BestEffort, Strategy: strategy},
			memorymanager.Block{Nodes: 1, Type: "memory", Size: 40})
		if got := m.Explain(app("p", 10)); got.Strategy != want || got.Rejected != "" {
			t.Errorf("%s: %q, %s, want %q", strategy, got.Strategy, got.Rejected, want)
		}
		mustAdmit(t, m, app("p", 10))
		if got := m.Explain(app("p", 10)); got.Strategy != want { // judged without its own allocation
			t.Errorf("%s: %q of the container that is there, want %q", strategy, got.Strategy, want)
		}
	}
}

// TestLeastUsed: among nodes that would do alike, those with the most memory that nobody has allocated.
func TestLeastUsed(t *testing.T) {
	on := func(size uint64, ids ...int) memorymanager.Block {
		return memorymanager.Block{Nodes: nodeset.Of(ids...), Type: "memory", Size: size}
	}
	free := func(bytes ...uint64) (nodes []deficit.NodeMemory) {
		for id, b := range bytes {
			nodes = append(nodes, deficit.NodeMemory{ID: id, Free: b})
		}
		return nodes
	}
	for name, test := range map[string]struct {
		nodeMemory []deficit.NodeMemory
		before     []memorymanager.Block
		request    memorymanager.Request
		want       nodeset.Set
	}{
		"not known":                           {nil, []memorymanager.Block{on(40, 0)}, memory(10), 1},
		"the node with more":                  {free(20, 80, 30, 10), nil, memory(10), 2},
		"equal ones":                          {free(50, 50, 50, 50), nil, memory(10), 1},
		"less than a percent is not seen":     {free(50, 50, 50, 50), nil, memory(10), 1},
		"what is allocated since is unused":   {free(80, 60, 30, 10), []memorymanager.Block{on(40, 0)}, memory(10), 2},
		"the hints come first":                {free(10, 99, 10, 10), []memorymanager.Block{on(95, 1)}, memory(10), 1},
		"a node that is not known is as none": {free(10, 90), nil, memory(150), 3},
		"sets of unused nodes":                {free(10, 90, 20, 80), nil, memory(150), 10},
		"groups":                              {free(10, 90, 60, 80), []memorymanager.Block{on(10, 0, 1)}, memory(150), 12},
		"huge pages are in pools":             {free(10, 90, 20, 80), nil, memorymanager.Request{{Type: memorymanager.Hugepages(2), Bytes: 10}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := with(t, hundreds(4), memorymanager.Options{Policy: topologymanager.Restricted, Strategy: topologymanager.LeastUsed}, test.before...)
			m.SetNodeMemory(test.nodeMemory)
			got, err := m.Allocate(memorymanager.Container{Pod: "p", Name: "c", Request: test.request})
			if err != nil || got.Nodes != test.want {
				t.Errorf("%s, %v, want %s", got.Nodes, err, test.want)
			}
		})
	}
}

// TestLeastUsedTakesTheBestOfAllSets: no set of unused nodes of the chosen size that fits has more.
func TestLeastUsedTakesTheBestOfAllSets(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 3))
	for range 2000 {
		n := 2 + random.IntN(7)
		m := with(t, hundreds(n), memorymanager.Options{Policy: topologymanager.Restricted, Strategy: topologymanager.LeastUsed})
		nodes := make([]deficit.NodeMemory, n)
		for id := range nodes {
			nodes[id] = deficit.NodeMemory{ID: id, Free: random.Uint64N(101)}
		}
		m.SetNodeMemory(nodes)
		got, err := m.Allocate(memorymanager.Container{Pod: "p", Name: "c", Request: memory(1 + random.Uint64N(uint64(100*n)))})
		if err != nil {
			t.Fatal(err)
		}
		sum := func(set nodeset.Set) (sum uint64) {
			for id := range set.All() {
				sum += nodes[id].Free
			}
			return sum
		}
		for set := nodeset.Set(1); set < 1<<n; set++ {
			if size := uint64(set.Len()); set.Len() == got.Nodes.Len() && max(1, sum(set)/size) > max(1, sum(got.Nodes)/size) {
				t.Fatalf("%s is taken before %s: %+v", got.Nodes, set, nodes)
			}
		}
	}
}
