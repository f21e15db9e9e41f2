package cases

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// evicting has the kubelet look at the node's memory as often as it does by default, from its next start on.
func evicting(t *testing.T) {
	t.Helper()
	k := kubeletOf(t)
	k.Housekeeping = 10 * time.Second
	t.Cleanup(func() { k.Housekeeping = 0 })
}

// TestEvictedPodLeavesNothing has the kubelet evict a pod when the node runs short of memory. What the pod had is free again, for the
// kernel and in the node map, although its object stays; the others keep what they have, and the next pod gets the room.
func TestEvictedPodLeavesNothing(t *testing.T) {
	const appetite = 600 * MiB
	evicting(t)
	p := startPlugin(t, "topologyManagerPolicy: restricted", "memoryReservationPolicy: TieredReservation", "guaranteedHeadroom: 0")
	k := kubeletOf(t, kubelet.Config{
		"evictionHard":                     map[string]any{"memory.available": fmt.Sprint(available(t) - appetite/2)},
		"evictionPressureTransitionPeriod": "5s",
		"localStorageCapacityIsolation":    true, // without it the kubelet has no statistics of its folder, and evicts nothing
	})
	stays := run(t, k, guaranteed("stays", 100*MiB, MiB))
	small := run(t, k, &kubelet.Pod{Name: "small", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB, Args: touching(MiB)}}})
	kubepods, burstable := k.Kubepods(), k.QoS(small)
	holdsValue(t, kubepods, "memory.min", 132*MiB)
	holdsValue(t, burstable, "memory.low", 32*MiB)

	hog := guaranteed("hog", appetite+32*MiB, appetite)
	hog.Priority = -10 // the kubelet's statistics of what pods use are some seconds old
	// It does not end with 0 within its grace period of 2 seconds: the pod would have succeeded then, evicted or not.
	hog.Containers[0].Args = []string{"term=1", "wait=/ctl/go", fmt.Sprint("touch=", appetite)}
	run(t, k, hog)
	holdsValue(t, kubepods, "memory.min", appetite+164*MiB)
	node := p.allocated(hog, "app")[0].Nodes
	touchFile(t, k.Control(hog), "go")
	eventually(t, "the kubelet evicts the pod", func() string {
		object, err := k.Get(t.Context(), hog)
		if err != nil {
			return err.Error()
		}
		if object.Status.Phase != corev1.PodFailed || object.Status.Reason != "Evicted" {
			return fmt.Sprint(object.Status.Phase, " ", object.Status.Reason)
		}
		return ""
	})

	holdsValue(t, kubepods, "memory.min", 132*MiB)
	holdsValue(t, burstable, "memory.low", 32*MiB)
	eventually(t, "nothing is allocated for the pod that was evicted", func() string {
		out, code := p.ask("status")
		if code != 0 || strings.Contains(out, "default/hog") || !strings.Contains(out, "default/stays") || p.allocated(hog, "app") != nil {
			return fmt.Sprint(p.allocated(hog, "app"), out)
		}
		return ""
	})
	holdsValue(t, k.Dir(stays), "memory.min", 100*MiB)
	next := run(t, k, guaranteed("next", appetite, MiB))
	if got := p.allocated(next, "app"); len(got) == 0 || fmt.Sprint(got[0].Nodes) != fmt.Sprint(node) {
		t.Errorf("the next pod is allocated %+v, want the room on node %v", got, node)
	}
	if out, code := p.ask("verify"); code != 0 {
		t.Errorf("verify: exit status %d:\n%s", code, out)
	}
}

// available is the kubelet's memory.available in bytes: what the node has without its working set.
func available(t *testing.T) uint64 {
	t.Helper()
	for line := range strings.Lines(file(kubelet.Root, "memory.stat")) {
		var inactive uint64
		if _, err := fmt.Sscanf(line, "inactive_file %d", &inactive); err == nil {
			return meminfo(t, "MemFree") + inactive
		}
	}
	t.Fatal("no inactive_file in memory.stat")
	return 0
}
