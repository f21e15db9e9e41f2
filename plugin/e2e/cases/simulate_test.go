package cases

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// simulated is what `simulate -o json` prints.
type simulated struct {
	Containers []simulatedContainer `json:"containers"`
	Ancestors  []struct {
		Cgroup    string  `json:"cgroup"`
		MemoryMin *uint64 `json:"memoryMin"`
		MemoryLow *uint64 `json:"memoryLow"`
		MemoryMax *uint64 `json:"memoryMax"`
	} `json:"ancestors"`
}

type simulatedContainer struct {
	Pod        string `json:"pod"`
	Container  string `json:"container"`
	QoSClass   string `json:"qosClass"`
	Admitted   bool   `json:"admitted"`
	Reason     string `json:"reason"`
	CpusetMems string `json:"cpusetMems"`
	OOMScore   int64  `json:"oomScoreAdj"`
	OCI        struct {
		CPU struct {
			Shares uint64 `json:"shares"`
			Quota  int64  `json:"quota"`
			Period uint64 `json:"period"`
		} `json:"cpu"`
		HugepageLimits []struct {
			PageSize string `json:"pageSize"`
			Limit    uint64 `json:"limit"`
		} `json:"hugepageLimits"`
		Unified map[string]string `json:"unified"`
	} `json:"oci"`
	Memory struct {
		Request       uint64  `json:"request"`
		RequestSource string  `json:"requestSource"`
		Min           *uint64 `json:"min"`
		Low           *uint64 `json:"low"`
		High          *uint64 `json:"high"`
		Max           *uint64 `json:"max"`
	} `json:"memory"`
}

// simulate asks the simulator for what these pods get on this machine under the plugin's configuration.
func (p *plugin) simulate(pods ...*kubelet.Pod) simulated {
	p.t.Helper()
	args := []string{"simulate", "--machine", "/", "--config", p.config, "--pod-info", "kubelet", "-o", "json"}
	for _, pod := range pods {
		manifest, err := json.Marshal(pod.Object())
		if err != nil {
			p.t.Fatal(err)
		}
		file := filepath.Join(p.t.TempDir(), pod.Name+".yaml")
		if err := os.WriteFile(file, manifest, 0o644); err != nil {
			p.t.Fatal(err)
		}
		args = append(args, file)
	}
	cmd := exec.CommandContext(p.t.Context(), setup.Plugin, args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	var s simulated
	if jsonErr := json.Unmarshal(out, &s); jsonErr != nil {
		p.t.Fatalf("simulate: %v, %v: %s%s", err, jsonErr, out, said.String())
	}
	return s
}

// container finds a container of the simulation.
func (s simulated) container(t *testing.T, pod, name string) simulatedContainer {
	t.Helper()
	for _, c := range s.Containers {
		if c.Pod == pod && c.Container == name {
			return c
		}
	}
	t.Fatalf("the simulator has no container %s/%s", pod, name)
	return simulatedContainer{}
}

// ancestor finds a level by the end of its name; both drivers' forms are taken.
func (s simulated) ancestor(t *testing.T, level string) (low, min uint64) {
	t.Helper()
	for _, a := range s.Ancestors {
		base := strings.TrimSuffix(filepath.Base(a.Cgroup), ".slice")
		if base == level || strings.HasSuffix(strings.ReplaceAll(base, "_", "-"), level) {
			return value(a.MemoryLow, 0), value(a.MemoryMin, 0)
		}
	}
	t.Fatalf("the simulator has no level %s: %+v", level, s.Ancestors)
	return 0, 0
}

// value is *v, or what the kernel shows when nothing is set.
func value(v *uint64, unset uint64) uint64 {
	if v == nil {
		return unset
	}
	return *v
}

// wholePages is a value as the kernel shows it.
func wholePages(bytes uint64) uint64 {
	if bytes == unlimited {
		return bytes
	}
	return bytes / 4096 * 4096
}

// agrees waits until the kernel's files of all pods, their containers and the
// parent cgroups hold what the simulator says.
func (p *plugin) agrees(k machine, s simulated, pods ...*kubelet.Pod) {
	p.t.Helper()
	eventually(p.t, "the kernel holds what the simulator says", func() string {
		var wrong []string
		check := func(dir, file string, want uint64) {
			if got := number(p.t, dir, file); got != wholePages(want) {
				wrong = append(wrong, fmt.Sprintf("%s/%s is %d, want %d", strings.TrimPrefix(dir, kubelet.Root), file, got, want))
			}
		}
		levels := map[string]string{k.Kubepods(): "kubepods"}
		for _, pod := range pods {
			levels[k.Dir(pod)] = pod.UID
			if dir := k.QoS(pod); dir != k.Kubepods() && pod.Class() != "BestEffort" {
				levels[dir] = strings.ToLower(string(pod.Class()))
			}
			for _, c := range pod.Containers {
				if c.Init {
					continue
				}
				want, dir := s.container(p.t, pod.Name, c.Name), dirOf(p.t, k, pod, c.Name)
				high := unlimited // the file may have one above the pod's limit, which Memory leaves out
				if text := want.OCI.Unified["memory.high"]; text != "" && text != "max" {
					var err error
					if high, err = strconv.ParseUint(text, 10, 64); err != nil {
						p.t.Fatal(err)
					}
				}
				for _, dir := range kubelet.Leaves(dir) {
					check(dir, "memory.min", value(want.Memory.Min, 0))
					check(dir, "memory.low", value(want.Memory.Low, 0))
					check(dir, "memory.high", high)
					check(dir, "memory.max", value(want.Memory.Max, unlimited))
					if mems := file(dir, "cpuset.mems"); mems != want.CpusetMems {
						wrong = append(wrong, fmt.Sprintf("%s/%s has cpuset.mems %q, want %q", pod.Name, c.Name, mems, want.CpusetMems))
					}
				}
			}
		}
		for dir, level := range levels {
			low, min := s.ancestor(p.t, level)
			check(dir, "memory.min", min)
			check(dir, "memory.low", low)
		}
		return strings.Join(wrong, "; ")
	})
}
