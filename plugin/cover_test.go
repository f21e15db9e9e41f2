package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cri"
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
	for deadline := time.Now().Add(bound); ; {
		out := h.ask(0, args...)
		if strings.Contains(out, text) {
			return out
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%s does not show %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
}

// TestANodeThatOwesMoreThanItHasIsShown: other processes have filled node 0, on which a pinned pod has 4Gi allocated.
func TestANodeThatOwesMoreThanItHasIsShown(t *testing.T) {
	h := newHost(t, cri.Options{}, "topologyManagerPolicy: restricted\nkubeReserved: {memory: 924Mi}\n")
	h.onKernel(2*gi, 12*gi)
	plugin := h.start()
	h.shows("COVER   (owed", "status")
	pod := guaranteed("database", 4*gi)
	h.deploy(pod)
	must(t, h.tree.Write(pod.cgroup()+"/"+pod.id(), "memory.numa_stat", "anon N0=1073741824 N1=0\n"))
	wantAll(t, h.shows("OWES 1Gi MORE THAN IT HAS", "status"), "0     3Gi   2Gi   0            OWES", "1     0     12Gi  0            covered")
	wantAll(t, h.ask(0, "explain", "database"), "3Gi of it on node 0 are not used yet, and the node owes 1Gi more than it has")
	wantAll(t, h.ask(0, "status", "-o", "json"), `"deficit": 1073741824`)
	wantAll(t, plugin.get("/metrics"), `nri_memory_manager_numa_owed_bytes{numa_node="0"} 3.221225472e+09`,
		`nri_memory_manager_numa_cover_bytes{numa_node="0",source="free"} 2.147483648e+09`)
}
