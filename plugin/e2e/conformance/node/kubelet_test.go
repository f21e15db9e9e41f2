package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// suitesConfig is a KubeletConfiguration as the suites write it.
const suitesConfig = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
featureGates: {MemoryQoS: GATE, PodLevelResourceManagers: true}
memoryManagerPolicy: Static
memoryThrottlingFactor: 0.8
memoryReservationPolicy: TieredReservation
topologyManagerPolicy: restricted
topologyManagerScope: pod
reservedMemory: [{numaNode: 0, limits: {memory: 1100Mi}}]
kubeReserved: {memory: 500Mi}
systemReserved: {memory: 500Mi}
evictionHard: {memory.available: 100Mi}
`

// TestThePluginTakesWhatTheSuitesWrite loads what the wrapper writes for the plugin.
func TestThePluginTakesWhatTheSuitesWrite(t *testing.T) {
	const factor, static = "memoryThrottlingFactor: 0.8\n", "memoryManagerPolicy: Static"
	for _, want := range []struct {
		gate, without string
		policy        string
		high          bool
	}{{"true", "", "TieredReservation", true}, {"true", factor, "TieredReservation", false}, {"false", "", "None", false}, {"false", static, "None", false}} {
		folder := t.TempDir()
		text := strings.Replace(strings.Replace(suitesConfig, "GATE", want.gate, 1), want.without, "", 1)
		var kubeletConfig map[string]any
		if err := yaml.Unmarshal([]byte(text), &kubeletConfig); err != nil {
			t.Fatal(err)
		}
		ours := pluginConfig(kubeletConfig, folder)
		for name, text := range map[string][]byte{kubeletFile: []byte(text), "config.yaml": ours} {
			if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c, err := config.Files(os.ReadFile).Load(filepath.Join(folder, "config.yaml"))
		if err != nil {
			t.Fatalf("%v in\n%s", err, ours)
		}
		if string(c.MemoryReservationPolicy) != want.policy || (c.MemoryThrottlingFactor != nil) != want.high {
			t.Errorf("MemoryQoS %s without %q: policy %s, factor %v", want.gate, want.without, c.MemoryReservationPolicy, c.MemoryThrottlingFactor)
		}
		if (c.MemoryManagerPolicy == config.MemoryManagerStatic) == (want.without == static) || !c.PodLevelResourceManagers || len(c.ReservedMemory) != 1 {
			t.Errorf("taken over: %+v", c)
		}
	}
}

// TestTheKubeletKeepsNoManager looks at what is left for the kubelet.
func TestTheKubeletKeepsNoManager(t *testing.T) {
	var given map[string]any
	if err := yaml.Unmarshal([]byte(strings.Replace(suitesConfig, "GATE", "true", 1)), &given); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(withoutManagers(given))
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"MemoryQoS: true", "memoryThrottlingFactor", "memoryReservationPolicy", "Static"} {
		if strings.Contains(string(text), gone) {
			t.Errorf("the kubelet keeps %s:\n%s", gone, text)
		}
	}
	for _, stays := range []string{"memoryManagerPolicy: None", "MemoryQoS: false", "topologyManagerPolicy: restricted", "PodLevelResourceManagers: true"} {
		if !strings.Contains(string(text), stays) {
			t.Errorf("the kubelet loses %s:\n%s", stays, text)
		}
	}
}

// TestFlags reads and changes a flag in both of its forms.
func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"--v", "4", "--config", "/a"}, {"--v", "4", "--config=/a"}} {
		if got := value(args, "--config"); got != "/a" {
			t.Errorf("%v: --config is %q", args, got)
		}
		changed := with(args, "--config", "/b")
		if got := value(changed, "--config"); got != "/b" || !slices.Equal(changed[:2], args[:2]) {
			t.Errorf("%v became %v", args, changed)
		}
	}
}

// TestOnlyErrorsOfTheKubeletsLogAreKept writes a log in pieces that end anywhere.
func TestOnlyErrorsOfTheKubeletsLogAreKept(t *testing.T) {
	var kept strings.Builder
	f := failures{to: &kept}
	for _, piece := range []string{"I1125 starts\nE1125 a", "n error\nW1125 a warning\n\nF1125 it ", "ends\nError: a reason\nE1125 unended"} {
		if n, err := f.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatalf("%q: %d, %v", piece, n, err)
		}
	}
	if want := "E1125 an error\nF1125 it ends\nError: a reason\n"; kept.String() != want {
		t.Errorf("kept %q, want %q", kept.String(), want)
	}
}
