package pods

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

const (
	gi         = 1 << 30
	nodeMemory = 512 * gi
	batch      = 100 // pods of one simulation
)

// rules is what Kubernetes' own functions say of a pod (tools/kubernetes/rules).
type rules struct {
	QOSClass       string
	Request, Limit uint64
	Containers     map[string]struct {
		Request     uint64
		OOMScoreAdj int64
	}
}

// simulated is what simulate prints.
type simulated struct {
	Containers []struct {
		Pod, Container, QOSClass, Reason string
		Admitted                         bool
		OOMScoreAdj                      int64
		Memory                           struct{ Request uint64 }
	}
	Ancestors []struct {
		Cgroup                          string
		MemoryMin, MemoryLow, MemoryMax uint64
	}
}

// TestSimulatorAgreesWithKubernetes compares what the simulator prints of random pods with what the functions of Kubernetes
// that the kubelet calls make of the same manifests: the QoS class, requests with their defaults, the pod's request in its
// cgroup's memory.min or low, its limit, and oom_score_adj.
func TestSimulatorAgreesWithKubernetes(t *testing.T) {
	dir := t.TempDir()
	plugin, kubernetes := filepath.Join(dir, "nri-memory-manager"), filepath.Join(dir, "rules")
	build(t, "../../..", plugin, "./plugin", setup.Flags...)
	build(t, "../tools/kubernetes", kubernetes, "./rules", setup.NoDebugging)
	write(t, filepath.Join(dir, "machine.yaml"), fmt.Sprintf("nodes: [{id: 0, memory: %d, cpus: 0-8191, hugepages: {2Mi: 8192, 1Gi: 240}}]\n", nodeMemory))
	write(t, filepath.Join(dir, "config.yaml"), "memoryManagerPolicy: None\ntopologyManagerPolicy: none\nguaranteedHeadroom: 0\n")

	bounds := Bounds{MinMemory: 1, MaxMemory: 8 * gi, MaxCPU: 5000, MinCPULimit: 1, MaxCPULimit: 64000, Hugepages: true}
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			list := corev1.PodList{}
			for _, pod := range Random(seed, batch, bounds) {
				list.Items = append(list.Items, *pod)
			}
			var said simulated
			ask(t, list, &said, plugin, "simulate", "--machine", filepath.Join(dir, "machine.yaml"), "--config", filepath.Join(dir, "config.yaml"),
				"--pod-info", "kubelet", "-o", "json", "-")
			var want []rules
			ask(t, list, &want, kubernetes, "-memory", fmt.Sprint(nodeMemory))
			for i := range list.Items {
				compare(t, &list.Items[i], want[i], said)
			}
		})
	}
}

func compare(t *testing.T, pod *corev1.Pod, want rules, said simulated) {
	t.Helper()
	var wrong []string
	check := func(what string, got, want any) {
		if got != want {
			wrong = append(wrong, fmt.Sprintf("%s is %v, want %v", what, got, want))
		}
	}
	for _, c := range said.Containers {
		if c.Pod != pod.Name {
			continue
		}
		check(c.Container+" is admitted", fmt.Sprint(c.Admitted, c.Reason), "true")
		check("QoS class", c.QOSClass, want.QOSClass)
		check(c.Container+"'s request", c.Memory.Request, want.Containers[c.Container].Request)
		check(c.Container+"'s oom_score_adj", c.OOMScoreAdj, want.Containers[c.Container].OOMScoreAdj)
	}
	level := map[string]string{"Guaranteed": "", "Burstable": "burstable", "BestEffort": "besteffort"}[want.QOSClass]
	cgroup, found := filepath.Join("kubepods", level, "pod"+string(pod.UID)), false
	for _, a := range said.Ancestors {
		if a.Cgroup != cgroup {
			continue
		}
		found = true
		switch want.QOSClass {
		case "Guaranteed":
			check("the pod's memory.min", a.MemoryMin/pageSize, want.Request/pageSize)
		case "Burstable":
			check("the pod's memory.low", a.MemoryLow/pageSize, want.Request/pageSize)
		}
		if a.MemoryMax != 0 {
			check("the pod's limit", a.MemoryMax, want.Limit)
		}
	}
	check("cgroup "+cgroup+" is there", found, true)
	if len(wrong) > 0 {
		text, _ := json.Marshal(pod)
		for _, line := range wrong {
			t.Errorf("%s: %s", pod.Name, line)
		}
		t.Logf("%s", text)
	}
}

const pageSize = 4096

// build builds a program with the flags that other builds of it have, so that Go's cache already has its packages: setup.Flags for programs
// of this project, setup.NoDebugging for those of Kubernetes.
func build(t *testing.T, module, out, program string, flags ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", slices.Concat([]string{"build", "-trimpath", "-o", out}, flags, []string{program})...)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", program, err, text)
	}
}

// ask reads the JSON that a program prints of pods.
func ask(t *testing.T, list corev1.PodList, answer any, program string, args ...string) {
	t.Helper()
	list.APIVersion, list.Kind = "v1", "List"
	manifest, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdin = bytes.NewReader(manifest)
	cmd.Env = append(os.Environ(), "TMPDIR="+memoryDir(t)) // the simulated nodes sync their files
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s%s", err, exit.Stderr, out)
		}
		t.Fatalf("%s: %v", filepath.Base(program), err)
	}
	if err := json.Unmarshal(out, answer); err != nil {
		t.Fatalf("%s: %v", filepath.Base(program), err)
	}
}

// memoryDir is a folder in memory where there is one.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "rules")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
