package tables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

func TestNodes(t *testing.T) {
	table := func(total, reserved, allocated uint64) memorymanager.Table {
		return memorymanager.Table{Total: total << 30, SystemReserved: reserved << 30, Allocatable: (total - reserved) << 30,
			Reserved: allocated << 30, Free: (total - reserved - allocated) << 30}
	}
	var out strings.Builder
	Nodes(&out, []memorymanager.NodeState{
		{ID: 0, Cells: nodeset.Of(0, 1), Memory: []memorymanager.TypeTable{
			{Type: "hugepages-1Gi"}, {Type: "hugepages-2Mi", Table: table(2, 0, 0)}, {Type: "memory", Table: table(40, 4, 20)}}},
		{ID: 1, Cells: nodeset.Of(0, 1), Memory: []memorymanager.TypeTable{{Type: "memory", Table: table(400, 0, 1)}}},
	})
	want := `NUMA NODES   (▒ reserved or in huge page pools, █ allocated, ░ free)
NODE  GROUP  TYPE           TOTAL  RESERVED  ALLOCATED  FREE   
0     0-1    hugepages-2Mi  2Gi    0         0          2Gi    ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
             memory         40Gi   4Gi       20Gi       16Gi   ▒▒▒▒████████████████████░░░░░░░░░░░░░░░░
1     0-1    memory         400Gi  0         1Gi        399Gi  █░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
`
	if difference := cmp.Diff(want+"\n", out.String()); difference != "" {
		t.Error(difference)
	}
	out.Reset()
	if Nodes(&out, nil); out.Len() > 0 {
		t.Errorf("%q for no nodes", out.String())
	}
}

func TestBarIsAlwaysWhole(t *testing.T) {
	for name, table := range map[string]memorymanager.Table{
		"nothing":        {},
		"wrong sums":     {Total: 10, Reserved: 20, Free: 30},
		"a byte is seen": {Total: 1 << 40, Reserved: 1, Free: 1<<40 - 1},
	} {
		if got := len([]rune(bar(table))); got != barWidth {
			t.Errorf("%s: %d characters, want %d", name, got, barWidth)
		}
	}
}
