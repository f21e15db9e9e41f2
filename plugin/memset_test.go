package main

import (
	"slices"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// TestContainersKnowTheirNodes reads ASSIGNED_MEMSET in the OCI specs that NRI makes of the plugin's answers.
func TestContainersKnowTheirNodes(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, "kubeReserved: {memory: 924Mi}\ntopologyManagerPolicy: restricted\nexposeAssignedMemset: true\n")
	plugin := h.start()
	env := func(p *testPod) []string {
		for _, container := range h.runtime.Containers() {
			if container.Id == p.id() {
				return container.Env
			}
		}
		return nil
	}
	check := func(p *testPod, want ...string) {
		t.Helper()
		if got := env(p); !slices.Equal(got, want) {
			t.Errorf("the environment of %s is %q, want %q", p.name, got, want)
		}
	}
	first, second, both, web := guaranteed("first", 10*gi), guaranteed("second", 10*gi), guaranteed("own", gi), burstable("web", gi, 968)
	second.env = []string{"PATH=/bin"}
	both.env = []string{"ASSIGNED_MEMSET=", "PATH=/bin"} // a kubelet whose Memory Manager is off
	h.deploy(first, second, both, web)
	check(first, "ASSIGNED_MEMSET=0")
	check(second, "PATH=/bin", "ASSIGNED_MEMSET=1")
	check(both, both.env...)
	check(web)

	// A resize changes the nodes of a running container, and not its environment. The next start has the nodes of its time.
	must(t, h.endPod(second))
	must(t, h.endPod(both))
	must(t, h.resize(first, 20*gi))
	if mems := h.mems(first); mems != "0-1" {
		t.Fatalf("cpuset.mems is %q after the resize, want 0-1\n%s", mems, plugin.get("/status"))
	}
	check(first, "ASSIGNED_MEMSET=0")
	must(t, h.stopContainer(first))
	first.tries++
	must(t, h.create(first))
	check(first, "ASSIGNED_MEMSET=0-1")
}
