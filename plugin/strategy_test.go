package main

import (
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// TestTheStrategyChoosesTheNode: the same pods, packed and spread, by the key and by what a kubelet's configuration says.
func TestTheStrategyChoosesTheNode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config, kubelet, mems, decided string
	}{
		"none":  {"", "", "0", ""},
		"most":  {"topologyManagerPolicyOptions: {numa-allocation-strategy: most-allocated}\n", "", "0", ""}, // as none
		"least": {"topologyManagerPolicyOptions: {numa-allocation-strategy: least-allocated}\n", "", "1", "least-allocated decided: node 1 (score 1) before node 0 (score 38)\n"},
		"kubelet": {"kubeletConfig: kubelet.yaml\n", "topologyManagerPolicyOptions: {numa-allocation-strategy: least-allocated}\n", "1",
			"least-allocated decided: node 1 (score 1) before node 0 (score 38)\n"},
		"weight 0": {"kubeletConfig: kubelet.yaml\n", "topologyManagerPolicyOptions: {numa-allocation-strategy: least-allocated, numa-score-weights: memory=0}\n", "0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, cri.Options{}, "topologyManagerPolicy: restricted\nkubeReserved: {memory: 924Mi}\n"+test.config)
			h.write("kubelet.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+test.kubelet)
			h.start()
			first, second := guaranteed("first", 6*gi), guaranteed("second", 2*gi)
			h.deploy(first, second)
			if got := h.mems(first) + " " + h.mems(second); got != "0 "+test.mems {
				t.Errorf("the pods are on %s, want 0 %s", got, test.mems)
			}
			explained := h.ask(0, "explain", "second")
			if strings.Contains(explained, "decided") != (test.decided != "") || !strings.Contains(explained, test.decided) {
				t.Errorf("want %q in\n%s", test.decided, explained)
			}
		})
	}
}
