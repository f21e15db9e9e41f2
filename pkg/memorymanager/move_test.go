package memorymanager_test

import (
	"fmt"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// allocated has containers of so many bytes on nodes of 100 bytes each, named a, b, and so on.
func allocated(t *testing.T, options memorymanager.Options, nodes int, on ...memorymanager.NodeAmount) *memorymanager.Manager {
	t.Helper()
	var capacity []memorymanager.NodeCapacity
	for id := range nodes {
		capacity = append(capacity, memorymanager.NodeCapacity{ID: id, Total: 100})
	}
	m, err := memorymanager.New(capacity, options)
	if err != nil {
		t.Fatal(err)
	}
	for i, amount := range on { // the bits of Node are the nodes
		request := memorymanager.Request{{Type: memorymanager.Memory, Bytes: amount.Bytes}}
		if _, err := m.Adopt(string(rune('a'+i)), "app", request, nodeset.Set(amount.Node)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestMove(t *testing.T) {
	type on = memorymanager.NodeAmount
	const n0, n1, n01, n2, n23, n012 = 1, 2, 3, 4, 12, 7
	for name, test := range map[string]struct {
		options memorymanager.Options
		on      []on
		to      nodeset.Set
		moved   bool
		groups  string // of each node, afterwards
	}{
		"to an unused node":             {on: []on{{n0, 40}}, to: n1, moved: true, groups: "[0 1 2 3]"},
		"to a node with room":           {on: []on{{n0, 40}, {n1, 60}}, to: n1, moved: true, groups: "[0 1 2 3]"},
		"to a node without room":        {on: []on{{n0, 40}, {n1, 61}}, to: n1, groups: "[0 1 2 3]"},
		"where it is":                   {on: []on{{n0, 40}}, to: n0, groups: "[0 1 2 3]"},
		"nowhere":                       {on: []on{{n0, 40}}, to: 0, groups: "[0 1 2 3]"},
		"to a node that is not there":   {on: []on{{n0, 40}}, to: 1 << 9, groups: "[0 1 2 3]"},
		"to a node of another's group":  {on: []on{{n2, 40}, {n01, 120}}, to: n0, groups: "[0-1 0-1 2 3]"},
		"to another's group":            {on: []on{{n2, 40}, {n01, 120}}, to: n01, moved: true, groups: "[0-1 0-1 2 3]"},
		"off its own group":             {on: []on{{n01, 40}}, to: n1, moved: true, groups: "[0 1 2 3]"},
		"within the group of another":   {on: []on{{n01, 40}, {n01, 120}}, to: n1, moved: true, groups: "[0-1 0-1 2 3]"},
		"the other would have no room":  {on: []on{{n012, 40}, {n01, 120}, {n01, 70}}, to: n1, groups: "[0-2 0-2 0-2 3]"},
		"the last one leaves its group": {on: []on{{n01, 40}, {n1, 20}}, to: n0, moved: true, groups: "[0 1 2 3]"},
		"groups that overlap":           {options: memorymanager.Options{AlignTo: topologymanager.AlignToKubelet}, on: []on{{n0, 40}}, to: n1, groups: "[0 1 2 3]"},
		"scope pod":                     {options: memorymanager.Options{Scope: topologymanager.PodScope}, on: []on{{n0, 40}}, to: n1, groups: "[0 1 2 3]"},
		"several unused ones":           {on: []on{{n01, 120}}, to: n23, moved: true, groups: "[0 1 2-3 2-3]"},
	} {
		t.Run(name, func(t *testing.T) {
			m := allocated(t, test.options, 4, test.on...)
			before := fmt.Sprint(m.Generation(), m.State())
			if got := m.Move("a", "app", test.to); got != test.moved {
				t.Errorf("moved: %v, want %v", got, test.moved)
			}
			var groups []string
			for _, node := range m.Nodes() {
				groups = append(groups, node.Cells.String())
			}
			if got := fmt.Sprint(groups); got != test.groups {
				t.Errorf("the groups are %s, want %s", got, test.groups)
			}
			if after := fmt.Sprint(m.Generation(), m.State()); !test.moved && after != before {
				t.Errorf("the state is\n%s\nand was\n%s", after, before)
			}
		})
	}
}

// What leaves node 0 is free for nobody, and is no part of the state: what is allocated stays where it is.
func TestLeave(t *testing.T) {
	type on = memorymanager.NodeAmount
	m := allocated(t, memorymanager.Options{Policy: topologymanager.SingleNUMANode}, 2, on{Node: 1, Bytes: 40}, on{Node: 1, Bytes: 30}, on{Node: 2, Bytes: 20})
	blocks := m.Blocks("a", "app")
	if !m.Move("a", "app", 2) {
		t.Fatal("it does not move")
	}
	state := fmt.Sprint(m.State())
	m.Leave(1, blocks)
	if got := fmt.Sprint(m.State()); got != state {
		t.Errorf("the state is\n%s\nwant\n%s", got, state)
	}
	try := func(bytes uint64) (where string, later bool) {
		c := memorymanager.Container{Pod: "new", Name: "app", Request: memorymanager.Request{{Type: memorymanager.Memory, Bytes: bytes}}}
		generation := m.Generation()
		if later = m.FitsLater(c); m.Generation() != generation {
			t.Error("a question changes something")
		}
		placement, err := m.Admit(c)
		if err != nil {
			return "rejected", later
		}
		m.Release("new", "app")
		return placement.Nodes.String(), later
	}
	for bytes, want := range map[uint64]string{30: "0 true", 40: "1 true", 41: "rejected true", 70: "rejected true", 71: "rejected false"} {
		if where, later := try(bytes); fmt.Sprint(where, " ", later) != want {
			t.Errorf("%d bytes: %s %v, want %s", bytes, where, later, want)
		}
	}
	m.Leave(0, nil)
	if where, later := try(70); where != "0" || later {
		t.Errorf("after they have left: %s %v", where, later)
	}
}

func TestRelief(t *testing.T) {
	type on = memorymanager.NodeAmount
	const n0, n1, n01 = 1, 2, 3
	stays := func(tenants []memorymanager.Tenant) { tenants[0].Stays = true }
	for name, test := range map[string]struct {
		policy  topologymanager.Policy
		on      []on
		request uint64
		change  func([]memorymanager.Tenant)
		most    int
		want    string
	}{
		"one":                    {topologymanager.Restricted, []on{{n0, 40}, {n0, 30}, {n1, 50}}, 60, nil, 1, "[{b app 0 1 30}] 0"},
		"the smallest that does": {topologymanager.Restricted, []on{{n0, 40}, {n0, 10}, {n1, 50}}, 60, nil, 1, "[{b app 0 1 10}] 0"},
		"it stays":               {topologymanager.Restricted, []on{{n0, 30}, {n0, 40}, {n1, 70}}, 60, stays, 2, "[] "},
		"its CPUs": {topologymanager.Restricted, []on{{n0, 30}, {n0, 40}, {n1, 70}}, 60, func(tenants []memorymanager.Tenant) {
			tenants[0].CPUs = nodeset.Of(0)
		}, 2, "[] "},
		"one is not enough":     {topologymanager.Restricted, []on{{n0, 25}, {n0, 25}, {n0, 20}, {n1, 50}}, 80, nil, 1, "[] "},
		"two":                   {topologymanager.Restricted, []on{{n0, 25}, {n0, 25}, {n0, 20}, {n1, 50}}, 75, nil, 2, "[{c app 0 1 20} {a app 0 1 25}] 0"},
		"off a group":           {topologymanager.SingleNUMANode, []on{{n01, 30}}, 60, nil, 1, "[{a app 0-1 0 30}] 0"},
		"two off a group":       {topologymanager.SingleNUMANode, []on{{n01, 30}, {n01, 50}}, 60, nil, 2, "[{a app 0-1 0 30} {b app 0-1 0 50}] 1"},
		"too much for any":      {topologymanager.Restricted, []on{{n0, 40}}, 300, nil, 2, "[] "},
		"the search is bounded": {topologymanager.Restricted, many(), 100, nil, 2, "[] "},
	} {
		t.Run(name, func(t *testing.T) {
			m := allocated(t, memorymanager.Options{Policy: test.policy}, 2, test.on...)
			tenants := m.Tenants()
			if test.change != nil {
				test.change(tenants)
			}
			c := memorymanager.Container{Pod: "new", Name: "app", Request: memorymanager.Request{{Type: memorymanager.Memory, Bytes: test.request}}}
			moves, nodes := m.Relief(c, tenants, test.most)
			if got := fmt.Sprint(moves, nodes); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// many are containers of different sizes that leave no room.
func many() (on []memorymanager.NodeAmount) {
	for i := range 16 {
		on = append(on, memorymanager.NodeAmount{Node: 1 + i%2, Bytes: uint64(5 + i/2)})
	}
	return on
}

// BenchmarkRelief measures the longest search for moves: there are none, and no two containers are alike.
func BenchmarkRelief(b *testing.B) {
	for _, nodes := range []int{2, 8} {
		for _, existing := range []int{20, 100, 1000} {
			b.Run(fmt.Sprintf("numa=%d/existing=%d", nodes, existing), func(b *testing.B) {
				m := benchManager(b, nodes, 0)
				most := 0.9 * 223 * gi * float64(nodes) / float64(existing)
				for i := range existing {
					request := memorymanager.Request{{Type: memorymanager.Memory, Bytes: uint64(most) + uint64(i)*4096}}
					if _, err := m.Adopt(fmt.Sprint("pod-", i), "app", request, 1<<(i%nodes)); err != nil {
						b.Fatal(err)
					}
				}
				c := memorymanager.Container{Pod: "new", Name: "app", Request: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 222 * gi * uint64(nodes) / 10}}}
				for b.Loop() {
					if moves, _ := m.Relief(c, m.Tenants(), 2); moves != nil {
						b.Fatal(moves)
					}
				}
			})
		}
	}
}
