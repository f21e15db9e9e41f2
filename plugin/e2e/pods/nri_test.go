package pods

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// TestSimulatorAgreesWithNRI compares what simulate prints of random pods with what the demo prints (make run), which sends
// the same pods through NRI's own runtime side and its socket into the plugin's process.
func TestSimulatorAgreesWithNRI(t *testing.T) {
	dir := t.TempDir()
	plugin, demo := filepath.Join(dir, "nri-memory-manager"), filepath.Join(dir, "demo")
	build(t, "../../..", plugin, "./plugin", setup.Flags...)
	build(t, "../../..", demo, "./plugin/demo", setup.Flags...)
	bounds := Bounds{MinMemory: 1, MaxMemory: 16 * gi, MaxCPU: 5000, MinCPULimit: 1, MaxCPULimit: 64000, Hugepages: true}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			list := corev1.PodList{}
			for _, pod := range Random(seed, batch/2, bounds) {
				list.Items = append(list.Items, *pod)
			}
			args := []string{"--machine", "../../../testdata/machines/eight-socket.yaml", "--config", "../../../testdata/config/demo.yaml",
				"--pod-info", "kubelet", "--cgroup-driver", []string{"cgroupfs", "systemd"}[seed%2], "-o", "json"}
			simulated := printed(t, list, plugin, append(append([]string{"simulate"}, args...), "-")...)
			demonstrated := printed(t, list, demo, append(append([]string{"--plugin", plugin, "--once"}, args...), "-")...)
			if !bytes.Equal(simulated, demonstrated) {
				at := firstDifference(simulated, demonstrated)
				t.Errorf("simulate prints\n%s\nand through NRI it is\n%s", around(simulated, at), around(demonstrated, at))
			}
		})
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func around(text []byte, at int) []byte { return text[max(0, at-1000):min(at+200, len(text))] }

// printed is what a program prints of pods; it may exit with 1 because some of them are rejected.
func printed(t *testing.T, list corev1.PodList, program string, args ...string) []byte {
	t.Helper()
	list.APIVersion, list.Kind = "v1", "List"
	manifest, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdin = bytes.NewReader(manifest)
	cmd.Env = append(os.Environ(), "TMPDIR="+memoryDir(t))
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || len(out) == 0) {
		if exit != nil {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("%s: %v", filepath.Base(program), err)
	}
	return out
}
