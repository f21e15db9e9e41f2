package cases

import (
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestVerifyNamesPagesOnOtherNodes moves a pinned container's pages away, as
// nothing but root can, and back: verify names them for as long, and finds
// nothing on a healthy node.
func TestVerifyNamesPagesOnOtherNodes(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	const touched = 24 * MiB
	pod := guaranteed("pinned", 48*MiB, touched)
	burstable := &kubelet.Pod{Name: "burstable", Containers: []kubelet.Container{{Name: "app", Request: 16 * MiB, Limit: 48 * MiB}}}
	run(t, k, pod)
	run(t, k, burstable)
	placed(t, k, p, pod, "0", touched)
	p.agrees(k, p.simulate(pod, burstable), pod, burstable)

	verify := func() (string, int) { return p.command("verify", "--state-dir", p.state) }
	healthy := func() string {
		if out, code := verify(); code != 0 {
			return out
		}
		return ""
	}
	eventually(t, "verify finds nothing on a healthy node", healthy)
	migrate(t, k, pod, 0, 1)
	eventually(t, "verify names the pages", func() string {
		out, code := verify()
		if code != 1 || !strings.Contains(out, "pages-elsewhere") || !strings.Contains(out, "pinned") || !strings.Contains(out, "on node 1") {
			return out
		}
		return ""
	})
	migrate(t, k, pod, 1, 0)
	eventually(t, "verify is content again", healthy)
}

// migrate moves a container's pages between nodes (migrate_pages(2)). It needs
// no consent of the container's cpuset, only CAP_SYS_NICE.
func migrate(t *testing.T, k machine, pod *kubelet.Pod, from, to int) {
	t.Helper()
	pids, err := k.PIDs(pod, "app")
	if err != nil {
		t.Fatal(err)
	}
	source, target := uint64(1)<<from, uint64(1)<<to
	for _, pid := range pids {
		left, _, errno := unix.Syscall6(unix.SYS_MIGRATE_PAGES, uintptr(pid), 64,
			uintptr(unsafe.Pointer(&source)), uintptr(unsafe.Pointer(&target)), 0, 0)
		if errno != 0 {
			t.Fatalf("move the pages of process %d from node %d to %d: %v", pid, from, to, errno)
		}
		t.Logf("process %d: %d pages stay on node %d", pid, left, from)
	}
}
