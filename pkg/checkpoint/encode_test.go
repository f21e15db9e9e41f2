package checkpoint

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/dump"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint/internal/checksum"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint/internal/state"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// kubeletWrites writes a state with the libraries that the kubelet uses, from the types that it has.
func kubeletWrites(t testing.TB, policy string, s memorymanager.State) string {
	t.Helper()
	content := state.MemoryManagerCheckpoint{PolicyName: policy, MachineState: state.NUMANodeMap{}, Entries: state.ContainerMemoryAssignments{}}
	for _, node := range s.Nodes {
		out := &state.NUMANodeState{NumberOfAssignments: node.Assignments, MemoryMap: map[v1.ResourceName]*state.MemoryTable{}, Cells: node.Cells.IDs()}
		for _, table := range node.Memory {
			out.MemoryMap[v1.ResourceName(table.Type)] = &state.MemoryTable{
				TotalMemSize: table.Total, SystemReserved: table.SystemReserved, Allocatable: table.Allocatable, Reserved: table.Reserved, Free: table.Free,
			}
		}
		content.MachineState[node.ID] = out
	}
	for _, entry := range s.Entries {
		if content.Entries[entry.Pod] == nil {
			content.Entries[entry.Pod] = map[string][]state.Block{}
		}
		blocks := []state.Block{}
		for _, block := range entry.Blocks {
			blocks = append(blocks, state.Block{NUMAAffinity: block.Nodes.IDs(), Type: v1.ResourceName(block.Type), Size: block.Size})
		}
		content.Entries[entry.Pod][entry.Container] = blocks
	}
	content.Checksum = checksum.Checksum(fnv1a([]byte(dump.ForHash(&content))))
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// kubeletAccepts reads a text as a kubelet does: unknown keys are skipped, the checksum must be right.
func kubeletAccepts(t testing.TB, text []byte) {
	t.Helper()
	content := state.MemoryManagerCheckpoint{MachineState: state.NUMANodeMap{}, Entries: state.ContainerMemoryAssignments{}}
	if err := json.Unmarshal(text, &content); err != nil {
		t.Fatalf("a kubelet can not read it: %v\n%s", err, text)
	}
	stored := content.Checksum
	content.Checksum = 0
	if sum := checksum.Checksum(fnv1a([]byte(dump.ForHash(&content)))); sum != stored {
		t.Fatalf("a kubelet finds checksum %d, stored is %d\n%s", sum, stored, text)
	}
}

func TestKubeletTextsEncodeToTheSameText(t *testing.T) {
	reordered := 0
	for _, kubelet := range readTexts(t, "testdata/kubelet.jsonl.gz") {
		file, err := Decode([]byte(kubelet.Text))
		if err != nil {
			t.Errorf("%s: %v\n%s", kubelet.Name, err, kubelet.Text)
			continue
		}
		if !file.Verified || file.Format != V1 {
			t.Errorf("%s: verified %v, format %s", kubelet.Name, file.Verified, file.Format)
		}
		again := string(Encode(file.Policy, file.State))
		// The kubelet writes a container's blocks in no order, and the checksum depends on it.
		if want := kubeletWrites(t, file.Policy, file.State); again != want {
			t.Errorf("%s: %s", kubelet.Name, cmp.Diff(want, again))
		}
		if len(again) == len(kubelet.Text) && again != kubelet.Text {
			reordered++
		}
		if again != kubelet.Text && !hasSeveralBlocks(file.State) {
			t.Errorf("%s: %s", kubelet.Name, cmp.Diff(kubelet.Text, again))
		}
	}
	t.Logf("%d texts had a container's blocks in another order", reordered)
}

func hasSeveralBlocks(s memorymanager.State) bool {
	return slices.ContainsFunc(s.Entries, func(e memorymanager.Entry) bool { return len(e.Blocks) > 1 }) ||
		slices.ContainsFunc(s.Pods, func(e memorymanager.PodEntry) bool { return len(e.Blocks) > 1 })
}

// randomState has what a kubelet may meet and a little more; its sums are not right.
func randomState(random *rand.Rand) memorymanager.State {
	names := []string{"memory", "hugepages-1Gi", "hugepages-2Mi"}
	odd := []string{"", "a", "b-c", `quo"te`, `back\slash`, "<&>", "ümläut", "line\nend", "\u2028", "10", "2"}
	number := func() uint64 { return random.Uint64() >> random.IntN(64) }
	set := func() nodeset.Set { return nodeset.Set(max(1, number())) }
	var s memorymanager.State
	for id := range nodeset.Max {
		if random.IntN(8) > 0 {
			continue
		}
		node := memorymanager.NodeState{ID: id, Assignments: random.IntN(5), Cells: set()}
		for _, name := range []string{"hugepages-1Gi", "hugepages-2Mi", "memory"} {
			if random.IntN(3) > 0 {
				node.Memory = append(node.Memory, memorymanager.TypeTable{Type: memorymanager.MemoryType(name),
					Table: memorymanager.Table{Total: number(), SystemReserved: number(), Allocatable: number(), Reserved: number(), Free: number()}})
			}
		}
		s.Nodes = append(s.Nodes, node)
	}
	for pod := range random.IntN(6) {
		for _, container := range odd[:random.IntN(len(odd))] {
			entry := memorymanager.Entry{Pod: odd[pod*2], Container: container}
			for range random.IntN(3) {
				entry.Blocks = append(entry.Blocks, memorymanager.Block{Nodes: set(), Type: memorymanager.MemoryType(names[random.IntN(3)]), Size: number()})
			}
			s.Entries = append(s.Entries, entry)
		}
	}
	return sortedState(s)
}

func sortedState(s memorymanager.State) memorymanager.State {
	byPod := map[string]map[string]memorymanager.Entry{}
	for _, entry := range s.Entries {
		if byPod[entry.Pod] == nil {
			byPod[entry.Pod] = map[string]memorymanager.Entry{}
		}
		byPod[entry.Pod][entry.Container] = entry
	}
	s.Entries = nil
	for _, pod := range sortedKeys(byPod) {
		for _, container := range sortedKeys(byPod[pod]) {
			s.Entries = append(s.Entries, byPod[pod][container])
		}
	}
	return s
}

func TestAnyStateEncodesAsTheKubeletWritesIt(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		s := randomState(random)
		got := string(Encode(PolicyStatic, s))
		if want := kubeletWrites(t, PolicyStatic, s); got != want {
			t.Fatal(cmp.Diff(want, got))
		}
	}
}

func TestTheTextFollowsDecisions(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := randomState(random)
	kept := s
	for step := range 500 {
		s.Nodes = randomState(random).Nodes
		pod := strconv.Itoa(random.IntN(40))
		s.Entries = slices.DeleteFunc(slices.Clone(s.Entries), func(e memorymanager.Entry) bool { return e.Pod == pod })
		var entries []memorymanager.Entry
		for i := range random.IntN(3) {
			entries = append(entries, memorymanager.Entry{Pod: pod, Container: strconv.Itoa(i), Blocks: []memorymanager.Block{{Nodes: 3, Type: "memory", Size: random.Uint64N(50)}}})
		}
		s.Entries = append(s.Entries, entries...)
		s = sortedState(s)
		if random.IntN(10) == 0 {
			kept = s
		} else {
			kept = decided(kept, s.Nodes, memorymanager.PodAllocations{Pod: pod, Entries: entries})
		}
		if got, want := string(appendFile(nil, kept, "", PolicyStatic)), kubeletWrites(t, PolicyStatic, s); got != want {
			t.Fatalf("step %d: %s", step, cmp.Diff(want, got))
		}
	}
}

func TestInvalidUTF8StaysReadable(t *testing.T) {
	s := memorymanager.State{
		Nodes:   []memorymanager.NodeState{{ID: 0, Cells: 1, Memory: []memorymanager.TypeTable{{Type: "mem\xff"}}}},
		Entries: []memorymanager.Entry{{Pod: "po\xffd", Container: "c\xfe", Blocks: []memorymanager.Block{{Nodes: 1, Type: "mem\xff", Size: 1}}}},
	}
	text := Encode(PolicyStatic, s)
	kubeletAccepts(t, text)
	if file, err := Decode(text); err != nil || file.State.Entries[0].Pod != "po\uFFFDd" {
		t.Fatal(err, file)
	}
}

// overfull has containers allocated beyond what node 0 has, as after a start with less memory.
func overfull() memorymanager.State {
	return memorymanager.State{
		Nodes: []memorymanager.NodeState{
			{ID: 0, Assignments: 2, Cells: 3, Memory: []memorymanager.TypeTable{{Type: "memory", Table: memorymanager.Table{Total: 100, Allocatable: 100, Reserved: 100}}}},
			{ID: 1, Assignments: 2, Cells: 3, Memory: []memorymanager.TypeTable{{Type: "memory", Table: memorymanager.Table{Total: 100, Allocatable: 100, Reserved: 50, Free: 50}}}},
		},
		Entries: []memorymanager.Entry{
			{Pod: "a", Container: "c", Blocks: []memorymanager.Block{{Nodes: 3, Type: "memory", Size: 120, PerNode: []memorymanager.NodeAmount{{Node: 0, Bytes: 110}, {Node: 1, Bytes: 10}}}}},
			{Pod: "b", Container: "c", Blocks: []memorymanager.Block{{Nodes: 3, Type: "memory", Size: 60, PerNode: []memorymanager.NodeAmount{{Node: 0, Bytes: 20}, {Node: 1, Bytes: 40}}}}},
		},
	}
}

func TestAmountsThatTheNodesDoNotTellSurvive(t *testing.T) {
	s := overfull()
	text := Encode(PolicyStatic, s)
	kubeletAccepts(t, text)
	file, err := Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, file.State); diff != "" {
		t.Fatal(diff)
	}
	pretty, err := json.MarshalIndent(json.RawMessage(text), "", "   ")
	if err != nil {
		t.Fatal(err)
	}
	if file, err := Decode(pretty); err != nil || !cmp.Equal(s, file.State) {
		t.Fatalf("pretty-printed: %v", err)
	}
	changed := strings.Replace(string(text), `"1":40`, `"1":41`, 1)
	if _, err := Decode([]byte(changed)); err == nil || !strings.Contains(err.Error(), "perNodeChecksum is ") {
		t.Fatalf("a changed amount: %v", err)
	}
}

func TestAmountsAreLeftOutAfterADecision(t *testing.T) {
	after := decided(overfull(), overfull().Nodes, memorymanager.PodAllocations{Pod: "b", Entries: withoutAmounts(overfull()).Entries[1:]})
	if text := appendFile(nil, after, "", PolicyStatic); strings.Contains(string(text), `"perNode"`) {
		t.Fatalf("old amounts are still there: %s", text)
	}
}

func TestAmountsThatTheNodesTellAreNotWritten(t *testing.T) {
	m := benchManager(t, 2, 4)
	for _, pod := range []string{"a", "b", "c"} {
		if _, err := m.Allocate(memorymanager.Container{Pod: pod, Name: "c", Request: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 50 * gib}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Adopt("over", "c", memorymanager.Request{{Type: memorymanager.Memory, Bytes: gib}}, nodeset.Of(1)); err != nil {
		t.Fatal(err)
	}
	if text := string(Encode(PolicyStatic, m.State())); strings.Contains(text, "perNode") {
		t.Fatal(text)
	}
}

// A create waits for the text. encoding/json and fmt would allocate for each value in it.
func TestEncodingIsNoReflection(t *testing.T) {
	const containers = 250
	w := Writer{state: withoutAmounts(benchManager(t, 8, containers).State())}
	if got := testing.AllocsPerRun(10, func() { _, _ = w.content(nil) }); got > 4*containers {
		t.Errorf("the text of %d containers takes %v allocations, want at most 4 for each", containers, got)
	}
}
