package checkpoint

import (
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// TestCheckFindsOnlyTheKubeletsOwnDefects: of what kubelets wrote, only the states after a known defect contradict
// themselves.
func TestCheckFindsOnlyTheKubeletsOwnDefects(t *testing.T) {
	defects := 0
	for _, kubelet := range readTexts(t, "testdata/kubelet.jsonl.gz") {
		file, err := Decode([]byte(kubelet.Text))
		if err != nil {
			t.Fatal(err)
		}
		findings := Check(file.State)
		if len(findings) > 0 {
			defects++
		}
		known := strings.HasPrefix(kubelet.Name, "c-bug-") || strings.HasPrefix(kubelet.Name, "c-underflow-")
		if len(findings) > 0 && !known {
			t.Errorf("%s: %v", kubelet.Name, findings)
		}
	}
	if defects == 0 {
		t.Error("the known defects are not found")
	}
}

// twoNodes is a good state: a container over both nodes of a group, with the amounts that the nodes tell.
func twoNodes() memorymanager.State {
	s := overfull()
	s.Entries[0].Blocks[0] = memorymanager.Block{Nodes: 3, Type: "memory", Size: 90, PerNode: []memorymanager.NodeAmount{{Node: 0, Bytes: 80}, {Node: 1, Bytes: 10}}}
	return s
}

func TestCheck(t *testing.T) {
	memory := func(s memorymanager.State, node int) *memorymanager.Table { return &s.Nodes[node].Memory[0].Table }
	tests := map[string]struct {
		change func(s *memorymanager.State)
		want   []string
	}{
		"good":           {func(*memorymanager.State) {}, nil},
		"total":          {func(s *memorymanager.State) { memory(*s, 0).Total = 99 }, []string{"node 0: memory: allocatable is 100, but total 99 without systemReserved 0 and huge pages is 99", "node 0: memory: allocatable 100 is more than total 99: what is reserved and the huge pages exceed the memory"}},
		"free":           {func(s *memorymanager.State) { memory(*s, 0).Free = 1 }, []string{"node 0: memory: reserved 100 + free 1 is 101, but allocatable is 100"}},
		"not in group":   {func(s *memorymanager.State) { s.Nodes[0].Cells = 2 }, []string{"node 0: its group [1] does not contain it", "node 0: is in group [1], but node 1 is in [0-1]", "node 1: is in group [0-1], but node 0 is in [1]", "pod a container c: memory is on nodes [0-1], but node 0 is in group [1]", "pod b container c: memory is on nodes [0-1], but node 0 is in group [1]"}},
		"group too wide": {func(s *memorymanager.State) { s.Nodes[0].Cells, s.Nodes[1].Cells = 7, 7 }, []string{"node 0: its group [0-2] has node 2, which is not in machineState", "node 1: its group [0-2] has node 2, which is not in machineState", "pod a container c: memory is on nodes [0-1], but node 0 is in group [0-2]", "pod a container c: memory is on nodes [0-1], but node 1 is in group [0-2]", "pod b container c: memory is on nodes [0-1], but node 0 is in group [0-2]", "pod b container c: memory is on nodes [0-1], but node 1 is in group [0-2]"}},
		"idle group":     {func(s *memorymanager.State) { s.Nodes[0].Assignments = 0 }, []string{"node 0: is in group [0-1] without an assignment"}},
		"assignments":    {func(s *memorymanager.State) { s.Nodes[1].Assignments = 3 }, []string{"node 1: numberOfAssignments is 3, but 2 blocks are on it"}},
		"node":           {func(s *memorymanager.State) { s.Entries[1].Blocks[0].Nodes = 8 }, []string{"pod b container c: memory is on node 3, which is not in machineState"}},
		"type":           {func(s *memorymanager.State) { s.Entries[1].Blocks[0].Type = "hugepages-2Mi" }, []string{"pod b container c: hugepages-2Mi is on node 0, which has no such memory", "pod b container c: hugepages-2Mi is on node 1, which has no such memory"}},
		"size":           {func(s *memorymanager.State) { s.Entries[1].Blocks[0].Size = 61 }, []string{"nodes 0-1: memory: reserved is 150, but the containers' blocks are 151"}},
		"amounts":        {func(s *memorymanager.State) { s.Entries[1].Blocks[0].PerNode[0].Bytes = 21 }, []string{"node 0: memory: reserved is 100, but the blocks' amounts on it are 101"}},
		"amount outside": {func(s *memorymanager.State) { s.Entries[1].Blocks[0].PerNode[1].Node = 5 }, []string{"pod b container c: memory has 40 on node 5, outside of its nodes [0-1]", "node 1: memory: reserved is 50, but the blocks' amounts on it are 10"}},
		"some amounts":   {func(s *memorymanager.State) { s.Entries[1].Blocks[0].PerNode = nil }, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := twoNodes()
			test.change(&s)
			checkFindings(t, Check(s), test.want)
		})
	}
}

func checkFindings(t *testing.T, findings []Finding, want []string) {
	t.Helper()
	var got []string
	for _, finding := range findings {
		if finding.Do == "" {
			t.Errorf("nothing to do about %v", finding)
		}
		got = append(got, finding.Where+": "+finding.What)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestCompare(t *testing.T) {
	pages := memorymanager.TypeTable{Type: "hugepages-2Mi", Table: memorymanager.Table{Total: 8, Allocatable: 8, Free: 8}}
	none := memorymanager.TypeTable{Type: "hugepages-1Gi"}
	tests := map[string]struct {
		change    func(nodes []memorymanager.NodeState) []memorymanager.NodeState
		tolerance uint64
		want      []string
	}{
		"same": {func(n []memorymanager.NodeState) []memorymanager.NodeState { return n }, 0, nil},
		"empty pool": {func(n []memorymanager.NodeState) []memorymanager.NodeState {
			n[0].Memory = append(n[0].Memory, none)
			return n
		}, 0, nil},
		"new pool": {func(n []memorymanager.NodeState) []memorymanager.NodeState {
			n[0].Memory = append(n[0].Memory, pages)
			return n
		}, 0, []string{"node 0: hugepages-2Mi: 8 on the machine, none in the file"}},
		"new node": {func(n []memorymanager.NodeState) []memorymanager.NodeState {
			return append(n, memorymanager.NodeState{ID: 2})
		}, 0, []string{"node 2: is on the machine, but not in the file"}},
		"node gone":   {func(n []memorymanager.NodeState) []memorymanager.NodeState { return n[:1] }, 0, []string{"node 1: is in the file, but not among the machine's nodes (2 assignments)"}},
		"tolerated":   {func(n []memorymanager.NodeState) []memorymanager.NodeState { n[0].Memory[0].Total = 110; return n }, 10, nil},
		"total":       {func(n []memorymanager.NodeState) []memorymanager.NodeState { n[0].Memory[0].Total = 111; return n }, 10, []string{"node 0: memory: total is 100 in the file and 111 on the machine, 11 apart (tolerated 10)"}},
		"allocatable": {func(n []memorymanager.NodeState) []memorymanager.NodeState { n[1].Memory[0].Allocatable = 80; return n }, 10, []string{"node 1: memory: allocatable is 100 in the file and 80 on the machine, 20 apart (tolerated 10)"}},
		"system reserved": {func(n []memorymanager.NodeState) []memorymanager.NodeState {
			n[1].Memory[0].SystemReserved = 1
			return n
		}, 10, []string{"node 1: memory: systemReserved is 0 in the file and 1 here"}},
		"less than allocated": {func(n []memorymanager.NodeState) []memorymanager.NodeState { n[0].Memory[0].Allocatable = 89; return n }, 10, []string{"node 0: memory: allocatable is 100 in the file and 89 on the machine, 11 apart (tolerated 10)", "node 0: memory: containers have 100, the machine gives 89"}},
		"tolerated, but too small": {func(n []memorymanager.NodeState) []memorymanager.NodeState {
			n[0].Memory[0].Allocatable, n[1].Memory[0].Allocatable = 95, 14
			return n
		}, 90, []string{"nodes 0-1: memory: the memory assignment does not fit the machine state: containers have 150, the machine gives 109"}},
		"type gone": {func(n []memorymanager.NodeState) []memorymanager.NodeState { n[1].Memory = nil; return n }, 10, []string{"node 1: memory: 100 in the file, none on the machine"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			checkFindings(t, Compare(twoNodes(), test.change(twoNodes().Nodes), test.tolerance), test.want)
		})
	}
}

func TestHugePagesAreComparedExactly(t *testing.T) {
	with := func(pages uint64) memorymanager.State {
		s := twoNodes()
		s.Nodes[1].Memory = append(s.Nodes[1].Memory, memorymanager.TypeTable{Type: "hugepages-2Mi", Table: memorymanager.Table{Total: pages, Allocatable: pages}})
		return s
	}
	checkFindings(t, Compare(with(8), with(8).Nodes, 100), nil)
	checkFindings(t, Compare(with(8), with(7).Nodes, 100), []string{"node 1: hugepages-2Mi: total is 8 in the file and 7 on the machine, 1 apart (tolerated 0)"})
}

func TestReserveAs(t *testing.T) {
	s := twoNodes()
	s.Nodes[0].Memory[0].SystemReserved = 7
	s.Nodes[1].Memory[0].SystemReserved = 700 // more than there is
	nodes := []memorymanager.NodeCapacity{{ID: 0, Total: 100}, {ID: 1, Total: 100}, {ID: 2, Reserved: memorymanager.Request{{Type: "memory", Bytes: 1}}}}
	got := ReserveAs(s, nodes)
	if len(got[0].Reserved) != 1 || got[0].Reserved[0].Bytes != 7 || got[1].Reserved != nil || got[2].Reserved != nil || nodes[2].Reserved == nil {
		t.Errorf("%+v", got)
	}
}
