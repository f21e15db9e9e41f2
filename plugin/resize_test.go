package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// TestAResizeThatDoesNotFit is accepted: the kubelet would try a refused one again every second.
func TestAResizeThatDoesNotFit(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	neighbor, web := guaranteed("neighbor", 6*gi), guaranteed("web", 8*gi)
	h.deploy(neighbor, web)
	must(t, h.resize(web, 12*gi))
	want := []string{"uid-neighbor/app 0 6442450944", "uid-web/app 0 10200547328"} // what is left of node 0's 15.5Gi
	shown := func() {
		t.Helper()
		if got := h.entries(); !slices.Equal(got, want) {
			t.Errorf("allocated %q, want %q", got, want)
		}
		if got := h.mems(web); got != "0-1" {
			t.Errorf("cpuset.mems is %q, want all nodes", got)
		}
		wantAll(t, h.ask(0, "status"), "app (pending resize)", "PENDING RESIZES\ndefault/web app: 2.5Gi of memory that a resize asks for has no room on node 0")
	}
	shown()
	wantAll(t, h.ask(0, "explain", "default/web"), "a pending resize lacks 2.5Gi of memory", "9.5Gi of memory on node 0")
	wantAll(t, h.ask(1, "verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml")),
		"WARNING  default/web/app: a resize found no room for 2.5Gi of memory on node 0", "[pending-resize]")
	wantAll(t, plugin.get("/metrics"), "nri_memory_manager_pending_resize_containers 1\n", `nri_memory_manager_pending_resize_bytes{type="memory"} 2.68435456e+09`)
	if code, out, errOut := run(t, "", "state", "verify", h.path("state/memory_manager_state"), "--machine", h.path("machine.yaml"), "--config", h.path("config.yaml")); code != 0 {
		t.Errorf("state verify: exit code %d\n%s%s", code, out, errOut)
	}

	plugin.kill()
	h.start()
	shown()
	must(t, h.endPod(neighbor))
	eventually(t, "the container has all of its memory on its node", func() bool {
		return h.mems(web) == "0" && slices.Equal(h.entries(), []string{"uid-web/app 0 12884901888"})
	})
	if out := h.ask(0, "status"); strings.Contains(out, "pending") {
		t.Errorf("it is still short:\n%s", out)
	}
}

// TestARefusedResize is one, however often the kubelet tries.
func TestARefusedResize(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, strings.Replace(testConfig, "restricted", "single-numa-node", 1))
	plugin := h.start()
	neighbor, web := guaranteed("neighbor", 6*gi), guaranteed("web", 8*gi)
	h.deploy(neighbor, web)
	const rejected = `nri_memory_manager_rejections_total{reason="ResizeInfeasible"} `
	wantAll(t, plugin.get("/metrics"), rejected+"0\n") // what begins with 1 has not increased
	for range 20 {
		if err := h.resize(web, 12*gi); err == nil || !strings.Contains(err.Error(), "node 0 has no room for more, and the policy allows no second one") {
			t.Fatalf("the resize ended with %v", err)
		}
	}
	var document status.Document
	must(t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
	if len(document.Rejections) != 1 {
		t.Errorf("status has %+v, want one rejection", document.Rejections)
	}
	wantAll(t, plugin.get("/metrics"), rejected+"1\n")
	if lines := strings.Count(plugin.log.String(), "container updated: refused"); lines != 1 {
		t.Errorf("%d lines in the log, want 1", lines)
	}
	if got := h.entries(); !slices.Equal(got, []string{"uid-neighbor/app 0 6442450944", "uid-web/app 0 8589934592"}) {
		t.Errorf("allocated %q", got)
	}
	must(t, h.endPod(neighbor))
	must(t, h.resize(web, 12*gi))
}

// TestCPUsOverTwoNodes plays a kubelet without a topology policy: it assigns CPUs wherever some are free.
func TestCPUsOverTwoNodes(t *testing.T) {
	t.Parallel()
	t.Run("Follow", func(t *testing.T) {
		h := newHost(t, cri.Options{}, testConfig)
		h.start()
		wide := guaranteed("wide", gi)
		wide.cpus = "2-5"
		h.deploy(wide)
		if got := h.mems(wide); got != "0-1" {
			t.Errorf("cpuset.mems is %q, want the nodes of the CPUs", got)
		}
		wantAll(t, h.ask(0, "explain", "default/wide"), "pinned under restricted, on nodes of its CPUs",
			"its CPUs (4) are on nodes 0-1, its memory on nodes 0-1: none of the CPUs is remote")
		wantAll(t, h.ask(1, "verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml")),
			"default/wide/app: its exclusive CPUs are on nodes 0-1, more than the policy restricted admits for its memory: its memory is on nodes 0-1", "[cpus-on-several-nodes]")
	})
	t.Run("Follow beside others", func(t *testing.T) {
		h := newHost(t, cri.Options{}, testConfig)
		h.start()
		other, wide := guaranteed("other", gi), guaranteed("wide", gi)
		wide.cpus = "2-5"
		h.deploy(other, wide)
		if got := h.mems(wide); got != "0" {
			t.Errorf("cpuset.mems is %q, want one of the nodes of the CPUs", got)
		}
		wantAll(t, h.ask(0, "explain", "default/wide"), "2 of its 4 CPUs are on node 1, its memory on node 0: half of the CPUs are remote")
	})
	t.Run("Reject", func(t *testing.T) {
		h := newHost(t, cri.Options{}, testConfig+"onConflict: Kubelet\n")
		h.start()
		wide := guaranteed("wide", gi)
		wide.cpus = "2-5"
		must(t, h.runPod(wide))
		const text = "its exclusive CPUs are on nodes 0-1, more than the policy admits for this request; " +
			"onConflict: CPUs in the plugin's configuration lets its memory follow them, and " +
			"topologyManagerPolicy: restricted in the kubelet's configuration has it assign CPUs on fewer nodes"
		if err := h.create(wide); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("the create ended with %v, want %s", err, text)
		}
		wantAll(t, h.ask(0, "explain", "default/wide"), text)
		wantAll(t, h.ask(1, "verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml")), "it is rejected", "[cpus-on-several-nodes]")
	})
}
