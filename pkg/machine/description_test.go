package machine

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"
)

func TestDescribeAMachineFile(t *testing.T) {
	data := []byte("nodes: [{id: 0, memory: 1Gi, cpus: '0-1,4-5'}, {id: 1, memory: 1Gi, cpus: '2-3,6-7'}]\nthreadsPerCore: 2\nlabels: {zone: a}\n" +
		"resources: {nvidia.com/gpu: 2}\nmaxPods: 110\ncpuManagerPolicy: static\nreservedSystemCPUs: 0,4\n")
	got, err := Describe("m.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	same, err := parse("m.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	want := Description{
		Machine: same, Cores: map[int]int{0: 0, 4: 0, 1: 1, 5: 1, 2: 2, 6: 2, 3: 3, 7: 3}, Labels: map[string]string{"zone": "a"},
		Resources: map[string]uint64{"nvidia.com/gpu": 2}, MaxPods: 110, CPUManagerPolicy: "static", ReservedSystemCPUs: cpuset.New(0, 4),
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(cpuset.CPUSet.Equals)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := Describe("m.yaml", []byte("nodes: [{id: 0, memory: 1Gi}]\n")); err != nil || got.Labels != nil || got.Cores != nil || got.MaxPods != 0 {
		t.Errorf("a machine file without more is %+v, %v", got, err)
	}
}

// The cores are in a machine file where threadsPerCore says the same of them.
func TestMarshalTheCores(t *testing.T) {
	for name, test := range map[string]struct {
		cores map[int]int
		want  string // in the file; "" has none
	}{
		"as on x86":      {map[int]int{0: 0, 2: 0, 1: 1, 3: 1}, "threadsPerCore: 2\n"},
		"one each":       {map[int]int{0: 0, 1: 1, 2: 2, 3: 3}, "threadsPerCore: 1\n"},
		"side by side":   {map[int]int{0: 0, 1: 0, 2: 2, 3: 2}, ""},
		"not all of two": {map[int]int{0: 0, 2: 0, 1: 1}, ""},
		"not known":      {nil, ""},
	} {
		d, err := Describe("m.yaml", []byte("nodes: [{id: 0, memory: 1Gi, cpus: 0-3, hugepages: {2Mi: 3}}]\nswap: 1Gi\n"))
		if err != nil {
			t.Fatal(err)
		}
		d.Cores = test.cores
		text, err := d.Marshal()
		want := "nodes:\n    - id: 0\n      memory: 1Gi\n      cpus: 0-3\n      hugepages: {2Mi: 3}\n      distances: [10]\npageSize: 4Ki\nswap: 1Gi\n" + test.want
		if err != nil || string(text) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, text, want)
		}
	}
}

// MemTotal is in a machine file only where it does not follow from the nodes.
func TestMarshalMemoryThatWasPluggedIn(t *testing.T) {
	for name, test := range map[string]struct {
		file, want string
		total      uint64
	}{
		"the sum":     {"memTotal: 3Gi\n", "", 3 << 30},
		"left out":    {"", "", 3 << 30},
		"more":        {"memTotal: 5Gi\n", "memTotal: 5Gi\n", 5 << 30},
		"less":        {"memTotal: 2Gi\n", "memTotal: 2Gi\n", 2 << 30},
		"in KiB only": {"memTotal: 3145729Ki\n", "memTotal: 3145729Ki\n", 3<<30 + 1024},
	} {
		d, err := Describe("m.yaml", []byte("nodes: [{id: 0, memory: 1Gi}, {id: 1, memory: 2Gi}]\n"+test.file))
		if err != nil || d.MemTotal != test.total {
			t.Errorf("%s: MemTotal %d, %v, want %d", name, d.MemTotal, err, test.total)
		}
		if text, err := d.Marshal(); err != nil || !strings.HasSuffix(string(text), "pageSize: 4Ki\n"+test.want) {
			t.Errorf("%s: %v, want %q at the end of\n%s", name, err, test.want, text)
		}
	}
}
