package cases

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestMemoryManagerDecidesAsTheKubelets runs the same pods under the Static policy of the kubelet and, beside a kubelet
// without one, under the plugin's. With each pod that comes, the node map and the allocations of both checkpoints are the same.
func TestMemoryManagerDecidesAsTheKubelets(t *testing.T) {
	reservations := kubelet.Config{
		"kubeReserved": map[string]any{"memory": "44Mi"}, "evictionHard": map[string]any{"memory.available": "20Mi"},
	}
	k := kubeletOf(t, reservations, kubelet.Config{
		"memoryManagerPolicy": "Static", "topologyManagerPolicy": "best-effort",
		"reservedMemory": []any{map[string]any{"numaNode": 0, "limits": map[string]any{"memory": "64Mi"}}},
	})
	theirs := allocations(t, k, "/var/lib/kubelet/memory_manager_state")

	k = kubeletOf(t, reservations)
	p := startPlugin(t, "topologyManagerPolicy: best-effort", "kubeReserved: {memory: 44Mi}", "evictionHard: {memory.available: 20Mi}",
		"reservedMemory: [{numaNode: 0, limits: {memory: 64Mi}}]")
	ours := allocations(t, k, p.stateFile())
	for i := range theirs {
		if ours[i] != theirs[i] {
			t.Errorf("pod %d: the plugin has\n%s\nthe kubelet has\n%s", i, ours[i], theirs[i])
		}
	}
}

// allocations runs a pod that needs a group of nodes, then some that fill the nodes one by one, and returns what the checkpoint
// holds with each; with FULL=1 others join the group and take the place of one that has gone. The kubelet forgets a pod that
// has gone only when the next one comes.
func allocations(t *testing.T, k *kubelet.Kubelet, checkpoint string) []string {
	t.Helper()
	pod := func(name string, bytes uint64) *kubelet.Pod { return guaranteed(name, bytes, MiB) }
	wide, beside := pod("wide", 1700*MiB), pod("beside", 64*MiB)
	first, second, third, fourth := pod("first", 300*MiB), pod("second", 900*MiB), pod("third", 250*MiB), pod("fourth", 350*MiB)
	third.Containers[0].Hugepages = 16 * MiB // only node 1 has so many
	var seen []string
	var living []*kubelet.Pod
	type step struct {
		goes []*kubelet.Pod
		come *kubelet.Pod
	}
	steps := []step{{nil, wide}, {[]*kubelet.Pod{wide}, first}, {nil, second}, {nil, third}}
	if k.Plan.Full {
		steps = []step{{nil, wide}, {nil, beside}, {[]*kubelet.Pod{wide, beside}, first}, {nil, second}, {nil, third}, {[]*kubelet.Pod{first}, fourth}}
	}
	for _, step := range steps {
		for _, pod := range step.goes {
			if err := k.Remove(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			living = slices.DeleteFunc(living, func(p *kubelet.Pod) bool { return p == pod })
		}
		run(t, k, step.come)
		living = append(living, step.come)
		seen = append(seen, allocated(t, checkpoint, living))
	}
	if err := k.RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return seen
}

// allocated waits until the checkpoint has these pods and no others, and returns its node map and allocations by pods' names.
func allocated(t *testing.T, checkpoint string, living []*kubelet.Pod) string {
	t.Helper()
	var s state
	eventually(t, checkpoint+" has the living pods", func() string {
		var err error
		if s, err = readState(checkpoint); err != nil {
			return err.Error()
		}
		for _, pod := range living {
			if s.Entries[pod.UID] == nil {
				return fmt.Sprintf("no allocation of %s: %v", pod.Name, s.Entries)
			}
		}
		if len(s.Entries) > len(living) {
			return fmt.Sprintf("allocations of others: %v", s.Entries)
		}
		return ""
	})
	byName := map[string][]block{}
	for _, pod := range living {
		blocks := s.Entries[pod.UID]["app"]
		slices.SortFunc(blocks, func(a, b block) int { return len(a.Type) - len(b.Type) })
		byName[pod.Name] = blocks
	}
	text, err := json.MarshalIndent(map[string]any{"nodes": s.MachineState, "allocations": byName}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
