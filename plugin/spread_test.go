package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// spreading is a pod with the annotation numa: spread, which may use both NUMA nodes.
func spreading(p *testPod) *testPod {
	p.annotations = map[string]string{"numa.memory-manager.noderesource.dev": "spread"}
	p.files = map[string]string{"cpuset.mems.effective": "0-1"}
	return p
}

// policyOf is the memory policy in a container's OCI spec; "" is none.
func (h *host) policyOf(p *testPod) string {
	policy := h.runtime.MemoryPolicy(p.id())
	if policy == nil {
		return ""
	}
	return string(policy.Mode) + " " + policy.Nodes
}

// evenParts are the bytes of a pod's memory on each node, as status shows them.
func (h *host) evenParts(p *testPod) memorymanager.NodeAmounts {
	h.t.Helper()
	var document status.Document
	must(h.t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
	at := slices.IndexFunc(document.Pods, func(pod status.Pod) bool { return pod.Name == p.name })
	if at < 0 || len(document.Pods[at].Containers[0].Blocks) == 0 || !document.Pods[at].Containers[0].Blocks[0].Even {
		h.t.Fatalf("status shows no even allocation of %s", p.name)
	}
	return document.Pods[at].Containers[0].Blocks[0].PerNode
}

func TestASpreadContainerKeepsItsEvenParts(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	odd := spreading(guaranteed("odd", 8*gi+4096))
	wide := guaranteed("wide", 20*gi)
	h.deploy(odd, wide)
	check := func(when string, larger int64) {
		t.Helper()
		want := map[string]int64{"0": larger, "1": 4 * gi}
		wantEqual(t, when+": its parts", asJSON(t, h.evenParts(odd)), asJSON(t, want))
		wantEqual(t, when+": cpuset.mems", h.mems(odd), "0-1")
	}
	check("created", 4*gi+4096)
	wantEqual(t, "the memory policy", h.policyOf(odd), "MPOL_INTERLEAVE 0-1")
	wantEqual(t, "the memory policy of a container in its group", h.policyOf(wide), "")
	wantAll(t, h.ask(0, "explain", "odd"), "on nodes 0-1, pinned under restricted, spread evenly\n",
		"started with the memory policy MPOL_INTERLEAVE 0-1 (annotation numa)", "8Gi of memory on nodes 0-1, evenly: 4Gi on node 0, 4Gi on node 1")

	stored := func() string {
		t.Helper()
		text, err := durable.Newest(h.path("state/memory_manager_state"))
		must(t, err)
		return string(text)
	}
	before := stored()
	wantAll(t, before, `"perNode":{"0":4294971392,"1":4294967296},"even":true`)
	plugin.kill()
	plugin = h.start()
	check("after a kill", 4*gi+4096)
	wantEqual(t, "the state file after a kill", stored(), before)

	// The other's bytes leave the group, and nothing of its.
	must(t, h.endPod(wide))
	check("alone", 4*gi+4096)
	must(t, h.resize(odd, 10*gi))
	wantEqual(t, "resized", asJSON(t, h.evenParts(odd)), asJSON(t, map[string]int64{"0": 5 * gi, "1": 5 * gi}))
	must(t, h.resize(odd, 8*gi))
	check("resized back", 4*gi)

	// What a kubelet or an older release writes has no even parts, only the sums.
	plugin.kill()
	code, exported, errOut := run(t, "", "state", "export", "--state-dir", h.path("state"))
	if code != 0 || strings.Contains(exported, "perNode") || strings.Contains(exported, "even") {
		t.Fatalf("export ended with %d\n%s%s", code, exported, errOut)
	}
	h.write("state/memory_manager_state", exported)
	plugin = h.start()
	check("after another writer of the state file", 4*gi)

	plugin.kill()
	must(t, os.Remove(h.path("state/memory_manager_state")))
	h.start()
	check("without a state file", 4*gi)
	must(t, h.stopContainer(odd))
	odd.tries++
	must(t, h.create(odd))
	check("created again", 4*gi)

	refused := spreading(guaranteed("refused", 24*gi))
	must(t, h.runPod(refused))
	if err := h.create(refused); err == nil || !strings.Contains(err.Error(), "its memory cannot be spread evenly over nodes 0-1: "+
		"node 0 (group 0-1): 11.5Gi of 15.5Gi free, 12Gi needed; node 1 (group 0-1): 11.5Gi of 15.5Gi free, 12Gi needed") {
		t.Errorf("got %v", err)
	}
}

func TestWhereSpreadApplies(t *testing.T) {
	t.Parallel()
	old := cri.Options{Name: "containerd", Version: "v2.1.4", NRI: nriplugin.Version{Minor: 8}}
	for name, test := range map[string]struct {
		config  string
		options cri.Options
		pod     *testPod
		mems    string
		policy  string
		says    string
	}{
		"Burstable":                    {"", cri.Options{}, spreading(burstable("p", 2*gi, 968)), "", "MPOL_INTERLEAVE 0-1", "MPOL_INTERLEAVE 0-1 (annotation numa)"},
		"a runtime without policies":   {"", old, spreading(guaranteed("p", 2*gi)), "0-1", "", "without a memory policy: numa spread: containerd v2.1.4 applies none"},
		"single-numa-node":             {"topologyManagerPolicy: single-numa-node", cri.Options{}, spreading(guaranteed("p", 2*gi)), "0", "", "which spreads nothing"},
		"scope pod":                    {"topologyManagerScope: pod", cri.Options{}, spreading(guaranteed("p", 2*gi)), "0-1", "MPOL_INTERLEAVE 0-1", "evenly: 1Gi on node 0, 1Gi on node 1"},
		"not allowed":                  {"annotationRules: [{namespaces: ['*'], allowedAnnotations: [reservation]}]", cri.Options{}, spreading(guaranteed("p", 2*gi)), "0", "", "pinned under restricted"},
		"not allowed in its namespace": {"annotationRules: [{namespaces: [default], allowedAnnotations: []}]", cri.Options{}, spreading(guaranteed("p", 2*gi)), "0", "", "pinned under restricted"},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig
			if strings.HasPrefix(test.config, "topologyManagerPolicy") {
				config = strings.Replace(config, "topologyManagerPolicy: restricted\n", "", 1)
			}
			h := newHost(t, test.options, config+test.config+"\n")
			plugin := h.start("--record", h.path("recording"))
			h.deploy(test.pod)
			wantEqual(t, "cpuset.mems", h.mems(test.pod), test.mems)
			wantEqual(t, "the memory policy", h.policyOf(test.pod), test.policy)
			wantAll(t, h.ask(0, "explain", "p"), test.says)
			plugin.stop()
			if code, out, errOut := run(t, "", "replay", h.path("recording")); code != 0 || !strings.Contains(out, " 0 differ\n") {
				t.Errorf("replay: exit code %d\n%s%s", code, out, errOut)
			}
		})
	}
}

func TestSimulateSpreads(t *testing.T) {
	t.Parallel()
	manifest := strings.Replace(pod("{limits: {cpu: 2, memory: 40Gi}}"), "{name: web}", "{name: web, annotations: {numa.memory-manager.noderesource.dev: spread}}", 1)
	result := simulateJSON(t, manifest, exitOK, "--machine", taskPageMachine, "--config", taskPageConfig)
	if got := result.Containers[0]; !got.Admitted || got.CpusetMems != "0-1" || !strings.Contains(string(result.State), `"even": true`) {
		t.Errorf("the container is %+v, and the state\n%s", got, result.State)
	}
}
