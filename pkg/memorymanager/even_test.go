package memorymanager_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

const (
	page     = 4 << 10
	hugePage = 2 * mi
)

func spread(pod string, bytes uint64) memorymanager.Container {
	c := app(pod, bytes)
	c.Spread = true
	return c
}

func withHugepages(c memorymanager.Container, bytes uint64) memorymanager.Container {
	c.Request = append(memorymanager.Request{{Type: "hugepages-2Mi", Bytes: bytes}}, c.Request...)
	return c
}

// parts shows even blocks, "memory 4096+4096".
func parts(blocks []memorymanager.Block) (shown []string) {
	for _, b := range blocks {
		text := string(b.Type)
		for _, amount := range b.PerNode {
			text += fmt.Sprintf(" %d:%d", amount.Node, amount.Bytes)
		}
		shown = append(shown, text)
	}
	return shown
}

func TestEvenParts(t *testing.T) {
	nodes := func(pages ...uint64) (nodes []memorymanager.NodeCapacity) {
		for id, free := range pages {
			nodes = append(nodes, memorymanager.NodeCapacity{ID: id, Total: free*page + 64*hugePage, Reserved: memory(64*hugePage - 8*hugePage),
				Pools: []memorymanager.Pool{{PageSize: hugePage, Count: 8}}})
		}
		return nodes
	}
	for name, test := range map[string]struct {
		nodes []memorymanager.NodeCapacity
		ask   memorymanager.Container
		want  []string
	}{
		"two halves":                       {nodes(100, 100), spread("a", 8*page), []string{"memory 0:16384 1:16384"}},
		"the lowest node has a page more":  {nodes(100, 100), spread("a", 9*page), []string{"memory 0:20480 1:16384"}},
		"two of three have a page more":    {nodes(100, 100, 100), spread("a", 8*page), []string{"memory 0:12288 1:12288 2:8192"}},
		"less than a page":                 {nodes(100, 100), spread("a", 8*page+100), []string{"memory 0:16484 1:16384"}},
		"a page and less than one":         {nodes(100, 100, 100), spread("a", 7*page+100), []string{"memory 0:12288 1:8292 2:8192"}},
		"fewer pages than nodes":           {nodes(100, 100), spread("a", page), []string{"memory 0:4096"}},
		"the lowest node with room has it": {nodes(4, 5), spread("a", 9*page), []string{"memory 0:16384 1:20480"}},
		"the largest number of nodes":      {nodes(100, 1, 100), spread("a", 8*page), []string{"memory 0:16384 2:16384"}},
		"those with room for a page more":  {nodes(4, 4, 5, 2), spread("a", 13*page), []string{"memory 0:16384 1:16384 2:20480"}},
		"huge pages":                       {nodes(100, 100), withHugepages(spread("a", 8*page), 3*hugePage), []string{"hugepages-2Mi 0:4194304 1:2097152", "memory 0:16384 1:16384"}},
		"one node":                         {nodes(100), spread("a", 8*page), []string{"memory"}},
		"only one node has room":           {nodes(100, 1), spread("a", 8*page), []string{"memory"}},
		"the nodes of its exclusive CPUs":  {nodes(100, 100, 100), onCPUs(spread("a", 8*page), 1, 2), []string{"memory 1:16384 2:16384"}},
		"exclusive CPUs on one node":       {nodes(100, 100, 100), onCPUs(spread("a", 8*page), 1), []string{"memory"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := memorymanager.New(test.nodes, memorymanager.Options{Policy: topologymanager.Restricted, FollowCPUs: true})
			if err != nil {
				t.Fatal(err)
			}
			placement := mustAdmit(t, m, test.ask)
			if diff := cmp.Diff(test.want, parts(placement.Blocks)); diff != "" {
				t.Error(diff)
			}
			if again := mustAdmit(t, m, test.ask); !again.Existing || again.Nodes != placement.Nodes {
				t.Errorf("asked again, it has %+v, want nodes %s", again, placement.Nodes)
			}
		})
	}
}

func onCPUs(c memorymanager.Container, nodes ...int) memorymanager.Container {
	c.CPUs = nodeset.Of(nodes...)
	return c
}

func TestEvenAllocationsAndGroups(t *testing.T) {
	m := manager(t, plain(4), topologymanager.BestEffort)
	steps := []struct {
		do   func() error
		want string // cpuset.mems of all containers and reserved bytes of all nodes, in Gi
	}{
		{admitting(m, spread("a", 4*gi)), "[1 1 1 1]"},
		{admitting(m, app("wide", 13*gi)), "[10 5 1 1]"}, // in the group, around the even parts
		{admitting(m, spread("b", 8*gi)), "[10 9 3 3]"},  // wide's bytes can be on any node
		{releasing(m, "wide"), "[3 3 3 3]"},              // and leave no even part behind
		{releasing(m, "a"), "[2 2 2 2]"},
		{releasing(m, "b"), "[0 0 0 0]"},
		{admitting(m, app("small", gi)), "[1 0 0 0]"},
		{admitting(m, spread("c", 6*gi)), "[1 2 2 2]"},     // node 0 is no part of a group
		{admitting(m, app("small2", 10*gi)), "[1 10 4 2]"}, // no single node has room, the group has
	}
	for i, step := range steps {
		if err := step.do(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		var in []uint64
		for _, bytes := range reservedBytes(m) {
			in = append(in, bytes/gi)
		}
		if got := fmt.Sprint(in); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

func admitting(m *memorymanager.Manager, c memorymanager.Container) func() error {
	return func() error { _, err := m.Admit(c); return err }
}

func releasing(m *memorymanager.Manager, pod string) func() error {
	return func() error { m.ReleasePod(pod); return nil }
}

// TestLeastEvenShare: a pod that is spread must have 640Mi on each of its nodes, which have 10Gi.
func TestLeastEvenShare(t *testing.T) {
	ofPod := func(c memorymanager.Container, bytes uint64) memorymanager.Container {
		c.PodBytes = bytes
		return c
	}
	for name, test := range map[string]struct {
		nodes  int
		before []memorymanager.Container
		ask    memorymanager.Container
		want   string // its nodes
	}{
		"some pages":                  {4, nil, spread("a", 8*mi), "0"},
		"less than two shares":        {4, nil, spread("a", 1280*mi-page), "0"},
		"two shares":                  {4, nil, spread("a", 1280*mi), "0-1"},
		"three shares":                {4, nil, spread("a", 2560*mi-page), "0-2"},
		"four shares":                 {4, nil, spread("a", 2560*mi), "0-3"},
		"of a large pod":              {4, nil, ofPod(spread("a", 8*mi), 4*gi), "0-3"},
		"in a group of others":        {2, []memorymanager.Container{app("wide", 13*gi)}, spread("a", 2*gi), "0-1"},
		"too small, in their group":   {2, []memorymanager.Container{app("wide", 13*gi)}, spread("a", 8*mi), "0-1"},
		"too small, where one is not": {2, []memorymanager.Container{app("full", 10*gi)}, spread("a", 8*mi), "1"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := memorymanager.New(plain(test.nodes), memorymanager.Options{Policy: topologymanager.BestEffort, EvenShare: memorymanager.LeastEvenShare})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range test.before {
				mustAdmit(t, m, c)
			}
			placement := mustAdmit(t, m, test.ask)
			if placement.Nodes.String() != test.want {
				t.Errorf("it is on %s, want %s", placement.Nodes, test.want)
			}
			if again := mustAdmit(t, m, test.ask); !again.Existing {
				t.Errorf("asked again, it is placed anew: %+v", again)
			}
			even := placement.Nodes.Len() > 1 && !strings.HasPrefix(name, "too small")
			if got := slices.ContainsFunc(placement.Blocks, func(b memorymanager.Block) bool { return b.Even }); got != even {
				t.Errorf("it is even: %v, want %v", got, even)
			}
			wantConsistent(t, m, plain(test.nodes))
		})
	}
}

func TestEvenRejections(t *testing.T) {
	for name, test := range map[string]struct {
		before []memorymanager.Container
		policy topologymanager.Policy
		ask    memorymanager.Container
		want   string
	}{
		"no room": {nil, "restricted", spread("a", 24*gi), "policy restricted, scope container: its memory cannot be spread evenly over nodes 0-1:\n" +
			"node 0: 10Gi of 10Gi free, 12Gi needed\nnode 1: 10Gi of 10Gi free, 12Gi needed"},
		"a node in use": {[]memorymanager.Container{app("small", 4*gi)}, "restricted", spread("a", 12*gi), "policy restricted, scope container: its memory cannot be spread " +
			"evenly over nodes 0-1 (node 0 cannot be part of a group: containers are on one node alone):\n" +
			"node 0: 6Gi of 10Gi free, 6Gi needed\nnode 1: 10Gi of 10Gi free, 6Gi needed"},
		"beside another": {[]memorymanager.Container{spread("b", 16*gi)}, "best-effort", spread("a", 6*gi), "policy best-effort, scope container: its memory cannot be spread evenly over nodes 0-1:\n" +
			"node 0 (group 0-1): 2Gi of 10Gi free, 3Gi needed\nnode 1 (group 0-1): 2Gi of 10Gi free, 3Gi needed"},
		"its CPUs' node is full": {[]memorymanager.Container{onCPUs(app("b", 9*gi), 1)}, "restricted", onCPUs(spread("a", 12*gi), 0, 1), "policy restricted, scope container: its memory cannot be spread " +
			"evenly over nodes 0-1 (node 1 cannot be part of a group: containers are on one node alone):\n" +
			"node 0: 10Gi of 10Gi free, 6Gi needed\nnode 1: 1Gi of 10Gi free, 6Gi needed"},
		"no such pages": {nil, "none", withHugepages(spread("a", gi), hugePage), "policy none, scope container: no NUMA node has hugepages-2Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			m := manager(t, plain(2), test.policy)
			for _, c := range test.before {
				mustAdmit(t, m, c)
			}
			before := m.State()
			_, err := m.Admit(test.ask)
			var rejection *memorymanager.Rejection
			if !errors.As(err, &rejection) {
				t.Fatalf("got %v", err)
			}
			if diff := cmp.Diff(test.want, rejection.Text()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, m.State()); diff != "" {
				t.Errorf("a rejection changed the state: %s", diff)
			}
		})
	}
	m := manager(t, plain(2), topologymanager.SingleNUMANode)
	if placement := mustAdmit(t, m, spread("a", gi)); placement.Nodes != nodeset.Of(0) {
		t.Errorf("single-numa-node: nodes %s", placement.Nodes)
	}
}

func TestEvenResize(t *testing.T) {
	nodes := plain(3)
	nodes[2].Total = gi
	for name, test := range map[string]struct {
		beside []memorymanager.Container
		from   uint64
		to     uint64
		whole  bool
		want   string // its parts, and what it is short of
	}{
		"more":             {nil, 12 * gi, 16*gi + page, false, "[memory 0:8589938688 1:8589934592] nothing"},
		"less":             {nil, 12 * gi, 8 * gi, false, "[memory 0:4294967296 1:4294967296] nothing"},
		"no room":          {nil, 12 * gi, 24 * gi, false, "[memory 0:10737418240 1:10737418240] 4Gi of memory"},
		"no room, refused": {nil, 12 * gi, 24 * gi, true, "policy restricted, scope container: its memory cannot be spread evenly over nodes 0-1: node 0 (group 0-1): 4Gi of 10Gi free, 6Gi more needed; node 1 (group 0-1): 4Gi of 10Gi free, 6Gi more needed"},
		"beside another":   {[]memorymanager.Container{spread("b", 12*gi)}, 6 * gi, 8 * gi, false, "[memory 0:4294967296 1:4294967296] nothing"},
		"beside, no room":  {[]memorymanager.Container{spread("b", 12*gi)}, 6 * gi, 10 * gi, false, "[memory 0:4294967296 1:4294967296] 2Gi of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			m := manager(t, nodes, topologymanager.Restricted)
			mustAdmit(t, m, spread("a", test.from))
			for _, c := range test.beside {
				mustAdmit(t, m, c)
			}
			placement, err := m.Resize(spread("a", test.to), test.whole)
			got := fmt.Sprint(parts(placement.Blocks), " ", placement.PendingResize)
			if err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			wantConsistent(t, m, nodes)
		})
	}
	t.Run("onto an unused node", func(t *testing.T) {
		m := manager(t, plain(3), topologymanager.Restricted)
		mustAdmit(t, m, app("c", gi))
		mustAdmit(t, m, spread("a", 4*gi))
		m.ReleasePod("c")
		placement, err := m.Resize(spread("a", 24*gi), true)
		if got, want := fmt.Sprint(parts(placement.Blocks)), "[memory 0:8589934592 1:8589934592 2:8589934592]"; err != nil || got != want {
			t.Errorf("%v, %s, want %s", err, got, want)
		}
	})
}

// An app container takes over what the init container of its pod has left on each node, and the init container runs again in its place.
func TestEvenInitContainers(t *testing.T) {
	m := manager(t, plain(2), topologymanager.BestEffort)
	first := spread("a", 18*gi)
	first.Name, first.Kind = "init", memoryqos.Init
	mustAdmit(t, m, first)
	mustAdmit(t, m, spread("a", 14*gi+page))
	if diff := cmp.Diff([]uint64{9 * gi, 9 * gi}, reservedBytes(m)); diff != "" {
		t.Errorf("the app container takes over what is there: %s", diff)
	}
	if got, want := parts(m.Blocks("a", "init")), []string{"memory 0:2147479552 1:2147483648"}; !slices.Equal(got, want) {
		t.Errorf("the init container has %v, want %v", got, want)
	}
	m.Release("a", "init")
	if diff := cmp.Diff([]uint64{7*gi + page, 7 * gi}, reservedBytes(m)); diff != "" {
		t.Errorf("without the init container: %s", diff)
	}
	if placement := mustAdmit(t, m, first); placement.Nodes != nodeset.Of(0, 1) {
		t.Errorf("it runs again on %s", placement.Nodes)
	}
	if diff := cmp.Diff([]uint64{9 * gi, 9 * gi}, reservedBytes(m)); diff != "" {
		t.Errorf("run again: %s", diff)
	}
	other := app("a", gi)
	other.Name = "other"
	if placement := mustAdmit(t, m, other); placement.Nodes != nodeset.Of(0, 1) {
		t.Errorf("a container that is not spread is on %s", placement.Nodes)
	}
	wantConsistent(t, m, plain(2))
}

func TestMakeEven(t *testing.T) {
	m := manager(t, plain(2), topologymanager.Restricted)
	if _, err := m.Adopt("a", "c", memory(12*gi), nodeset.Of(0, 1)); err != nil {
		t.Fatal(err)
	}
	if m.MakeEven(app("a", 12*gi)) || !m.MakeEven(spread("a", 12*gi)) || m.MakeEven(spread("a", 12*gi)) {
		t.Error("want that it is made even once, and only where it is to be spread")
	}
	if diff := cmp.Diff([]uint64{6 * gi, 6 * gi}, reservedBytes(m)); diff != "" {
		t.Error(diff)
	}
}

func TestExplainEven(t *testing.T) {
	m := manager(t, plain(3), topologymanager.Restricted)
	mustAdmit(t, m, app("small", 9*gi))
	e := m.Explain(spread("a", 4*gi))
	if diff := cmp.Diff([]string{"memory 1:2147483648 2:2147483648"}, parts(e.Blocks)); diff != "" {
		t.Error(diff)
	}
	why := map[string]string{}
	for _, c := range e.Candidates {
		why[c.Nodes.String()] = c.Why
	}
	want := map[string]string{"1-2": "", "0": "1Gi of 10Gi free, 4Gi needed", "1": "has room, but comes after nodes 1-2", "2": "has room, but comes after nodes 1-2"}
	if diff := cmp.Diff(want, why); diff != "" {
		t.Error(diff)
	}
}

// TestTheLargestEvenSet compares the number of nodes with trying all sets of them.
func TestTheLargestEvenSet(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 7))
		var nodes []memorymanager.NodeCapacity
		for id := range 1 + r.IntN(6) {
			nodes = append(nodes, memorymanager.NodeCapacity{ID: id, Total: uint64(1+r.IntN(9)) * page})
		}
		pages := uint64(1 + r.IntN(30))
		m := manager(t, nodes, topologymanager.BestEffort)
		want := 0
		for mask := range 1 << len(nodes) {
			set := nodeset.Set(mask)
			count := uint64(set.Len())
			if count == 0 {
				continue
			}
			larger, room := pages%count, true
			for id := range set.All() {
				free := nodes[id].Total / page
				room = room && free >= pages/count
				if free > pages/count && larger > 0 {
					larger--
				}
			}
			if room && larger == 0 {
				want = max(want, set.Len())
			}
		}
		placement, err := m.Admit(spread("a", pages*page))
		if got := placement.Nodes.Len(); got != want || (err != nil) != (want == 0) {
			t.Fatalf("seed %d: %d nodes (%v), want %d", seed, got, err, want)
		}
	}
}

// TestEvenWalk admits, resizes and releases containers, some of them spread, at random.
func TestEvenWalk(t *testing.T) {
	for seed := range uint64(min(400, *cases/525)) {
		r := rand.New(rand.NewPCG(seed, 3))
		var nodes []memorymanager.NodeCapacity
		for id := range 2 + r.IntN(3) {
			nodes = append(nodes, memorymanager.NodeCapacity{ID: id, Total: uint64(20+r.IntN(20))*page + 8*hugePage,
				Pools: []memorymanager.Pool{{PageSize: hugePage, Count: 8}}})
		}
		policy := []topologymanager.Policy{topologymanager.None, topologymanager.BestEffort, topologymanager.Restricted}[r.IntN(3)]
		m := manager(t, nodes, policy)
		for step := range 40 {
			pod := fmt.Sprint("pod", r.IntN(5))
			c := memorymanager.Container{Pod: pod, Name: "init", Kind: memoryqos.Init, Request: memory(uint64(1 + r.IntN(40*page))), Spread: pod < "pod3"}
			if r.IntN(3) > 0 {
				c.Name, c.Kind = fmt.Sprint("c", r.IntN(2)), memoryqos.App
			}
			if r.IntN(3) == 0 {
				c = withHugepages(c, uint64(1+r.IntN(6))*hugePage)
			}
			switch r.IntN(5) {
			case 0:
				m.ReleasePod(pod)
			case 1:
				if m.Blocks(pod, c.Name) != nil && c.Kind == memoryqos.App {
					_, _ = m.Resize(c, r.IntN(2) == 0) // may be rejected
				}
			default:
				_, _ = m.Admit(c) // may be rejected
			}
			if !wantConsistent(t, m, nodes) {
				t.Fatalf("seed %d, step %d: %s %s/%s %v", seed, step, policy, c.Pod, c.Name, c.Request)
			}
		}
	}
}

// wantConsistent checks that even parts are even and add up, that the node map has what the blocks have, and that all of it
// survives a state file.
func wantConsistent(t *testing.T, m *memorymanager.Manager, nodes []memorymanager.NodeCapacity) bool {
	t.Helper()
	state := m.State()
	type at struct {
		node int
		name memorymanager.MemoryType
	}
	sums := map[at]uint64{}
	for _, entry := range state.Entries {
		for _, b := range entry.Blocks {
			unit, sum, least, most := uint64(page), uint64(0), ^uint64(0), uint64(0)
			if b.Type != memorymanager.Memory {
				unit = hugePage
			}
			on := map[int]uint64{}
			for _, amount := range b.PerNode {
				sums[at{amount.Node, b.Type}] += amount.Bytes
				on[amount.Node] += amount.Bytes
				sum += amount.Bytes
			}
			for id := range b.Nodes.All() {
				least, most = min(least, on[id]), max(most, on[id])
			}
			if sum != b.Size {
				t.Errorf("%s/%s: the parts of its %s are %d, want %d", entry.Pod, entry.Container, b.Type, sum, b.Size)
			}
			if b.Even && entry.Container != "init" && most-least > unit {
				t.Errorf("%s/%s: %s %v is not even", entry.Pod, entry.Container, b.Type, b.PerNode)
			}
		}
	}
	for _, node := range state.Nodes {
		for _, table := range node.Memory {
			if got := sums[at{node.ID, table.Type}]; got != table.Reserved {
				t.Errorf("node %d has %d of %s reserved, and its blocks are %d", node.ID, table.Reserved, table.Type, got)
			}
		}
	}
	text := checkpoint.Encode(checkpoint.PolicyStatic, state)
	file, err := checkpoint.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range checkpoint.Check(file.State) {
		t.Errorf("the state file: %+v", finding)
	}
	again := manager(t, nodes, topologymanager.None)
	report, err := again.Restore(file.State, 0)
	if err != nil || len(report.Problems) > 0 {
		t.Errorf("restore: %v %v", err, report.Problems)
	}
	if got := checkpoint.Encode(checkpoint.PolicyStatic, again.State()); string(got) != string(text) {
		t.Errorf("the state file is another after a restart:\n%s\n%s", text, got)
	}
	return !t.Failed()
}
