package status

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// A container with claims has its nodes from the scheduler: it is in no group, and takes no room of one.
func TestClaimsAreInNoGroup(t *testing.T) {
	both := nodeset.Of(0, 1)
	block := func(nodes nodeset.Set, bytes uint64) []memorymanager.Block {
		return []memorymanager.Block{{Nodes: nodes, Type: memorymanager.Memory, Size: bytes}}
	}
	state := func(id int) memorymanager.NodeState {
		return memorymanager.NodeState{ID: id, Cells: both, Memory: []memorymanager.TypeTable{
			{Type: memorymanager.Memory, Table: memorymanager.Table{Allocatable: 10}},
		}}
	}
	view := &ledger.View{Nodes: []memorymanager.NodeState{state(0), state(1)}, Pods: []*ledger.PodView{
		{UID: "a", Namespace: "default", Name: "a", Containers: []ledger.ContainerView{{Name: "app", Blocks: block(both, 8)}}},
		{UID: "b", Namespace: "default", Name: "b", Containers: []ledger.ContainerView{
			{Name: "one", Claims: []string{"default/one"}, Blocks: append(block(nodeset.Of(0), 9), block(nodeset.Of(1), 9)...)},
		}},
	}}
	view.NotMoved = []ledger.NotMoved{{Reason: ledger.Deficit, UID: "a", Container: "app", Why: "no room"}, {Reason: ledger.Consolidation, UID: "a", Container: "app", Why: "too much"},
		{Reason: ledger.Consolidation, UID: "b", Container: "app", Why: "another"}}
	want := []Group{{Nodes: nodeset.Of(0, 1), Fits: []Fit{{Namespace: "default", Pod: "a", Container: "app", Held: "too much"}}}}
	if diff := cmp.Diff(want, dissolvable(view)); diff != "" {
		t.Error(diff)
	}
}
