package cases

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/cri"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// touching are the steps of a workload that uses this much memory and stays.
func touching(bytes uint64) []string { return []string{fmt.Sprint("touch=", bytes)} }

// guaranteed is a pod of one Guaranteed container that touches part of its memory.
func guaranteed(name string, bytes, touched uint64) *kubelet.Pod {
	return &kubelet.Pod{Name: name, Containers: []kubelet.Container{{Name: "app", Request: bytes, Limit: bytes, Args: touching(touched)}}}
}

// on makes a pod's container ask for an exclusive CPU.
func on(pod *kubelet.Pod, cpu string) *kubelet.Pod {
	pod.Containers[0].CPUs = cpu
	return pod
}

// placed checks a container's cpuset, its allocation and where its pages are.
func placed(t *testing.T, k machine, p *plugin, pod *kubelet.Pod, want string, touched uint64) {
	t.Helper()
	said(t, k, pod, "app", fmt.Sprint("done touch=", touched))
	dir := dirOf(t, k, pod, "app")
	for _, name := range []string{"cpuset.mems", "cpuset.mems.effective"} {
		if got := file(dir, name); got != want {
			t.Errorf("%s: %s is %q, want %q", pod.Name, name, got, want)
		}
	}
	onNodes(t, pod.Name, anonPages(t, k, pod, "app"), ids(t, want), touched)
	blocks := p.allocated(pod, "app")
	if len(blocks) == 0 || !slices.Equal(blocks[0].Nodes, ids(t, want)) {
		t.Errorf("%s: allocated %+v, want nodes %s", pod.Name, blocks, want)
	}
}

func TestGuaranteedContainersLandOnTheirNodes(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t, "exposeAssignedMemset: true")
	const touched = 24 * MiB

	// Without exclusive CPUs the lowest node is taken, with them theirs.
	first, second := guaranteed("first", 48*MiB, touched), on(guaranteed("second", 48*MiB, touched), "1")
	run(t, k, first)
	run(t, k, second)
	placed(t, k, p, first, "0", touched)
	placed(t, k, p, second, "1", touched)
	for pod, want := range map[*kubelet.Pod][]string{first: {"ASSIGNED_MEMSET=0"}, second: {"ASSIGNED_MEMSET=1"}} {
		if got := memsetOf(t, k, pod); !slices.Equal(got, want) {
			t.Errorf("%s: its environment has %q, want %q", pod.Name, got, want)
		}
	}
	if want := p.simulate(first).container(t, "first", "app").CpusetMems; want != "0" {
		t.Errorf("the simulator puts the first pod on %q", want)
	}

	burstable := &kubelet.Pod{Name: "burstable", Containers: []kubelet.Container{{Name: "app", Request: 16 * MiB, Limit: 48 * MiB}}}
	run(t, k, burstable)
	if mems := file(dirOf(t, k, burstable, "app"), "cpuset.mems"); mems != "" {
		t.Errorf("a Burstable container has cpuset.mems %q", mems)
	}
	if got := memsetOf(t, k, burstable); got != nil {
		t.Errorf("the environment of a Burstable container has %q", got)
	}
	if err := k.RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.waitFree()
}

// memsetOf are the variables ASSIGNED_MEMSET of a container's first process.
func memsetOf(t *testing.T, k machine, pod *kubelet.Pod) (variables []string) {
	t.Helper()
	pids, err := k.PIDs(pod, "app")
	if err != nil {
		t.Fatal(err)
	}
	for variable := range strings.SplitSeq(file(fmt.Sprintf("/proc/%d/environ", pids[0])), "\x00") {
		if strings.HasPrefix(variable, "ASSIGNED_MEMSET=") {
			variables = append(variables, variable)
		}
	}
	return variables
}

func TestContainerLargerThanANodeGetsAGroup(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	largest := 0
	for _, n := range k.Plan.Nodes {
		largest = max(largest, n.MiB)
	}
	const touched = 64 * MiB
	big := guaranteed("big", uint64(largest+64)*MiB, touched)
	run(t, k, big)
	want := p.simulate(big).container(t, "big", "app").CpusetMems
	if len(ids(t, want)) != 2 {
		t.Errorf("the simulator gives nodes %q, not two", want)
	}
	placed(t, k, p, big, want, touched)
	s, err := p.read()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids(t, want) {
		if cells := s.MachineState[fmt.Sprint(id)].Cells; !slices.Equal(cells, ids(t, want)) {
			t.Errorf("node %d is in group %v, want %s", id, cells, want)
		}
	}
}

func TestHugepagesComeFromTheRightNode(t *testing.T) {
	k := criOf(t)
	var with []int
	for _, n := range k.Plan.Nodes {
		if n.Hugepages > 0 {
			with = append(with, n.ID)
		}
	}
	if len(with) == 0 {
		t.Skip("no node of this variant has huge pages")
	}
	p := startPlugin(t)
	for _, id := range with {
		const huge = 4 * MiB
		pod := guaranteed(fmt.Sprint("huge", id), 32*MiB, 8*MiB)
		pod.Containers[0].Hugepages = huge
		pod.Containers[0].Args = []string{fmt.Sprint("huge=", huge), fmt.Sprint("touch=", 8*MiB)}
		on(pod, fmt.Sprint(id)) // the CPU of node n has number n
		run(t, k, pod)
		placed(t, k, p, pod, fmt.Sprint(id), 8*MiB)
		if pages := hugePages(t, k, pod, "app"); pages[id] != int(huge/(2*MiB)) || len(pages) != 1 {
			t.Errorf("huge pages on nodes %v, want %d on node %d", pages, int(huge/(2*MiB)), id)
		}
		blocks := p.allocated(pod, "app")
		if !slices.ContainsFunc(blocks, func(b block) bool { return b.Type == "hugepages-2Mi" && b.Size == huge }) {
			t.Errorf("no block of huge pages in %+v", blocks)
		}
	}
}

func TestNodeWithoutCPUsIsUsedOnlyWhenAllowed(t *testing.T) {
	k := criOf(t)
	bare := withoutCPUs(t, k)
	p := startPlugin(t, "onUnsatisfiable: Reject", "nodesWithoutCPUs: Exclude")
	var room uint64
	nodes := p.allocatable()
	for id, bytes := range nodes {
		if id != bare {
			room += bytes
		}
	}
	if nodes[bare] > 0 {
		t.Errorf("node %d without CPUs has %d allocatable bytes", bare, nodes[bare])
	}
	const touched = 16 * MiB
	large := guaranteed("large", (room/MiB+16)*MiB, touched)
	if err := k.Run(t.Context(), large); err == nil || !strings.Contains(err.Error(), "large") && !strings.Contains(err.Error(), large.UID) {
		t.Errorf("a pod that needs node %d was not refused: %v", bare, err)
	}
	if err := k.Remove(t.Context(), large); err != nil {
		t.Fatal(err)
	}
	p.stop()
	p.configure("onUnsatisfiable: Reject", "nodesWithoutCPUs: Include")
	p.restart()
	again := guaranteed("again", (room/MiB+16)*MiB, touched)
	run(t, k, again)
	placed(t, k, p, again, "0-3", touched)
}

// withoutCPUs is the NUMA node that has no CPUs.
func withoutCPUs(t *testing.T, k *cri.Kubelet) int {
	t.Helper()
	for _, n := range k.Plan.Nodes {
		if n.CPUs == 0 {
			return n.ID
		}
	}
	t.Skip("every node of this variant has CPUs")
	return -1
}

// TestOrdinaryPodsKeepOffNodeWithoutCPUs has a Burstable pod take more than is free on node 2, whose nearest node has no CPUs: under Exclude
// the kernel goes on there, under Confine no page of it is there, and a container for which the kubelet asks for that node uses it.
func TestOrdinaryPodsKeepOffNodeWithoutCPUs(t *testing.T) {
	k := criOf(t)
	bare := withoutCPUs(t, k)
	const runsOn, beyond, asked = 2, 64 * MiB, 16 * MiB
	p := startPlugin(t, "nodesWithoutCPUs: Exclude")
	leaveNoPod(t, k)
	drift := func(name, mems string) uint64 {
		bytes := freeOn(t, runsOn) + beyond
		pod := &kubelet.Pod{Name: name, Containers: []kubelet.Container{{
			Name: "app", Request: bytes, Limit: bytes + 64*MiB, Args: []string{"wait=/ctl/go", fmt.Sprint("touch=", bytes)},
		}}}
		run(t, k, pod)
		write(t, fmt.Sprint(runsOn), k.Dir(pod), "cpuset.cpus")
		touchFile(t, k.Control(pod), "go")
		said(t, k, pod, "app", fmt.Sprint("done touch=", bytes))
		dir := dirOf(t, k, pod, "app")
		if got := file(dir, "cpuset.mems"); got != mems {
			t.Errorf("%s: cpuset.mems is %q, want %q", name, got, mems)
		}
		if want := p.simulate(pod).container(t, name, "app").CpusetMems; want != mems {
			t.Errorf("%s: the simulator gives cpuset.mems %q, want %q", name, want, mems)
		}
		anon := anonOf(t, dir)
		t.Logf("%s: %d MiB touched on node %d, anonymous memory by node: %v", name, bytes/MiB, runsOn, anon)
		if mems != "" {
			p.clean(t)
		}
		if err := k.Remove(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		return anon[bare]
	}
	if there := drift("drifts", ""); there < beyond/4 {
		t.Errorf("without the key %d bytes are on node %d: the pod does not show what the key does", there, bare)
	}
	p.stop()
	p.configure("nodesWithoutCPUs: Confine")
	p.restart()
	if there := drift("confined", "0-2"); there != 0 {
		t.Errorf("a confined container has %d bytes on node %d", there, bare)
	}
	asks := &kubelet.Pod{Name: "asks", Containers: []kubelet.Container{{
		Name: "app", Request: asked, Limit: 4 * asked, Mems: fmt.Sprint(bare), Args: touching(asked),
	}}}
	run(t, k, asks)
	said(t, k, asks, "app", fmt.Sprint("done touch=", asked))
	onNodes(t, asks.Name, anonPages(t, k, asks, "app"), []int{bare}, asked)
}

// allocatable is what each NUMA node has for pods, in bytes.
func (p *plugin) allocatable() map[int]uint64 { return p.nodeMemory("allocatable") }

// nodeMemory is a field of each node's memory in status, in bytes.
func (p *plugin) nodeMemory(field string) map[int]uint64 {
	p.t.Helper()
	out, code := p.ask("status", "-o", "json")
	var status struct {
		Nodes []struct {
			ID     int              `json:"id"`
			Memory []map[string]any `json:"memory"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil || len(status.Nodes) == 0 {
		p.t.Fatalf("status shows no NUMA nodes: exit status %d, %v: %s", code, err, out)
	}
	nodes := map[int]uint64{}
	for _, n := range status.Nodes {
		for _, m := range n.Memory {
			if bytes, is := m[field].(float64); is && m["type"] == "memory" {
				nodes[n.ID] = uint64(bytes)
			}
		}
	}
	return nodes
}

// sizes are the nodes' allocatable bytes, the smallest first.
func (p *plugin) sizes() []uint64 {
	p.t.Helper()
	return slices.Sorted(maps.Values(p.allocatable()))
}
