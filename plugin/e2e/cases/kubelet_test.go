package cases

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// full fills every NUMA node but for these bytes, and returns the pods by node.
func full(t *testing.T, k *kubelet.Kubelet, p *plugin, left uint64) map[int]*kubelet.Pod {
	t.Helper()
	pods := map[int]*kubelet.Pod{}
	for i, size := range slices.Backward(p.sizes()) { // the largest first: it fits on one node only
		pod := guaranteed(fmt.Sprint("fills-", i), (size-left)/MiB*MiB, MiB)
		run(t, k, pod)
		nodes := p.allocated(pod, "app")[0].Nodes
		if len(nodes) != 1 || pods[nodes[0]] != nil {
			t.Fatalf("%s is on nodes %v", pod.Name, nodes)
		}
		pods[nodes[0]] = pod
	}
	return pods
}

// TestResizeWithoutRoom resizes a container beyond what its NUMA node has free. A pod that requires its nodes is refused: the
// kubelet asks again and again, which is one rejection. For another one the kubelet asks once, because the resize is accepted;
// the allocation is short until there is room.
func TestResizeWithoutRoom(t *testing.T) {
	k := kubeletOf(t)
	p := startPlugin(t, "topologyManagerPolicy: restricted")
	others := full(t, k, p, 200*MiB)
	insists := guaranteed("insists", 64*MiB, MiB)
	insists.Annotations = map[string]string{"numa.memory-manager.noderesource.dev": "required"}
	run(t, k, insists)
	if err := k.Resize(t.Context(), insists, "app", 240*MiB, 240*MiB); err == nil {
		t.Fatal("a resize without room was accepted for a pod that requires its NUMA nodes")
	}
	eventually(t, "the kubelet's tries are one rejection", func() string {
		out, _ := p.ask("status")
		if _, rejections, _ := strings.Cut(out, "REJECTED OR UNPINNED"); strings.Count(rejections, "insists") != 1 || !strings.Contains(rejections, "times") {
			return out
		}
		return ""
	})
	if err := k.Remove(t.Context(), insists); err != nil {
		t.Fatal(err)
	}

	grows := guaranteed("grows", 64*MiB, MiB)
	run(t, k, grows)
	if err := k.Resize(t.Context(), grows, "app", 240*MiB, 240*MiB); err != nil {
		t.Fatal(err)
	}
	holdsValue(t, dirOf(t, k, grows, "app"), "memory.max", 240*MiB)
	says(t, p, "PENDING RESIZES", true)
	node := p.allocated(grows, "app")[0].Nodes[0]
	if err := k.Remove(t.Context(), others[node]); err != nil {
		t.Fatal(err)
	}
	says(t, p, "PENDING RESIZES", false)
	eventually(t, "the whole request is allocated on the container's node", func() string {
		blocks, mems := p.allocated(grows, "app"), file(dirOf(t, k, grows, "app"), "cpuset.mems")
		if len(blocks) != 1 || blocks[0].Size != 240*MiB || mems != fmt.Sprint(node) {
			return fmt.Sprintf("%+v, cpuset.mems %s", blocks, mems)
		}
		return ""
	})
}

// says waits until status has a heading, or has it no more.
func says(t *testing.T, p *plugin, heading string, want bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("status has %q: %t", heading, want), func() string {
		if out, code := p.ask("status"); code != 0 || strings.Contains(out, heading) != want {
			return out
		}
		return ""
	})
}

// TestRejectedPodIsOneBlock asks for a container that no NUMA node can hold: however often the kubelet tries, status has one
// block for it, and none when the pod is deleted.
func TestRejectedPodIsOneBlock(t *testing.T) {
	k := kubeletOf(t)
	p := startPlugin(t, "topologyManagerPolicy: single-numa-node")
	sizes := p.sizes()
	largest := sizes[len(sizes)-1]
	pod := guaranteed("too-large", (largest/MiB+64)*MiB, MiB)
	if err := k.Run(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "single-numa-node") {
		t.Fatalf("a container larger than every node: %v", err)
	}
	eventually(t, "the kubelet's tries are one block", func() string {
		out, _ := p.ask("status")
		if _, rejections, _ := strings.Cut(out, "REJECTED OR UNPINNED"); strings.Count(rejections, "default/too-large") != 1 || !strings.Contains(rejections, "times") {
			return out
		}
		return ""
	})
	if err := k.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	says(t, p, "REJECTED OR UNPINNED", false)
}

// TestCPUsOverTwoNodes has the kubelet's own CPU manager give a container CPUs of both NUMA nodes, which its topology manager
// allows. Under restricted the memory follows them; where it may not, the rejection names the way out.
func TestCPUsOverTwoNodes(t *testing.T) {
	k := kubeletOf(t, kubelet.Config{"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"})
	pod := func(name string) *kubelet.Pod {
		p := guaranteed(name, 64*MiB, 32*MiB)
		p.Containers[0].CPUs = "1,2"
		return p
	}
	p := startPlugin(t, "topologyManagerPolicy: restricted")
	follows := pod("follows")
	run(t, k, follows)
	dir := dirOf(t, k, follows, "app")
	if cpus, mems := file(dir, "cpuset.cpus"), file(dir, "cpuset.mems"); cpus != "1-2" || mems != "0-1" {
		t.Errorf("the container has CPUs %s and nodes %s, want 1-2 and 0-1", cpus, mems)
	}
	eventually(t, "verify names the CPUs on several nodes", func() string {
		if out, _ := p.ask("verify"); !strings.Contains(out, "cpus-on-several-nodes") {
			return out
		}
		return ""
	})
	if err := k.Remove(t.Context(), follows); err != nil {
		t.Fatal(err)
	}
	p.stop()

	p = startPlugin(t, "topologyManagerPolicy: restricted", "onConflict: Kubelet")
	defer p.stop()
	err := k.Run(t.Context(), pod("rejected"))
	for _, part := range []string{"onConflict: CPUs", "topologyManagerPolicy: restricted", "nodes 0-1"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the pod's message lacks %q: %v", part, err)
		}
	}
}

// TestKubeletGoesAway kills the kubelet under a running pod: what its pod API said stays true, also for the sums above, and
// status says that the source is gone. The next kubelet's pods are exact again.
func TestKubeletGoesAway(t *testing.T) {
	k := kubeletOf(t)
	p := startPlugin(t)
	pod := &kubelet.Pod{Name: "exact", Containers: []kubelet.Container{{Name: "app", Request: 33 * MiB, Limit: 96 * MiB}}}
	run(t, k, pod)
	dir := dirOf(t, k, pod, "app")
	exact := func() {
		t.Helper()
		holdsValue(t, dir, "memory.low", 33*MiB)
		holdsValue(t, k.Dir(pod), "memory.low", 33*MiB)
		holdsValue(t, k.QoS(pod), "memory.low", 33*MiB)
	}
	exact()
	k.Kill(syscall.SIGKILL)
	says(t, p, "pods-api.sock", true)
	p.configure("memoryThrottlingFactor: 0.5") // all values are computed again
	_ = p.cmd.Process.Signal(syscall.SIGHUP)
	const half = (33*MiB + 96*MiB) / 2 / 4096 * 4096
	holdsValue(t, dir, "memory.high", half)
	exact()
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	says(t, p, "pods-api.sock", false)
	exact()
}
