package machine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"
)

func TestDescribeAMachineFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "machine.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("nodes: [{id: 0, memory: 1Gi, cpus: '0-1,4-5'}, {id: 1, memory: 1Gi, cpus: '2-3,6-7'}]\nthreadsPerCore: 2\nlabels: {zone: a}\n" +
		"resources: {nvidia.com/gpu: 2}\nmaxPods: 110\ncpuManagerPolicy: static\nreservedSystemCPUs: 0,4\n")
	got, err := Describe(path)
	if err != nil {
		t.Fatal(err)
	}
	same, err := Load(path)
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
	write("nodes: [{id: 0, memory: 1Gi}]\n")
	if got, err := Describe(path); err != nil || got.Labels != nil || got.Cores != nil || got.MaxPods != 0 {
		t.Errorf("a machine file without more is %+v, %v", got, err)
	}
}

func TestDescribeReadsTheCoresFromSysfs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"node/online": "0\n", "node/node0/meminfo": "Node 0 MemTotal: 1048576 kB\n", "node/node0/cpulist": "0-4\n", "node/node0/distance": "10\n",
		"cpu/cpu0/topology/thread_siblings_list": "0,2\n", "cpu/cpu2/topology/thread_siblings_list": "0,2\n",
		"cpu/cpu1/topology/thread_siblings_list": "1,3\n", "cpu/cpu3/topology/thread_siblings_list": "1,3\n", // nothing about CPU 4
	} {
		path := filepath.Join(dir, "devices/system", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Describe(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]int{0: 0, 2: 0, 1: 1, 3: 1}, got.Cores); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
