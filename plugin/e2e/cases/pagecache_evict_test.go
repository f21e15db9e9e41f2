package cases

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestPageCacheEvicts has a real kubelet evict a pod that holds nothing but the page cache of a file that it has read three times, which
// reclaimBeforeEviction prevents. The kubelet takes inactive file pages for available and active ones for used, and which are active
// is a matter of the kernel's multi-gen LRU. What it logs with FULL=1 is the table of docs/measurements.md.
func TestPageCacheEvicts(t *testing.T) {
	const (
		size      = 1100 * MiB
		reclaimed = "nri_memory_manager_reclaimed_bytes_total"
		refaulted = "nri_memory_manager_reclaim_refaulted_bytes_total"
	)
	evicting(t)
	dir := disk(t, size+128*MiB)
	fill(t, dir+"/big", int(size))
	write(t, "3", "/proc/sys/vm/drop_caches")
	evictionHard := fmt.Sprintf("evictionHard: {memory.available: %d}", available(t)-size+350*MiB)
	p := startPlugin(t, "reclaimBeforeEviction: true", evictionHard)
	k := kubeletOf(t, kubelet.Config{
		"evictionHard":                     map[string]any{"memory.available": fmt.Sprint(available(t) - size + 350*MiB)},
		"evictionPressureTransitionPeriod": "5s",
		"localStorageCapacityIsolation":    true, // without it the kubelet has no statistics of its folder, and evicts nothing
	})
	runs, lrus := 1, []string{"n"}
	if k.Plan.Full {
		runs, lrus = 10, []string{"n", "y"}
	}
	usual := file(lruGen)
	t.Cleanup(func() { write(t, usual, lruGen) })
	t.Logf("kernel %s, lru_gen %s, %s", file("/proc/sys/kernel/osrelease"), usual, evictionHard)
	t.Log("| lru_gen | reclaim | available before | least available | of the file active / inactive then | the pod | after | read | reclaimed | refaulted |")
	for _, enabled := range lrus {
		for range runs {
			for _, reclaim := range []bool{false, true} { // by turns, so that none has the older kubelet
				write(t, "3", "/proc/sys/vm/drop_caches") // or the switch makes pages active that another pod has read
				write(t, enabled, lruGen)
				p.change(fmt.Sprintf("reclaimBeforeEviction: %v", reclaim), evictionHard)
				bytes, again := metric(t, reclaimed), metric(t, refaulted)
				end, row := reads(t, k, dir)
				t.Logf("| %s | %v | %s | %.0f MiB | %.0f MiB |", file(lruGen), reclaim, row,
					(metric(t, reclaimed)-bytes)/(1<<20), (metric(t, refaulted)-again)/(1<<20))
				if want := map[bool]string{false: "Evicted", true: stays}[reclaim]; enabled == "n" && end != want && !k.Plan.Full {
					t.Errorf("with reclaimBeforeEviction %v the pod: %s, want %s", reclaim, end, want)
				}
			}
		}
	}
}

const stays = "stays"

// reads runs a pod that reads the file, and watches for half a minute after that whether it is evicted: the kubelet looks every ten seconds.
func reads(t *testing.T, k *kubelet.Kubelet, dir string) (end, row string) {
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
	least, pages, took := before, "", "not read"
	end = stays
	began := time.Now()
	deadline := began.Add(waitLimit)
	touchFile(t, k.Control(pod), "go")
	for read := false; end == stays && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if now := available(t); now < least && file(cgroup, "memory.stat") != "" {
			least = now
			pages = fmt.Sprintf("%d / %d MiB", event(cgroup, "memory.stat", "active_file")/MiB, event(cgroup, "memory.stat", "inactive_file")/MiB)
		}
		if !read && strings.Contains(k.Output(pod, "app"), "done say=enough") {
			read, deadline, took = true, time.Now().Add(30*time.Second), fmt.Sprintf("%.0f s", time.Since(began).Seconds())
		}
		if object, err := k.Get(t.Context(), pod); err == nil && object.Status.Phase == corev1.PodFailed {
			end = object.Status.Reason
		}
	}
	row = fmt.Sprintf("%d MiB | %d MiB | %s | %s | %.0f s | %s", before/MiB, least/MiB, pages, end, time.Since(began).Seconds(), took)
	if err := k.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return end, row
}

// TestPageCacheIsReclaimedBeforeEviction has two containers read files again and again on a node that is short of memory by the kubelet's
// counting, without a kubelet. The one without a request gives up what is missing, the one below its request nothing.
func TestPageCacheIsReclaimedBeforeEviction(t *testing.T) {
	const (
		spare, kept = 300 * MiB, 60 * MiB
		margin      = 256 * MiB
	)
	k := criOf(t)
	dir := disk(t, spare+kept+128*MiB)
	fill(t, dir+"/spare", int(spare))
	fill(t, dir+"/kept", int(kept))
	if usual := file(lruGen); usual != "" {
		write(t, "n", lruGen)
		t.Cleanup(func() { write(t, usual, lruGen) })
	}
	write(t, "3", "/proc/sys/vm/drop_caches")
	p := startPlugin(t, "reclaimBeforeEviction: true", "evictionHard: {memory.available: 1Mi}")
	seen := func() (bytes uint64) {
		t.Helper()
		eventually(t, "status says what is available", func() string {
			out, _ := p.ask("status", "-o", "json")
			var document struct{ Reclaim struct{ Available uint64 } }
			err := json.Unmarshal([]byte(out), &document)
			if bytes = document.Reclaim.Available; err != nil || bytes == 0 {
				return fmt.Sprint(err, out)
			}
			return ""
		})
		return bytes
	}
	read := func(name, file string, request uint64) string {
		data := "read=/data/" + file
		pod := &kubelet.Pod{Name: name, Containers: []kubelet.Container{{Name: "app", Request: request, Mounts: map[string]string{"/data": dir + ":ro"},
			Args: []string{data, data, data, "say=enough", "sleep"}}}}
		run(t, k, pod)
		said(t, k, pod, "app", "done say=enough")
		return dirOf(t, k, pod, "app")
	}
	keeps := read("keeps", "kept", 2*kept)
	gives := read("gives", "spare", 0)
	before := event(keeps, "memory.stat", "active_file")
	if active := event(gives, "memory.stat", "active_file"); active < spare/2 || before < kept/2 {
		t.Fatalf("of the files %d MiB and %d MiB are active: there is nothing to reclaim", active/MiB, before/MiB)
	}
	rest := seen()
	eventually(t, "what is available comes to rest", func() string { // what another case has left may still come free
		time.Sleep(3 * time.Second) // the daemon looks more often
		before := rest
		if rest = seen(); max(rest, before)-min(rest, before) > 8*MiB {
			return fmt.Sprintf("%d MiB, then %d MiB", before/MiB, rest/MiB)
		}
		return ""
	})
	want := rest + spare/2
	p.change("reclaimBeforeEviction: true", fmt.Sprintf("evictionHard: {memory.available: %d}", want-margin))
	eventually(t, "as much is available as should be", func() string {
		if now := seen(); now < want {
			return fmt.Sprintf("%d MiB, want %d", now/MiB, want/MiB)
		}
		return ""
	})
	if after := event(keeps, "memory.stat", "active_file"); after < before-MiB {
		t.Errorf("the container below its request had %d MiB of active page cache, and has %d", before/MiB, after/MiB)
	}
	if got := metric(t, "nri_memory_manager_reclaimed_bytes_total"); got < float64(spare/8) {
		t.Errorf("%.0f bytes were reclaimed", got)
	}
	if out, _ := p.ask("status"); !strings.Contains(out, "default/gives app: ") || strings.Contains(out, "default/keeps app: ") {
		t.Error(out)
	}
}
