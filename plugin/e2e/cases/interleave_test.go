package cases

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// TestInterleavedContainerTouchesAllNodes has a Guaranteed container with the annotations numa: none and memory-policy: interleave use its
// memory: each NUMA node of the policy has an even part of its anonymous pages, although all of its processes run on the CPUs of one node.
func TestInterleavedContainerTouchesAllNodes(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	const size, touched = 192 * MiB, 144 * MiB
	pod := guaranteed("interleaved", size, 0)
	pod.Annotations = map[string]string{"numa.memory-manager.noderesource.dev": "none", "memory-policy.memory-manager.noderesource.dev": "interleave"}
	pod.Containers[0].Args = []string{"wait=/ctl/go", fmt.Sprint("touch=", touched)}
	run(t, k, pod)
	write(t, "0", k.Dir(pod), "cpuset.cpus")
	touchFile(t, k.Control(pod), "go")
	said(t, k, pod, "app", fmt.Sprint("done touch=", touched))

	out, _ := p.ask("explain", "interleaved")
	policy := regexp.MustCompile(`MPOL_INTERLEAVE ([0-9,-]+)`).FindStringSubmatch(out)
	if policy == nil {
		t.Fatalf("explain names no policy:\n%s", out)
	}
	nodes := ids(t, policy[1])
	anon := anonOf(t, dirOf(t, k, pod, "app"))
	t.Logf("anonymous memory by node: %v", anon)
	var sum uint64
	for _, bytes := range anon {
		sum += bytes
	}
	if sum < touched || len(nodes) < 2 {
		t.Errorf("it has %d bytes of anonymous memory on nodes %v, want the %d that it touched on several", sum, nodes, touched)
	}
	part := sum / uint64(len(nodes)) // the kernel's huge pages go to the nodes as a whole
	for _, id := range nodes {
		if got := anon[id]; got*100 < part*95 || got*100 > part*105 {
			t.Errorf("node %d has %d bytes of its anonymous memory, want %d within 5%%", id, got, part)
		}
	}
}

// anonOf is a cgroup's anonymous memory by NUMA node (memory.numa_stat), in bytes.
func anonOf(t *testing.T, dir string) map[int]uint64 {
	t.Helper()
	for line := range strings.Lines(file(dir, "memory.numa_stat")) {
		values, found := strings.CutPrefix(strings.TrimSpace(line), "anon ")
		if !found {
			continue
		}
		nodes := map[int]uint64{}
		for _, field := range strings.Fields(values) {
			var id int
			var bytes uint64
			if _, err := fmt.Sscanf(field, "N%d=%d", &id, &bytes); err != nil {
				t.Fatalf("memory.numa_stat: %q: %v", line, err)
			}
			nodes[id] = bytes
		}
		return nodes
	}
	t.Fatalf("%s: memory.numa_stat has no anonymous memory", dir)
	return nil
}
