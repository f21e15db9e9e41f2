package status

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

func TestExplainAStateFile(t *testing.T) {
	const gi = 1 << 30
	options := memorymanager.Options{Policy: topologymanager.Restricted}
	node := func(id int) memorymanager.NodeCapacity {
		return memorymanager.NodeCapacity{ID: id, Total: 64 * gi, Pools: []memorymanager.Pool{{PageSize: 2 << 20, Count: 512}},
			Reserved: memorymanager.Request{{Type: memorymanager.Memory, Bytes: gi}}}
	}
	manager, err := memorymanager.New([]memorymanager.NodeCapacity{node(0), node(1)}, options)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []memorymanager.Container{
		{Pod: "uid-1", Name: "small", Request: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 64 << 20}, {Type: "memory", Bytes: 4 * gi}}},
		{Pod: "uid-1", Name: "other", Request: memorymanager.Request{{Type: "memory", Bytes: 60 * gi}}},
	} {
		if _, err := manager.Allocate(c); err != nil {
			t.Fatal(err)
		}
	}
	documents, err := ExplainState(manager.State(), options, "uid-1", "")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := WriteExplanations(&text, documents); err != nil {
		t.Fatal(err)
	}
	golden(t, "explain-state.txt", text.String())
	got, want := documents[0].Placement.Blocks[0], memorymanager.Block{Nodes: nodeset.Of(1), Type: "memory", Size: 60 * gi, PerNode: memorymanager.NodeAmounts{{Node: 1, Bytes: 60 * gi}}}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Errorf("the first block of %s (-want +got):\n%s", documents[0].Container, difference)
	}
	for name, test := range map[string]struct{ pod, container, err string }{
		"no such pod":       {"uid-2", "", `no allocation of pod "uid-2"; the state file knows pods by UID`},
		"no such container": {"uid-1", "third", `no allocation of container "third" of pod "uid-1"`},
		"one container":     {"uid-1", "small", ""},
	} {
		documents, err := ExplainState(manager.State(), options, test.pod, test.container)
		if test.err == "" && (err != nil || len(documents) != 1) || test.err != "" && (err == nil || err.Error() != test.err) {
			t.Errorf("%s: %d documents, error %v, want %q", name, len(documents), err, test.err)
		}
	}
}
