package config

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

// fuzzMachine has two nodes, one with huge pages.
func fuzzMachine() machine.Machine {
	return machine.Machine{PageSize: 4096, MemTotal: 32 << 30, Nodes: []machine.Node{
		{ID: 0, Memory: 16 << 30, CPUs: cpuset.New(), Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 1024}}},
		{ID: 1, Memory: 16 << 30, CPUs: cpuset.New()},
	}}
}

// FuzzParse: any text is an error or a configuration that is written and read back the same, and resolves or not to nodes
// that hold what they reserve.
func FuzzParse(f *testing.F) {
	for _, path := range []string{"../../deploy/config.yaml", "../../testdata/config/task-page.yaml"} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("reservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 2Mi}}]\nprofile: NUMA\nmaxMigrationBytes: 1"))
	f.Add([]byte("stateTolerance: auto\nkubeReserved: {memory: 7Ei}\nevictionHard: {memory.available: 5%}\nannotationRules: [{namespaces: [a*]}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Files(nil).Parse("c.yaml", data)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00\x1b") {
				t.Errorf("error is not one plain line: %q", err)
			}
			return
		}
		if text, err := c.Marshal(); err != nil {
			t.Error(err)
		} else if back, err := Files(nil).Parse("back.yaml", text); err != nil || !cmp.Equal(c, back, sameConfig) {
			t.Errorf("%v: %s\n%s", err, text, cmp.Diff(c, back, sameConfig))
		}
		r, err := c.Resolve(fuzzMachine())
		if err != nil {
			return
		}
		if back := readBack(t, r); !cmp.Equal(r, back, sameResolved) {
			t.Errorf("read back from JSON (-want +got):\n%s", cmp.Diff(r, back, sameResolved))
		}
		for _, node := range r.Nodes {
			sum := uint64(0)
			for _, amount := range node.Reserved {
				sum += amount.Bytes
			}
			if sum > node.Total {
				t.Errorf("node %d reserves %d of %d", node.ID, sum, node.Total)
			}
		}
	})
}

// FuzzReservedMemory: any text is an error, or reads back from our own text of it.
func FuzzReservedMemory(f *testing.F) {
	data, err := os.ReadFile(vectorFolder + "reserved-memory.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if _, args, found := strings.Cut(line, `"args":["`); found {
			flag, _, _ := strings.Cut(args, `"`)
			f.Add(flag)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		reserved, err := parseReservedMemory(text)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00\x1b") {
				t.Errorf("error is not one plain line: %q", err)
			}
			return
		}
		again, err := parseReservedMemory(reserved.String())
		if err != nil || !cmp.Equal(reserved, again) {
			t.Errorf("%q is %q and reads as %q: %v", text, reserved, again, err)
		}
	})
}

// FuzzReadAnnotations: whatever a pod's annotations are, wishes stay within the rules, messages are plain, short and few, and
// the annotations of another container change nothing.
func FuzzReadAnnotations(f *testing.F) {
	f.Add("throttling-factor"+ours, "0.7", "memory-high"+ours+"/container.app", "512Mi", uint16(0))
	f.Add("memory-high"+ours, "1e999999999", "numa.memory-manager.nri.io/pod", "required", uint16(990))
	f.Add("x"+ours+"/", "\x00", "reservation"+ours, "min", uint16(999))
	f.Fuzz(func(t *testing.T, key, value, key2, value2 string, others uint16) {
		pod := map[string]string{key: value, key2: value2}
		rules := AnnotationRules{Allowed: annotations(), MinimumFactor: 0.25}
		wishes, problems := ReadAnnotations(pod).Wishes("app", rules)
		if factor := wishes.QoS.Factor; factor != nil && !(*factor >= 0.25 && *factor <= 1) {
			t.Errorf("factor %v", *factor)
		}
		if high := wishes.QoS.High; high != nil && (*high == 0 || wishes.QoS.NoHigh) {
			t.Errorf("memory.high %d, off %v", *high, wishes.QoS.NoHigh)
		}
		if forbidden, _ := ReadAnnotations(pod).Wishes("app", AnnotationRules{}); !cmp.Equal(forbidden, Wishes{}) {
			t.Errorf("wishes %+v although nothing is allowed", forbidden)
		}
		for i := range int(others) % (2 * mostAnnotations) {
			pod[fmt.Sprintf("~%d%s/container.~", i, ours)] = value // after the other keys, for a container that cannot be
		}
		read := ReadAnnotations(pod)
		if utf8.ValidString(key + value + key2 + value2) { // as the API server has it
			if back := readBack(t, read); !cmp.Equal(read, back, sameAnnotations) {
				t.Errorf("read back from JSON (-want +got):\n%s", cmp.Diff(read, back, sameAnnotations))
			}
		}
		all, allProblems := read.Wishes("app", rules)
		if len(read.beyond) == 0 && (!cmp.Equal(all, wishes) || !cmp.Equal(allProblems, problems)) {
			t.Errorf("the annotations of another container change %+v %v to %+v %v", wishes, problems, all, allProblems)
		}
		if len(allProblems) > mostProblems {
			t.Errorf("%d problems", len(allProblems))
		}
		for _, problem := range allProblems {
			if len(problem.Message) > 2000 || strings.ContainsAny(problem.Message, "\n\x00\x1b") {
				t.Errorf("message %q", problem.Message)
			}
		}
	})
}

// FuzzKubeletConfiguration: any text is an error of one line that names the file, or gives a configuration that stands on its own.
func FuzzKubeletConfiguration(f *testing.F) {
	const kind = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	f.Add(kind + "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\nkubeReserved: {memory: 924Mi}\n")
	f.Add(kind + "evictionHard: {memory.available: 5%}\nmergeDefaultEvictionSettings: true\nmemoryThrottlingFactor: 0.9\n")
	f.Add(kind + "topologyManagerPolicyOptions: {max-allowable-numa-nodes: \"8\"}\nfeatureGates: {MemoryQoS: true}\n")
	f.Fuzz(func(t *testing.T, text string) {
		const path = "/kubelet.yaml"
		kubelet := Files(func(string) ([]byte, error) { return []byte(text), nil })
		c, err := kubelet.Parse("c.yaml", []byte("kubeletConfig: "+path))
		if err != nil {
			if !strings.Contains(err.Error(), path) || strings.ContainsAny(err.Error(), "\n\x00\x1b") {
				t.Errorf("error is not one plain line about %s: %q", path, err)
			}
			return
		}
		c.KubeletConfig = ""
		alone, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := Files(nil).Parse("back.yaml", alone); err != nil || !cmp.Equal(c, back, sameConfig) {
			t.Errorf("%v: %s\n%s", err, alone, cmp.Diff(c, back, sameConfig))
		}
	})
}
