package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// hugePages has the plugin read a machine of two nodes with 512 huge pages each, of which so many are free.
func (h *host) hugePages(free ...int) {
	files := map[string]string{"proc/meminfo": "MemTotal: 33554432 kB\n", "sys/devices/system/node/online": "0-1\n"}
	for id, pages := range free {
		folder := fmt.Sprintf("sys/devices/system/node/node%d/", id)
		files[folder+"meminfo"] = fmt.Sprintf("Node %d MemTotal: 16777216 kB\n", id)
		files[folder+"cpulist"] = fmt.Sprintln(id)
		files[folder+"distance"] = []string{"10 21\n", "21 10\n"}[id]
		files[folder+"hugepages/hugepages-2048kB/nr_hugepages"] = "512\n"
		files[folder+"hugepages/hugepages-2048kB/free_hugepages"] = fmt.Sprintln(pages)
	}
	for name, text := range files {
		must(h.t, os.MkdirAll(filepath.Dir(h.path("machine/"+name)), 0o755))
		h.write("machine/"+name, text)
	}
	for i, flag := range h.flags {
		if flag == "--machine" {
			h.flags[i+1] = h.path("machine")
		}
	}
}

// freePages is the file of sysfs that says how many huge pages of node 0 are free.
func (h *host) freePages() string {
	return h.path("machine/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages")
}

// TestHugepagesOfOthers: a process of the host has taken the huge pages of node 0, which the node map does not know.
func TestHugepagesOfOthers(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, "topologyManagerPolicy: restricted\nkubeReserved: {memory: 924Mi}\nverifyHugepages: true\n")
	h.hugePages(64, 512)
	plugin := h.start()
	dpdk := guaranteed("dpdk", gi)
	dpdk.huge = 256 * mi
	const text = "insufficient hugepages-2Mi on NUMA node(s) [0]: requested 256Mi, available 128Mi"
	must(t, h.runPod(dpdk))
	err := h.create(dpdk)
	if err == nil {
		t.Fatal("the pod was created")
	}
	wantAll(t, err.Error(), text)
	wantAll(t, h.ask(0, "explain", "dpdk"), "(InsufficientHugepages)", text)
	wantAll(t, plugin.get("/metrics"), `nri_memory_manager_rejections_total{reason="InsufficientHugepages"} 1`)
	must(t, os.WriteFile(h.freePages(), []byte("128\n"), 0o644))
	must(t, h.create(dpdk))
	if got := h.mems(dpdk); got != "0" {
		t.Errorf("cpuset.mems is %q, want 0", got)
	}
}
