package memorymanager_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// levelMachine has two nodes with 15 of memory and 4 of huge pages each.
func levelMachine(t testing.TB, policy topologymanager.Policy) *memorymanager.Manager {
	t.Helper()
	var nodes []memorymanager.NodeCapacity
	for id := range 2 {
		nodes = append(nodes, memorymanager.NodeCapacity{ID: id, Total: 19, Pools: []memorymanager.Pool{{PageSize: 1, Count: 4}}})
	}
	m, err := memorymanager.New(nodes, memorymanager.Options{Policy: policy, Scope: topologymanager.PodScope})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func level(uid string, budget uint64, containers ...memorymanager.Container) memorymanager.Pod {
	for i := range containers {
		containers[i].Pod = uid
	}
	return memorymanager.Pod{Whole: memorymanager.Container{Pod: uid, Request: asks(budget)}, Containers: containers}
}

func asks(bytes uint64) memorymanager.Request {
	if bytes == 0 {
		return nil
	}
	return memorymanager.Request{{Type: memorymanager.Memory, Bytes: bytes}}
}

func part(name string, bytes uint64, kind memoryqos.Kind) memorymanager.Container {
	return memorymanager.Container{Name: name, Kind: kind, Request: asks(bytes)}
}

// The parts are those of the examples in KEP-5526 and of what a kubelet was recorded to do.
func TestPartsOfAPod(t *testing.T) {
	app, sidecar, first := memoryqos.App, memoryqos.Sidecar, memoryqos.Init
	tests := map[string]struct {
		pod  memorymanager.Pod
		want string
	}{
		"all share":       {level("p", 4, part("a", 0, app), part("b", 0, app), part("c", 0, app)), "a 4, b 4, c 4"},
		"one has its own": {level("p", 4, part("a", 2, app), part("b", 0, app), part("c", 0, app)), "a 2, b 2, c 2"},
		"nobody shares":   {level("p", 5, part("a", 3, app), part("b", 2, app)), "a 3, b 2"},
		"init containers and sidecars": {level("p", 8, part("i0", 0, first), part("s0", 1, sidecar), part("i1", 0, first), part("s1", 0, sidecar),
			part("a", 2, app), part("b", 0, app)), "a 2, b 5, i0 8, i1 7, s0 1, s1 5"},
		"an init container's own": {level("p", 4, part("i0", 4, first), part("a", 3, app), part("b", 0, app)), "a 3, b 1, i0 4"},
		"nothing is left": {level("p", 5, part("a", 3, app), part("b", 2, app), part("c", 0, app)),
			"EmptyPodSharedPoolError: the containers' own requests are all of the pod's memory, which leaves nothing to the containers without one"},
		"nothing is left for an init container": {level("p", 2, part("s0", 2, sidecar), part("i0", 0, first)),
			"EmptyPodSharedPoolError: the sidecars before the init container i0 request all of the pod's memory, and it has no request of its own"},
		"no budget": {level("p", 0, part("a", 0, app)), "InvalidRequest: the request names no memory"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := levelMachine(t, topologymanager.BestEffort)
			if got := allocate(m, test.pod); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if problem := unbalanced(m.State()); problem != "" {
				t.Error(problem)
			}
		})
	}
}

// allocate is the parts of a pod, or its rejection.
func allocate(m *memorymanager.Manager, p memorymanager.Pod) string {
	if _, err := m.AllocatePod(p); err != nil {
		rejected := err.(*memorymanager.AllocationError)
		return rejected.Reason.String() + ": " + rejected.Cause
	}
	var parts []string
	for _, e := range m.Allocations(p.Whole.Pod).Entries {
		parts = append(parts, fmt.Sprint(e.Container, " ", e.Blocks[0].Size))
	}
	return strings.Join(parts, ", ")
}

func TestAPodKeepsItsAllocation(t *testing.T) {
	m := levelMachine(t, topologymanager.Restricted)
	pod := level("p", 4, part("a", 1, memoryqos.App), part("b", 0, memoryqos.App))
	allocate(m, pod)
	m.Release("p", "a")
	if reserved := m.Nodes()[0].Memory[1].Reserved; reserved != 4 {
		t.Errorf("node 0 has %d allocated after one container has gone, want 4", reserved)
	}
	again, err := m.AllocatePod(pod)
	if err != nil || !again.Existing || m.Nodes()[0].Memory[1].Reserved != 4 || m.Blocks("p", "a") == nil {
		t.Errorf("it comes again: %+v, %v, part %v", again, err, m.Blocks("p", "a"))
	}
	resized := part("a", 3, memoryqos.App)
	resized.Pod = "p"
	if placement, err := m.Resize(resized, true); err != nil || placement.Blocks[0].Size != 1 {
		t.Errorf("a resize changes the part: %+v, %v", placement, err)
	}
	debugger := part("debugger", 1, memoryqos.Ephemeral)
	debugger.Pod = "p"
	const want = "the pod's own allocation has no part for the container"
	if _, err := m.Allocate(debugger); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a container that is none of the pod's: %v, want %s", err, want)
	}
	m.Release("p", "a")
	m.Release("p", "b")
	if reserved := m.Nodes()[0].Memory[1].Reserved; reserved != 0 || m.PodBlocks("p") != nil {
		t.Errorf("node 0 has %d allocated after the last container has gone", reserved)
	}
}

// Containers that were allocated before their pod was known to have resources of its own stay where they are.
func TestAllocatedContainersBecomeParts(t *testing.T) {
	m := levelMachine(t, topologymanager.Restricted)
	if _, err := m.Allocate(memorymanager.Container{Pod: "other", Name: "c", Request: asks(10)}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Allocate(memorymanager.Container{Pod: "p", Name: "a", Request: asks(6)}); err != nil {
		t.Fatal(err)
	}
	placement, err := m.AllocatePod(level("p", 4, part("a", 1, memoryqos.App), part("b", 0, memoryqos.App)))
	if err != nil || placement.Nodes != nodeset.Of(1) {
		t.Errorf("on nodes %s, %v; want 1", placement.Nodes, err)
	}
	if problem := unbalanced(m.State()); problem != "" {
		t.Error(problem)
	}
}

func TestExplainAPartJudgesItsPod(t *testing.T) {
	m := levelMachine(t, topologymanager.Restricted)
	allocate(m, level("p", 12, part("a", 1, memoryqos.App), part("b", 0, memoryqos.App)))
	e := m.Explain(memorymanager.Container{Pod: "p", Name: "a", Request: asks(1)})
	if e.Blocks[0].Size != 1 || !e.Candidates[0].Chosen || e.Candidates[0].Nodes != nodeset.Of(0) {
		t.Errorf("%+v", e)
	}
	if e.Candidates[1].Why != "has room, but comes after node 0" {
		t.Errorf("node 1: %q", e.Candidates[1].Why)
	}
}

// TestSumsHoldWithPodsOfTheirOwn has pods of both forms come, go, lose containers and outlive restarts, of which some find an
// older state file: it is replaced as a whole, so that a crash leaves an old one.
func TestSumsHoldWithPodsOfTheirOwn(t *testing.T) {
	for seed := range uint64(min(500, number()/420)) {
		r := rand.New(rand.NewPCG(seed, 17))
		policy := anyPolicy(r)
		m := levelMachine(t, policy)
		running := map[string]memorymanager.Pod{}
		files := [][]byte{checkpoint.Encode(checkpoint.PolicyStatic, m.State())}
		var log []string
		for step := range 40 {
			uid := fmt.Sprint("p", r.IntN(8))
			switch p, lives := running[uid]; {
			case r.IntN(12) == 0:
				older := files[max(0, len(files)-1-r.IntN(3))]
				file, err := checkpoint.Decode(older)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				m = levelMachine(t, policy)
				report, err := m.Restore(file.State, 0)
				if err != nil || len(report.Problems) > 0 {
					t.Fatalf("seed %d: %v, %v\n%s\n%s", seed, err, report.Problems, older, strings.Join(log, "\n"))
				}
				if got := m.State(); cmp.Diff(file.State.Pods, got.Pods, cmpopts.IgnoreFields(memorymanager.Block{}, "PerNode"), cmpopts.EquateEmpty()) != "" {
					t.Fatalf("seed %d: %v", seed, cmp.Diff(file.State.Pods, got.Pods))
				}
				for _, e := range m.State().Entries { // what ended meanwhile is released
					if _, lives := running[e.Pod]; !lives {
						m.ReleasePod(e.Pod)
					}
				}
				log = append(log, "restart")
			case lives && r.IntN(3) == 0:
				m.ReleasePod(uid)
				delete(running, uid)
				log = append(log, "end "+uid)
			case lives && r.IntN(2) == 0:
				c := p.Containers[r.IntN(len(p.Containers))].Name
				m.Release(uid, c)
				log = append(log, "release "+uid+" "+c)
			default:
				if !lives {
					p = randomPod(r, uid)
				}
				log = append(log, fmt.Sprintf("admit %+v", p))
				if admit(m, p) {
					running[uid] = p
				} else {
					m.ReleasePod(uid)
					delete(running, uid)
				}
			}
			if problem := unbalanced(m.State()); problem != "" {
				t.Fatalf("seed %d, step %d: %s\n%s", seed, step, problem, strings.Join(log, "\n"))
			}
			files = append(files, checkpoint.Encode(checkpoint.PolicyStatic, m.State()))
		}
	}
}

func randomPod(r *rand.Rand, uid string) memorymanager.Pod {
	p := memorymanager.Pod{Whole: memorymanager.Container{Pod: uid}}
	own, budget := r.IntN(2) == 0, uint64(r.IntN(6)) // the API server wants a budget that holds the containers' requests
	for i := range 1 + r.IntN(4) {
		kind := []memoryqos.Kind{memoryqos.App, memoryqos.App, memoryqos.Init, memoryqos.Sidecar}[r.IntN(4)]
		bytes := uint64(r.IntN(4))
		if !own {
			bytes++
		}
		budget += bytes
		c := part(fmt.Sprint("c", i), bytes, kind)
		c.Pod = uid
		p.Containers = append(p.Containers, c)
	}
	if own {
		p.Whole.Request = asks(max(budget, 1))
		if r.IntN(3) == 0 {
			p.Whole.Request = slices.Insert(p.Whole.Request, 0, memorymanager.Amount{Type: memorymanager.Hugepages(1), Bytes: uint64(1 + r.IntN(4))})
		}
	}
	slices.SortStableFunc(p.Containers, func(a, b memorymanager.Container) int {
		app := func(c memorymanager.Container) int {
			if c.Kind == memoryqos.App {
				return 1
			}
			return 0
		}
		return app(a) - app(b)
	})
	return p
}

func admit(m *memorymanager.Manager, p memorymanager.Pod) bool {
	if p.Whole.Request != nil {
		_, err := m.AllocatePod(p)
		return err == nil
	}
	for _, c := range p.Containers {
		if _, err := m.Allocate(c); err != nil {
			return false
		}
	}
	return true
}
