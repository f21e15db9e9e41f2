package memorymanager

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

func TestBlocksAndRequestsReadBackFromJSON(t *testing.T) {
	type allocation struct {
		PendingResize Request
		Blocks        []Block
	}
	for text, want := range map[string]allocation{
		`{"PendingResize":{},"Blocks":null}`: {},
		`{"PendingResize":{"hugepages-2Mi":2,"memory":1},"Blocks":[{"numaNodes":[0,10],"type":"memory","size":9,"perNode":{"0":4,"10":5}}]}`: {
			Request{{"hugepages-2Mi", 2}, {Memory, 1}},
			[]Block{{Nodes: nodeset.Of(0, 10), Type: Memory, Size: 9, PerNode: NodeAmounts{{0, 4}, {10, 5}}}},
		},
		`{"PendingResize":{},"Blocks":[{"numaNodes":[2],"type":"memory","size":9,"perNode":{}}]}`: {Blocks: []Block{{Nodes: nodeset.Of(2), Type: Memory, Size: 9}}},
	} {
		var got allocation
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		if difference := cmp.Diff(want, got); difference != "" {
			t.Errorf("%s is read as (-want +got):\n%s", text, difference)
		}
		if written, err := json.Marshal(got); err != nil || string(written) != text {
			t.Errorf("%s is written as %s, %v", text, written, err)
		}
	}
	var got allocation
	const negative = `{"PendingResize":{"memory":-1}}`
	if err := json.Unmarshal([]byte(negative), &got); err == nil {
		t.Errorf("%s is read as %v", negative, got)
	}
}
