package status

import (
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// shortPod has a container that was resized from 8Gi to 10Gi and has four CPUs on two nodes.
func shortPod() *ledger.PodView {
	return &ledger.PodView{Namespace: "default", Name: "database", UID: "1", Class: "Guaranteed", Containers: []ledger.ContainerView{{
		Name: "postgres", State: ledger.Running, Limit: 10 << 30, Nodes: nodeset.Of(0, 1), Pinning: "pinned under restricted",
		Blocks:        []memorymanager.Block{{Nodes: nodeset.Of(0), Type: memorymanager.Memory, Size: 17 << 29}},
		PendingResize: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 3 << 29}}, CPUs: map[int]int{0: 2, 1: 2},
	}}}
}

func TestAShortContainerIsShown(t *testing.T) {
	view := &ledger.View{Pods: []*ledger.PodView{shortPod()}}
	document := Sources{View: func() *ledger.View { return view }}.Make()
	c := document.Pods[0].Containers[0]
	if c.PendingResize.Of(memorymanager.Memory) != 3<<29 || c.CPUs[1] != 2 || c.CpusetMems != "0-1" {
		t.Errorf("the document has %+v", c)
	}
	var table strings.Builder
	if err := document.Table(&table, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"postgres (pending resize)  Guaranteed  0-1",
		"PENDING RESIZES\ndefault/database postgres: 1.5Gi of memory that a resize asks for has no room on node 0; until it has, the container may use nodes 0-1\n",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("want %q in\n%s", want, table.String())
		}
	}
}

func TestAShortContainerIsExplained(t *testing.T) {
	pod := shortPod()
	var text strings.Builder
	sources := Sources{View: func() *ledger.View { return &ledger.View{} }}
	documents := sources.Explain([]ledger.Explanation{{Pod: pod, Container: pod.Containers[0]}})
	if err := WriteExplanations(&text, documents); err != nil {
		t.Fatal(err)
	}
	const want = `default/database postgres (Guaranteed)
  pinned under restricted
  a pending resize lacks 1.5Gi of memory: tried again when memory is released, and until then it may use all nodes
  2 of its 4 CPUs are on node 1, its memory on node 0: half of the CPUs are remote
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
}

func TestRemoteCPUs(t *testing.T) {
	for want, test := range map[string]struct {
		cpus   map[int]int
		memory nodeset.Set
	}{
		"": {map[int]int{0: 2}, 0},
		"its CPUs (4) are on node 0, its memory on node 0: none of the CPUs is remote":       {map[int]int{0: 4}, nodeset.Of(0)},
		"its CPUs (4) are on nodes 0-1, its memory on nodes 0-1: none of the CPUs is remote": {map[int]int{0: 3, 1: 1}, nodeset.Of(0, 1)},
		"2 of its 4 CPUs are on node 1, its memory on node 0: half of the CPUs are remote":   {map[int]int{0: 2, 1: 2}, nodeset.Of(0)},
		"1 of its 3 CPUs is on node 0, its memory on node 1: 33 % of the CPUs are remote":    {map[int]int{0: 1, 1: 2}, nodeset.Of(1)},
		"4 of its 4 CPUs are on nodes 0,2, its memory on node 1: all of the CPUs are remote": {map[int]int{0: 2, 2: 2}, nodeset.Of(1)},
	} {
		if got := remoteCPUs(test.cpus, test.memory); got != want {
			t.Errorf("%v, memory on %s: got %q, want %q", test.cpus, test.memory, got, want)
		}
	}
	if got := remoteCPUs(nil, nodeset.Of(0)); got != "" {
		t.Errorf("without exclusive CPUs: %q", got)
	}
}
