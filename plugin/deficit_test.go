package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// onKernel gives the host two NUMA nodes of 16Gi whose memory the kernel tells in a sysfs, with so much free.
func (h *host) onKernel(free ...int64) {
	h.t.Helper()
	h.sysfs("proc/meminfo", "MemTotal: 33554432 kB\n")
	h.sysfs("sys/devices/system/node/online", "0-1\n")
	for id, free := range free {
		folder := fmt.Sprintf("sys/devices/system/node/node%d/", id)
		h.sysfs(folder+"meminfo", fmt.Sprintf("Node %[1]d MemTotal: 16777216 kB\nNode %[1]d MemFree: %[2]d kB\n", id, free>>10))
		h.sysfs(folder+"cpulist", fmt.Sprintln(id))
		h.sysfs(folder+"distance", []string{"10 21\n", "21 10\n"}[id])
	}
	for i, flag := range h.flags {
		if flag == "--machine" {
			h.flags[i+1] = h.path("machine")
		}
	}
}

func (h *host) sysfs(name, text string) {
	h.t.Helper()
	must(h.t, os.MkdirAll(filepath.Dir(h.path("machine/"+name)), 0o755))
	h.write("machine/"+name, text)
}

// shows waits until a command of the binary prints a text.
func (h *host) shows(text string, args ...string) string {
	h.t.Helper()
	for deadline := time.Now().Add(bound); ; time.Sleep(50 * time.Millisecond) {
		out := h.ask(0, args...)
		if strings.Contains(out, text) {
			return out
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%s does not show %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
}

// TestAnOvercommittedNodeIsShown: other processes have filled node 0, on which a pinned pod has 4Gi allocated.
func TestAnOvercommittedNodeIsShown(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, "topologyManagerPolicy: restricted\nkubeReserved: {memory: 924Mi}\n")
	h.onKernel(2*gi, 12*gi)
	plugin := h.start()
	h.shows("AVAILABLE MEMORY   (unused", "status")
	pod := guaranteed("database", 4*gi)
	h.deploy(pod)
	must(t, h.tree.Write(pod.cgroup()+"/"+pod.id(), "memory.numa_stat", "anon N0=1073741824 N1=0\n"))
	wantAll(t, h.shows("LACKS 1Gi", "status"), "0     3Gi     2Gi   0            LACKS", "1     0       12Gi  0            enough")
	wantAll(t, h.ask(0, "explain", "database"), "3Gi of it on node 0 are not used yet, and the node lacks 1Gi for its allocations")
	wantAll(t, h.ask(0, "status", "-o", "json"), `"deficit": 1073741824`)
	said(plugin, "NUMA nodes have less memory available than is allocated on them")
	wantAll(t, plugin.get("/metrics"), `nri_memory_manager_numa_allocated_unused_bytes{numa_node="0"} 3.221225472e+09`,
		`nri_memory_manager_numa_available_bytes{numa_node="0",source="free"} 2.147483648e+09`)
}

// TestContainersWithoutAnAllocationStartWithAMemoryPolicy: node 0 is overcommitted, and what NRI's runtime side puts into the
// OCI spec prefers node 1.
func TestContainersWithoutAnAllocationStartWithAMemoryPolicy(t *testing.T) {
	t.Parallel()
	const config = "topologyManagerPolicy: restricted\nkubeReserved: {memory: 924Mi}\nunpinnedMemoryPolicy: "
	annotated := func(value string) map[string]string {
		return map[string]string{"memory-policy.memory-manager.noderesource.dev": value}
	}
	for name, test := range map[string]struct {
		config      string
		annotations map[string]string
		options     cri.Options
		mems        string // that the pods may use; "" cannot be read
		want, says  string
	}{
		"None":               {"None", nil, cri.Options{}, "0-1", "", ""},
		"PreferAvailable":    {"PreferAvailable", nil, cri.Options{}, "0-1", "MPOL_PREFERRED_MANY 1", "started with the memory policy MPOL_PREFERRED_MANY 1"},
		"Interleave":         {"Interleave", nil, cri.Options{}, "0-1", "MPOL_INTERLEAVE 1", "MPOL_INTERLEAVE 1"},
		"WeightedInterleave": {"WeightedInterleave", nil, cri.Options{}, "0-1", "MPOL_WEIGHTED_INTERLEAVE 1", "MPOL_WEIGHTED_INTERLEAVE 1"},
		"by annotation":      {"None", annotated("prefer-available"), cri.Options{}, "0-1", "MPOL_PREFERRED_MANY 1", "MPOL_PREFERRED_MANY 1"},
		"a Burstable pod that prefers a node": {"None", map[string]string{"numa.memory-manager.noderesource.dev": "preferred"}, cri.Options{}, "0-1",
			"MPOL_PREFERRED_MANY 1", "MPOL_PREFERRED_MANY 1"},
		"its own policy wins": {"None", map[string]string{"numa.memory-manager.noderesource.dev": "preferred",
			"memory-policy.memory-manager.noderesource.dev": "interleave"}, cri.Options{}, "0-1", "MPOL_INTERLEAVE 1", "MPOL_INTERLEAVE 1"},
		"a preferred node that is not the pod's": {"None", map[string]string{"numa.memory-manager.noderesource.dev": "preferred"}, cri.Options{}, "0",
			"", "without a memory policy: numa preferred: no NUMA node has room"},
		"not by annotation":                   {"PreferAvailable", annotated("none"), cri.Options{}, "0-1", "", ""},
		"a forbidden annotation":              {"None\nannotationRules: [{namespaces: ['*'], allowedAnnotations: [numa]}]", annotated("interleave"), cri.Options{}, "0-1", "", ""},
		"the preferred node is not the pod's": {"PreferAvailable", nil, cri.Options{}, "0", "", "without a memory policy: PreferAvailable: no NUMA node has memory available beyond its allocations"},
		"nodes that cannot be read":           {"PreferAvailable", nil, cri.Options{}, "", "", "the nodes that the pod may use cannot be read"},
		"a runtime that applies none": {"Interleave", nil, cri.Options{Name: "containerd", Version: "v2.1.4", NRI: nriplugin.Version{Minor: 8}}, "0-1", "",
			"without a memory policy: Interleave: containerd v2.1.4 applies none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, test.options, config+test.config+"\n")
			h.onKernel(2*gi, 12*gi)
			h.start()
			database := guaranteed("database", 4*gi)
			h.deploy(database)
			must(t, h.tree.Write(database.cgroup()+"/"+database.id(), "memory.numa_stat", "anon N0=1073741824 N1=0\n"))
			h.shows("LACKS 1Gi", "status")
			web := burstable("web", 2*gi, 968)
			web.annotations = test.annotations
			if test.mems != "" {
				web.files = map[string]string{"cpuset.mems.effective": test.mems}
			}
			h.deploy(web)
			got := ""
			if policy := h.runtime.MemoryPolicy(web.id()); policy != nil {
				got = string(policy.Mode) + " " + policy.Nodes
			}
			if got != test.want {
				t.Errorf("the memory policy is %q, want %q", got, test.want)
			}
			explained := h.ask(0, "explain", "web")
			if strings.Contains(explained, "memory policy") != (test.says != "") || !strings.Contains(explained, test.says) {
				t.Errorf("want %q in\n%s", test.says, explained)
			}
			if policy := h.runtime.MemoryPolicy(database.id()); policy != nil {
				t.Errorf("the pinned container has the memory policy %+v", policy)
			}
			if old := test.options.Name != ""; strings.Contains(h.ask(0, "status"), "NOT APPLIED: containerd v2.1.4 applies none") != old {
				t.Error(h.ask(0, "status"))
			}
		})
	}
}

// TestLeastUsedChoosesTheNodeThatHasMore: both nodes have nothing allocated, and other processes have filled node 0.
func TestLeastUsedChoosesTheNodeThatHasMore(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[string]string{"none": "0", "least-used": "1"} {
		t.Run(strategy, func(t *testing.T) {
			h := newHost(t, cri.Options{}, "topologyManagerPolicy: restricted\nkubeReserved: {memory: 924Mi}\ntopologyManagerPolicyOptions: {numa-allocation-strategy: "+strategy+"}\n")
			h.onKernel(2*gi, 12*gi)
			plugin := h.start("--record", h.path("recording"))
			h.shows("AVAILABLE MEMORY   (unused", "status")
			pod := guaranteed("database", 4*gi)
			h.deploy(pod)
			if got := h.mems(pod); got != want {
				t.Errorf("cpuset.mems is %q, want %s", got, want)
			}
			decided := "numa-allocation-strategy least-used decided: node 1 (score 77) before node 0 (score 12)"
			if explained := h.ask(0, "explain", "database"); strings.Contains(explained, decided) != (want == "1") {
				t.Error(explained)
			}
			plugin.stop()
			if code, out, errOut := run(t, "", "replay", h.path("recording")); code != 0 || !strings.Contains(out, " 0 differ\n") {
				t.Errorf("replay: exit code %d\n%s%s", code, out, errOut)
			}
		})
	}
}

// on has the kernel say how much of a pod's anonymous memory is on node 0 and 1.
func (h *host) on(p *testPod, bytes ...int64) {
	h.t.Helper()
	must(h.t, h.tree.Write(p.cgroup()+"/"+p.id(), "memory.numa_stat", fmt.Sprintf("anon N0=%d N1=%d\n", bytes[0], bytes[1])))
	must(h.t, h.tree.Write(p.cgroup()+"/"+p.id(), "cpuset.mems.effective", "0-1\n"))
}
