package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/cgroups"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/pods"
)

// small are pods of which a batch fits on the node, and whose containers start within their limits on an emulated machine.
var small = pods.Bounds{MinMemory: 24 * int64(MiB), MaxMemory: 64 * int64(MiB), MaxCPU: 100, MinCPULimit: 300, MaxCPULimit: 400}

// TestSimulatorAgreesWithTheKubelet runs random pods through the real kubelet and compares every value that the simulator
// prints for them with the kernel's: QoS class and cgroup, memory.*, cpuset.mems, CPU weight and quota, huge pages and
// oom_score_adj.
func TestSimulatorAgreesWithTheKubelet(t *testing.T) {
	k := kubeletOf(t, kubelet.Config{"cpuCFSQuota": true})
	p := startPlugin(t)
	count, batch := 2, 2
	if k.Plan.Full {
		count = 200
	}
	all := pods.Random(1, count, small)
	for len(all) > 0 {
		var running []*kubelet.Pod
		for _, pod := range all[:min(batch, len(all))] {
			running = append(running, asPod(pod))
		}
		all = all[len(running):]
		if err := k.RunAll(t.Context(), running...); err != nil {
			t.Fatal(err)
		}
		said := p.simulate(running...)
		p.agrees(k, said, running...)
		for _, pod := range running {
			likeTheKubelet(t, k, said, pod)
		}
		if err := k.RemoveAll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// asPod is a random pod as the kubelet's harness runs it.
func asPod(object *corev1.Pod) *kubelet.Pod {
	pod := &kubelet.Pod{Name: object.Name, Overhead: uint64(object.Spec.Overhead.Memory().Value()), Resources: object.Spec.Resources}
	for _, c := range object.Spec.InitContainers {
		sidecar := c.RestartPolicy != nil
		container := kubelet.Container{Name: c.Name, Resources: &c.Resources, Init: !sidecar, Sidecar: sidecar}
		if !sidecar {
			container.Args = []string{"exit=0"}
		}
		pod.Containers = append(pod.Containers, container)
	}
	for _, c := range object.Spec.Containers {
		pod.Containers = append(pod.Containers, kubelet.Container{Name: c.Name, Resources: &c.Resources})
	}
	return pod
}

// likeTheKubelet compares what the kubelet alone decides.
func likeTheKubelet(t *testing.T, k *kubelet.Kubelet, said simulated, pod *kubelet.Pod) {
	t.Helper()
	check := func(what string, got, want any) {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %s is %v, the simulator says %v", pod.Name, what, got, want)
		}
	}
	for _, level := range said.Ancestors {
		if strings.Contains(level.Cgroup, pod.UID) {
			check("its cgroup", strings.TrimPrefix(k.Dir(pod), kubelet.Root+"/"), level.Cgroup)
			check("its memory.max", number(t, k.Dir(pod), "memory.max"), wholePages(value(level.MemoryMax, unlimited)))
		}
	}
	for _, c := range pod.Containers {
		want := said.container(t, pod.Name, c.Name)
		check("its class", pod.Class(), want.QoSClass)
		if c.Init {
			continue
		}
		dir := dirOf(t, k, pod, c.Name)
		quota := "max"
		if want.OCI.CPU.Quota > 0 {
			quota = fmt.Sprint(want.OCI.CPU.Quota)
		}
		check(c.Name+"'s cpu.max", file(dir, "cpu.max"), fmt.Sprint(quota, " ", want.OCI.CPU.Period))
		check(c.Name+"'s cpu.weight", file(dir, "cpu.weight"), cgroups.ConvertCPUSharesToCgroupV2Value(want.OCI.CPU.Shares))
		for _, limit := range want.OCI.HugepageLimits {
			check(c.Name+"'s huge pages of "+limit.PageSize, number(t, dir, "hugetlb."+limit.PageSize+".max"), limit.Limit)
		}
		check(c.Name+"'s oom_score_adj", oomScoreAdj(t, k, pod, c.Name), want.OOMScore)
	}
}

func oomScoreAdj(t *testing.T, k machine, pod *kubelet.Pod, container string) string {
	t.Helper()
	pids, err := k.PIDs(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pids[0]), "oom_score_adj"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
