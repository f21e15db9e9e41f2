package cases

import (
	"fmt"
	"strings"
	"testing"
)

// TestSpreadContainerTouchesAllItsNodes has a Guaranteed container with the annotation numa: spread use its memory: each of its NUMA
// nodes has an even part of its anonymous pages, although all of its processes run on the CPUs of one node.
func TestSpreadContainerTouchesAllItsNodes(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	const size, touched = 192 * MiB, 144 * MiB
	pod := guaranteed("spread", size, 0)
	pod.Annotations = map[string]string{"numa.memory-manager.noderesource.dev": "spread"}
	pod.Containers[0].Args = []string{"wait=/ctl/go", fmt.Sprint("touch=", touched)}
	run(t, k, pod)
	write(t, "0", k.Dir(pod), "cpuset.cpus")
	touchFile(t, k.Control(pod), "go")
	said(t, k, pod, "app", fmt.Sprint("done touch=", touched))

	blocks := p.allocated(pod, "app")
	if len(blocks) != 1 || len(blocks[0].Nodes) < 2 || blocks[0].Size != size {
		t.Fatalf("allocated %+v, want %d bytes on several nodes", blocks, size)
	}
	nodes := blocks[0].Nodes
	dir := dirOf(t, k, pod, "app")
	if mems := ids(t, file(dir, "cpuset.mems")); fmt.Sprint(mems) != fmt.Sprint(nodes) {
		t.Errorf("cpuset.mems is %v, want %v", mems, nodes)
	}
	anon := anonOf(t, dir)
	t.Logf("anonymous memory by node: %v", anon)
	var sum uint64
	for _, bytes := range anon {
		sum += bytes
	}
	if sum < touched {
		t.Errorf("it has %d bytes of anonymous memory, fewer than the %d that it touched", sum, touched)
	}
	part := sum / uint64(len(nodes)) // the kernel's huge pages go to the nodes as a whole
	for _, id := range nodes {
		if got := anon[id]; got*100 < part*95 || got*100 > part*105 {
			t.Errorf("node %d has %d bytes of its anonymous memory, want %d within 5%%", id, got, part)
		}
	}
	out, _ := p.ask("explain", "spread")
	for _, want := range []string{", spread evenly\n", ", evenly: ", "MPOL_INTERLEAVE"} {
		if !strings.Contains(out, want) {
			t.Errorf("explain lacks %q:\n%s", want, out)
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
