package cases

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestEvictedPodIsForgotten has the kubelet evict a pod for want of memory: what was promised to it is taken from the levels
// above, and the pod beside it keeps what it has.
func TestEvictedPodIsForgotten(t *testing.T) {
	const touched = 400 * MiB
	k := kubeletOf(t)
	used := func(what string) uint64 { return event(kubelet.Root, "memory.stat", what) }
	available := memTotal(t) - (used("anon") + used("file") - used("inactive_file")) // as the kubelet counts
	threshold := fmt.Sprintf("%dMi", (available-touched/2)/MiB)
	k = kubeletOf(t, kubelet.Config{"evictionHard": map[string]any{"memory.available": threshold}})
	p := startPlugin(t)
	stays := guaranteed("stays", 64*MiB, 16*MiB)
	greedy := &kubelet.Pod{Name: "greedy", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Args: touching(touched)}}}
	run(t, k, stays)
	p.onlyBooked(stays)
	run(t, k, greedy)
	holdsValue(t, k.QoS(greedy), "memory.low", 32*MiB)
	eventually(t, "the kubelet evicts the pod", func() string {
		object, err := k.Get(t.Context(), greedy)
		if err != nil {
			return err.Error()
		}
		if object.Status.Phase != corev1.PodFailed || object.Status.Reason != "Evicted" {
			return fmt.Sprintf("%s %s", object.Status.Phase, object.Status.Reason)
		}
		return ""
	})
	holdsValue(t, k.QoS(greedy), "memory.low", 0)
	p.onlyBooked(stays)
	eventually(t, "the other pod keeps its nodes", func() string {
		if now := file(dirOf(t, k, stays, "app"), "cpuset.mems"); now != "0" {
			return "cpuset.mems is " + now
		}
		return ""
	})
	p.clean(t)
}
