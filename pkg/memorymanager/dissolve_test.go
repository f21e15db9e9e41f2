package memorymanager_test

import (
	"fmt"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

func TestDissolvable(t *testing.T) {
	nodes := func(group nodeset.Set) (states []memorymanager.NodeState) {
		for id := range 3 {
			state := memorymanager.NodeState{ID: id, Cells: nodeset.Of(id), Memory: []memorymanager.TypeTable{
				{Type: "memory", Table: memorymanager.Table{Allocatable: 100}}, {Type: "hugepages-2Mi", Table: memorymanager.Table{Allocatable: 10}}}}
			if group.Has(id) {
				state.Cells = group
			}
			states = append(states, state)
		}
		return states
	}
	tenant := func(name string, bytes uint64, on ...int) memorymanager.Tenant {
		return memorymanager.Tenant{Pod: name, Container: "c", Blocks: []memorymanager.Block{{Type: "memory", Size: bytes, Nodes: nodeset.Of(on...)}}}
	}
	onCPUs := func(t memorymanager.Tenant, cpus ...int) memorymanager.Tenant {
		t.CPUs = nodeset.Of(cpus...)
		return t
	}
	both := nodeset.Of(0, 1)
	pages := tenant("a", 10, 0, 1)
	pages.Blocks = append(pages.Blocks, memorymanager.Block{Type: "hugepages-2Mi", Size: 12, Nodes: both})
	whole := tenant("a", 10, 0, 1)
	whole.Container = ""
	for name, test := range map[string]struct {
		group   nodeset.Set
		tenants []memorymanager.Tenant
		want    string
	}{
		"no group":                      {0, []memorymanager.Tenant{tenant("a", 10, 0)}, "[]"},
		"a container that needs both":   {both, []memorymanager.Tenant{tenant("a", 150, 0, 1), tenant("b", 10, 0, 1)}, "[]"},
		"one that would fit":            {both, []memorymanager.Tenant{tenant("a", 40, 0, 1)}, "[{0-1  [{a c 0}]}]"},
		"the largest first":             {both, []memorymanager.Tenant{tenant("a", 40, 0, 1), tenant("b", 90, 0, 1)}, "[{0-1  [{b c 0} {a c 1}]}]"},
		"each, but not all":             {both, []memorymanager.Tenant{tenant("a", 70, 0, 1), tenant("b", 60, 0, 1), tenant("c", 50, 0, 1)}, "[]"},
		"others are not asked":          {both, []memorymanager.Tenant{tenant("a", 40, 0, 1), tenant("b", 500, 2)}, "[{0-1  [{a c 0}]}]"},
		"its CPUs":                      {both, []memorymanager.Tenant{onCPUs(tenant("a", 40, 0, 1), 1)}, "[{0-1  [{a c 1}]}]"},
		"no room at its CPUs":           {both, []memorymanager.Tenant{tenant("a", 90, 0, 1), onCPUs(tenant("b", 40, 0, 1), 0)}, "[]"},
		"CPUs on several nodes":         {both, []memorymanager.Tenant{onCPUs(tenant("a", 40, 0, 1), 0, 1)}, "[]"},
		"huge pages":                    {both, []memorymanager.Tenant{pages}, "[]"},
		"one that does not span it":     {both, []memorymanager.Tenant{tenant("a", 40, 0, 1), tenant("b", 10, 0)}, "[{0-1  [{a c 0}]}]"},
		"a pod with its own allocation": {both, []memorymanager.Tenant{whole}, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			type place struct {
				Pod, Container string
				Nodes          nodeset.Set
			}
			type dissolution struct {
				Group, Rest nodeset.Set
				Places      []place
			}
			all := []dissolution{}
			for _, d := range memorymanager.Dissolvable(nodes(test.group), test.tenants) {
				found := dissolution{Group: d.Group, Rest: d.Rest}
				for _, m := range d.Moves {
					if m.From != d.Group {
						t.Errorf("%+v leaves other nodes than the group", m)
					}
					found.Places = append(found.Places, place{m.Pod, m.Container, m.To})
				}
				all = append(all, found)
			}
			if got := fmt.Sprint(all); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
