package cases

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestCacheRoomHoldsWritersAndNoHeap runs Guaranteed containers with room for page cache. What writes files beside a heap of 70 % waits
// below its limit for the disk. A heap that needs all of its limit has it; how long it stood is logged.
// Where the guard is off, or the annotation says so, there is no room to stand at, and a writer is named before page cache may have it killed.
func TestCacheRoomHoldsWritersAndNoHeap(t *testing.T) {
	const limit, high = 64 * MiB, 64 * MiB * 9 / 10 / 4096 * 4096
	dir := slowDisk(t, "xfs", 20) // unmounted after its containers are gone
	k, p := guarded(t, "cacheRoom: 0.1")
	p.kill()
	p.startUnprivileged() // as in the DaemonSet: from kernel 6.5 on its triggers come every two seconds

	step := fmt.Sprintf("write=/data/new:%d", 3*limit)
	writes := guaranteed("writes", limit, 0)
	writes.Containers[0].Mounts = map[string]string{"/data": dir}
	writes.Containers[0].Args = []string{"wait=/ctl/go", fmt.Sprint("touch=", limit/10*7), step, "wait=/ctl/end", "exit=0"}
	heap := guaranteed("heap", limit, 0)
	heap.Containers[0].Args = []string{"wait=/ctl/go", fmt.Sprint("grow=", 58*MiB), "wait=/ctl/end"}
	alone := guaranteed("alone", limit, 0)
	alone.Annotations = guardOff
	without := guaranteed("without", limit, 0)
	without.Containers[0].Mounts = map[string]string{"/data": dir}
	without.Containers[0].Args = []string{"wait=/ctl/go", fmt.Sprintf("write=/data/other:%d", 3*limit), "wait=/ctl/end", "exit=0"}
	without.Annotations = map[string]string{"cache-room.memory-manager.noderesource.dev": "0"}
	for pod, want := range map[*kubelet.Pod]string{writes: fmt.Sprint(high), heap: fmt.Sprint(high), alone: "max", without: "max"} {
		run(t, k, pod)
		if got := file(dirOf(t, k, pod, "app"), "memory.high"); got != want {
			t.Errorf("%s: memory.high is %s, want %s", pod.Name, got, want)
		}
	}

	touchFile(t, k.Control(writes), "go")
	said(t, k, writes, "app", "done "+step)
	cgroup := dirOf(t, k, writes, "app")
	if event(cgroup, "memory.events", "high") == 0 || event(cgroup, "memory.events", "oom_kill") > 0 || number(t, cgroup, "memory.high") != high {
		t.Errorf("the writer has memory.high %s and counted\n%s", file(cgroup, "memory.high"), file(cgroup, "memory.events"))
	}

	touchFile(t, k.Control(heap), "go")
	said(t, k, heap, "app", fmt.Sprint("done grow=", 58*MiB))
	if got := file(dirOf(t, k, heap, "app"), "memory.high"); got != "max" {
		t.Errorf("a heap of 58 MiB has memory.high %s", got)
	}
	t.Logf("the heap stood for %v", fullStall(t, dirOf(t, k, heap, "app")))
	touchFile(t, k.Control(without), "go")
	risk := fmt.Sprintf(`nri_memory_manager_container_page_cache_risk{container="app",known="%v",namespace=%q,pod="without"}`,
		strings.HasPrefix(file("/proc/sys/kernel/osrelease"), "6.12."), kubelet.Namespace)
	eventually(t, "the writer without room is at risk", func() string {
		shown, err := get("http://" + metricsAddress + "/metrics")
		if err == nil && strings.Contains(shown, risk+" 1\n") {
			return ""
		}
		if status, exited := k.Exited(t.Context(), without, "app"); exited {
			t.Fatalf("it ended with %s, and nobody was told", status)
		}
		return fmt.Sprint(err, file(dirOf(t, k, without, "app"), "memory.events"), file(dirOf(t, k, without, "app"), "memory.stat"))
	})
	if out, _ := p.ask("verify"); strings.Count(out, "[page-cache-risk]") != 1 || !strings.Contains(out, "/without/app: it was at its limit of 64Mi with ") {
		t.Errorf("verify says\n%s", out)
	}
	if out, _ := p.ask("explain", "writes"); !strings.Contains(out, "less a share of 0.1 for page cache") {
		t.Errorf("explain says\n%s", out)
	}
}
