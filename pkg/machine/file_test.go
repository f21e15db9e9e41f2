package machine

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"
)

// sameCPUs compares sets of CPUs; the zero value and an empty set are the same.
var sameCPUs = cmp.Comparer(func(a, b cpuset.CPUSet) bool { return a.String() == b.String() })

// parse is the hardware of a machine file.
func parse(name string, data []byte) (Machine, error) {
	described, err := Describe(name, data)
	return described.Machine, err
}

func TestMachineFile(t *testing.T) {
	m, err := parse("m.yaml", []byte(`
pageSize: 64Ki
swap: 1Gi
nodes:
- {id: 5, memory: 2Gi, cpus: "2-3"}
- {id: 2, memory: 134987354112, cpus: "0-1", hugepages: {"1Gi": 1, 2Mi: 512}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Machine{PageSize: 65536, Swap: 1 << 30, MemTotal: 134987354112 + 2<<30, Nodes: []Node{
		{ID: 2, Memory: 134987354112, CPUs: cpuset.New(0, 1), Hugepages: []Pool{{2 << 20, 512}, {1 << 30, 1}}, Distances: []int{10, 20}},
		{ID: 5, Memory: 2 << 30, CPUs: cpuset.New(2, 3), Distances: []int{20, 10}},
	}}
	if diff := cmp.Diff(want, m, sameCPUs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBadMachineFileIsOneClearError(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"empty":               {"", "m.yaml: nodes: want at least one NUMA node"},
		"no nodes":            {"nodes: []", "m.yaml:1: nodes: want at least one NUMA node"},
		"a Kubernetes object": {"kind: Node", `m.yaml:1: unknown field "kind": want a machine file, as the command machine prints it`},
		"unknown field":       {"nodes:\n- {id: 0, memroy: 1Gi}", `m.yaml:2: nodes[0]: unknown field "memroy", did you mean "memory"?`},
		"no id":               {"nodes:\n- {memory: 1Gi}", "m.yaml:2: nodes[0]: id is missing"},
		"negative id":         {"nodes: [{id: -1, memory: 1Gi}]", "m.yaml:1: nodes[0].id: want a node id from 0 to 1023, got -1"},
		"id 1024":             {"nodes: [{id: 1024, memory: 1Gi}]", "m.yaml:1: nodes[0].id: want a node id from 0 to 1023, got 1024"},
		"id twice":            {"nodes:\n- {id: 0, memory: 1Gi}\n- {id: 0, memory: 1Gi}", "m.yaml:3: nodes[1].id: node 0 is there twice"},
		"id a text":           {"nodes: [{id: one, memory: 1Gi}]", `m.yaml:1: nodes[0].id: want a whole number, got "one"`},
		"memory negative":     {"nodes: [{id: 0, memory: -1}]", `m.yaml:1: nodes[0].memory: "-1" is negative`},
		"memory in bytes":     {"nodes: [{id: 0, memory: 64}]", `m.yaml:1: nodes[0].memory: 64 is in bytes; want for example 64Gi`},
		"memory fraction":     {"nodes: [{id: 0, memory: 0.5}]", `m.yaml:1: nodes[0].memory: "0.5" is not a whole number of bytes`},
		"memory overflow":     {"nodes: [{id: 0, memory: 8Ei}]", `m.yaml:1: nodes[0].memory: "8Ei" is more than a signed 64-bit number of bytes`},
		"memory sum overflow": {"nodes:\n- {id: 0, memory: 7Ei}\n- {id: 1, memory: 7Ei}", "m.yaml:3: nodes[1].memory: the nodes together have more than a signed 64-bit number of bytes"},
		"memory a list":       {"nodes: [{id: 0, memory: [1]}]", "m.yaml:1: nodes[0].memory: want a text, got a list"},
		"no memory":           {"memTotal: 1Gi\nnodes: [{id: 0}, {id: 1, memory: 0}]", "m.yaml:2: nodes: want memory on at least one NUMA node, got 0 on each"},
		"less than a node":    {"nodes: [{id: 0, memory: 1Gi}, {id: 1, memory: 2Gi}]\nmemTotal: 1Gi", "m.yaml:2: memTotal: 1Gi are less than the 2Gi of NUMA node 1"},
		"cpus":                {"nodes: [{id: 0, memory: 1Gi, cpus: 3-}]", `m.yaml:1: nodes[0].cpus: CPU list "3-" is not in the form 0-3,8`},
		"cpus beyond":         {"nodes: [{id: 0, memory: 1Gi, cpus: 0-99999999}]", `m.yaml:1: nodes[0].cpus: CPU list "0-99999999": CPU ids end at 8191`},
		"a quota's resource":  {"nodes: [{id: 0, memory: 1Gi}]\nresources: {requests.nvidia.com/gpu: 1}", `m.yaml:2: resources: "requests.nvidia.com/gpu" is how a ResourceQuota names "nvidia.com/gpu"; want that`},
		"cpus on two nodes":   {"nodes:\n- {id: 0, memory: 1Gi, cpus: 0-3}\n- {id: 1, memory: 1Gi, cpus: 3-4}", "m.yaml:3: nodes[1].cpus: CPU 3 is on node 0 too"},
		"page size":           {"nodes: [{id: 0, memory: 1Gi, hugepages: {big: 1}}]", `m.yaml:1: nodes[0].hugepages: page size "big" is not a quantity such as 64Mi, 2G or 4096`},
		"page size no power":  {"nodes: [{id: 0, memory: 1Gi, hugepages: {3Mi: 1}}]", `m.yaml:1: nodes[0].hugepages: page size "3Mi" is not one such as 2Mi or 1Gi`},
		"page size zero":      {"nodes: [{id: 0, memory: 1Gi, hugepages: {0: 1}}]", `m.yaml:1: nodes[0].hugepages: page size "0" is not one such as 2Mi or 1Gi`},
		"page size twice":     {"nodes: [{id: 0, memory: 1Gi, hugepages: {2Mi: 1, 2048Ki: 1}}]", `m.yaml:1: nodes[0].hugepages: page size "2Mi" is there twice`},
		"pages do not fit":    {"nodes: [{id: 0, memory: 1Gi, hugepages: {2Mi: 513}}]", "m.yaml:1: nodes[0].hugepages: 513 pages of 2Mi do not fit the node's memory of 1Gi"},
		"pages overflow":      {"nodes: [{id: 0, memory: 1Gi, hugepages: {2Mi: 18446744073709551615}}]", "m.yaml:1: nodes[0].hugepages: 18446744073709551615 pages of 2Mi do not fit the node's memory of 1Gi"},
		"pages negative":      {"nodes: [{id: 0, memory: 1Gi, hugepages: {2Mi: -1}}]", `m.yaml:1: nodes[0].hugepages.2Mi: want a whole number, 0 or more, got "-1"`},
		"distances too few":   {"nodes:\n- {id: 0, memory: 1Gi, distances: [10]}\n- {id: 1, memory: 1Gi, distances: [10]}", "m.yaml:2: nodes[0].distances: want 2 numbers, one per node in the order of ids, got 1"},
		"distance wrong":      {"nodes: [{id: 0, memory: 1Gi, distances: [9]}]", "m.yaml:1: nodes[0].distances[0]: want 10 to 255, got 9"},
		"distances missing":   {"nodes:\n- {id: 0, memory: 1Gi, distances: [10, 20]}\n- {id: 1, memory: 1Gi}", "m.yaml:1: nodes: 1 of 2 nodes have no distances: give all or none"},
		"page of 1000":        {"pageSize: 1000\nnodes: [{id: 0, memory: 1Gi}]", "m.yaml:1: pageSize: want a power of two from 4Ki to 1Mi, got 1000"},
		"not YAML":            {"nodes: [", "m.yaml:1: did not find expected node content"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := parse("m.yaml", []byte(tc.text)); err == nil || err.Error() != tc.want {
				t.Errorf("error = %v\nwant    %s", err, tc.want)
			}
		})
	}
}

// FuzzParse: any text is a machine or an error, and a machine keeps its promises.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"task-page", "four-unequal", "eight-socket"} {
		data, err := os.ReadFile("../../testdata/machines/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"nodes":[{"id":0,"memory":"1Gi","hugepages":{"2Mi":1}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parse("m.yaml", data)
		if err != nil {
			return
		}
		last, sum := -1, uint64(0)
		for _, node := range m.Nodes {
			pools := uint64(0)
			for _, pool := range node.Hugepages {
				pools += pool.PageSize * pool.Count
			}
			if node.ID <= last || node.ID > 63 || pools > node.Memory || len(node.Distances) != len(m.Nodes) {
				t.Errorf("node after %d: %+v", last, node)
			}
			if nodes, err := m.NodesOfCPUs(node.CPUs.String()); err != nil || nodes.Len() > 1 {
				t.Errorf("nodes of CPUs %s = %s, %v", node.CPUs, nodes, err)
			}
			last, sum = node.ID, sum+node.Memory
		}
		if len(m.Nodes) == 0 || sum != m.MemTotal {
			t.Errorf("%d nodes, sum %d, MemTotal %d", len(m.Nodes), sum, m.MemTotal)
		}
		text, err := json.Marshal(m)
		var back Machine
		if err != nil || json.Unmarshal(text, &back) != nil || !cmp.Equal(m, back, sameCPUs) {
			t.Errorf("%v: %s is read back from JSON as %+v", err, text, back)
		}
	})
}
