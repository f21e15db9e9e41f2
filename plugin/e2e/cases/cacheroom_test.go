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
	for pod, want := range map[*kubelet.Pod]string{writes: fmt.Sprint(high), heap: fmt.Sprint(high), alone: "max"} {
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
	// The kernel may kill a writer without room before anybody can look, which is what the finding warns of.
	for i := 0; !namedAtRisk(t, k, p, fmt.Sprint("without-", i), dir, limit); i++ {
		if i == 7 {
			t.Error("eight writers without room were killed before they were named")
			break
		}
	}
	if out, _ := p.ask("explain", "writes"); !strings.Contains(out, "less a share of 0.1 for page cache") {
		t.Errorf("explain says\n%s", out)
	}
}

// namedAtRisk has a pod write files into dir without room for page cache, and reports whether a metric and verify name it before it is killed.
func namedAtRisk(t *testing.T, k machine, p *plugin, name, dir string, limit uint64) bool {
	t.Helper()
	pod := guaranteed(name, limit, 0)
	pod.Containers[0].Mounts = map[string]string{"/data": dir}
	pod.Containers[0].Args = []string{"wait=/ctl/go", fmt.Sprint("write=/data/other:", 3*limit), "wait=/ctl/end", "exit=0"}
	pod.Annotations = map[string]string{"cache-room.memory-manager.noderesource.dev": "0"}
	run(t, k, pod)
	defer func() {
		if err := k.Remove(t.Context(), pod); err != nil {
			t.Error(err)
		}
	}()
	cgroup := dirOf(t, k, pod, "app")
	if got := file(cgroup, "memory.high"); got != "max" {
		t.Errorf("%s: memory.high is %s, want max", name, got)
	}
	touchFile(t, k.Control(pod), "go")
	risk := fmt.Sprintf(`nri_memory_manager_container_page_cache_risk{container="app",known="%v",namespace=%q,pod=%q} 1`,
		strings.HasPrefix(file("/proc/sys/kernel/osrelease"), "6.12."), kubelet.Namespace, name)
	killed := false
	eventually(t, "the writer without room is at risk, or killed", func() string {
		if shown, err := get("http://" + metricsAddress + "/metrics"); err == nil && strings.Contains(shown, risk+"\n") {
			return ""
		}
		if _, killed = k.Exited(t.Context(), pod, "app"); killed {
			return ""
		}
		return file(cgroup, "memory.events") + file(cgroup, "memory.stat")
	})
	if killed {
		return false
	}
	out, _ := p.ask("verify")
	if _, killed = k.Exited(t.Context(), pod, "app"); killed {
		return false
	}
	if strings.Count(out, "[page-cache-risk]") != 1 || !strings.Contains(out, "/"+name+"/app: it was at its limit of 64Mi with ") {
		t.Errorf("verify says\n%s", out)
	}
	return true
}
