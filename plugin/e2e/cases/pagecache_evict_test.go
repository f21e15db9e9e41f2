package cases

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestPageCacheEvicts logs a table: whether the kubelet evicts a pod that holds nothing but the page cache of a file that it has
// read three times. The kubelet takes inactive file pages for available and active ones for used, and which are active is a
// matter of the kernel's multi-gen LRU. No plugin runs: it is the kernel and the kubelet that are measured.
func TestPageCacheEvicts(t *testing.T) {
	const (
		size = 1100 * MiB
		runs = 3
	)
	kubeletOf(t)
	dir := disk(t, size+128*MiB)
	fill(t, dir+"/big", int(size))
	write(t, "3", "/proc/sys/vm/drop_caches")
	threshold := available(t) - size + 350*MiB
	k := kubeletOf(t, kubelet.Config{
		"evictionHard":                     map[string]any{"memory.available": fmt.Sprint(threshold)},
		"evictionPressureTransitionPeriod": "5s",
		"localStorageCapacityIsolation":    true, // without it the kubelet has no statistics of its folder, and evicts nothing
	})
	usual := file(lruGen)
	t.Cleanup(func() { write(t, usual, lruGen) })
	t.Logf("kernel %s, lru_gen %s, evictionHard memory.available %d MiB", file("/proc/sys/kernel/osrelease"), usual, threshold/MiB)
	t.Log("| lru_gen | available before | least available | of the file active / inactive then | the pod | after |")
	for range runs { // by turns, so that none has the older kubelet
		for _, enabled := range []string{"y", "n"} {
			write(t, "3", "/proc/sys/vm/drop_caches") // or the switch makes pages active that another pod has read
			write(t, enabled, lruGen)
			t.Logf("| %s | %s |", file(lruGen), reads(t, k, dir))
		}
	}
}

// reads runs a pod that reads the file, and watches for a minute after that whether it is evicted.
func reads(t *testing.T, k *kubelet.Kubelet, dir string) string {
	t.Helper()
	pod := &kubelet.Pod{Name: "reader", Containers: []kubelet.Container{{
		Name: "app", Mounts: map[string]string{"/data": dir + ":ro"},
		// It does not end with 0 at SIGTERM: the pod would have succeeded then, evicted or not.
		Args: []string{"term=1", "wait=/ctl/go", "read=/data/big", "read=/data/big", "read=/data/big", "say=enough", "sleep"},
	}}}
	eventually(t, "the node takes the pod", func() string { // it takes none of the class BestEffort while it is short of memory
		if err := k.Run(t.Context(), pod); err != nil {
			_ = k.Remove(t.Context(), pod)
			return err.Error()
		}
		return ""
	})
	cgroup, before := dirOf(t, k, pod, "app"), available(t)
	least, pages, end := before, "", "stays"
	began := time.Now()
	deadline := began.Add(waitLimit)
	touchFile(t, k.Control(pod), "go")
	for read := false; end == "stays" && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if now := available(t); now < least && file(cgroup, "memory.stat") != "" {
			least = now
			pages = fmt.Sprintf("%d / %d MiB", event(cgroup, "memory.stat", "active_file")/MiB, event(cgroup, "memory.stat", "inactive_file")/MiB)
		}
		if !read && strings.Contains(k.Output(pod, "app"), "done say=enough") {
			read, deadline = true, time.Now().Add(time.Minute)
		}
		if object, err := k.Get(t.Context(), pod); err == nil && object.Status.Phase == corev1.PodFailed {
			end = object.Status.Reason
		}
	}
	row := fmt.Sprintf("%d MiB | %d MiB | %s | %s | %.0f s", before/MiB, least/MiB, pages, end, time.Since(began).Seconds())
	if err := k.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return row
}
