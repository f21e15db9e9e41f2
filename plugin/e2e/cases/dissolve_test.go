package cases

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/cri"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// grouped is what the container of a group touches.
const grouped = 96 * MiB

// TestGroupIsDissolved has a small container in a group of NUMA nodes that a large one has made and leaves. Its memory, which it has
// touched on a CPU of node 1, moves to the node on which it fits.
func TestGroupIsDissolved(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t, "topologyManagerPolicy: best-effort", "--timings=check=1s", "rebalance: {consolidate: true}")
	big, small := group(t, k)
	before := file(dirOf(t, k, small, "app"), "cpuset.mems")
	if err := k.Remove(t.Context(), big); err != nil {
		t.Fatal(err)
	}
	isOnNode0(t, k, small)
	placed(t, k, p, small, "0", grouped)
	if out, _ := p.ask("explain", "small"); !strings.Contains(out, "moved from nodes "+before+": its group of nodes is not needed any more") {
		t.Error(out)
	}
}

// group runs a large pod that makes a group of NUMA nodes, and a small one in it that has touched its memory on a CPU of node 1.
func group(t *testing.T, k *cri.Kubelet) (big, small *kubelet.Pod) {
	t.Helper()
	large := 64
	for _, n := range k.Plan.Nodes {
		if n.CPUs > 0 && n.ID < 2 {
			large += n.MiB
		}
	}
	big = run(t, k, guaranteed("big", uint64(large)*MiB, 16*MiB)) // more than nodes 0 and 1 have: of all there is a group
	small = guaranteed("small", grouped+32*MiB, grouped)
	small.Containers[0].Args = []string{"wait=/ctl/go", fmt.Sprint("touch=", grouped)}
	run(t, k, small)
	write(t, "1", k.Dir(small), "cpuset.cpus") // the CPU of node n has number n
	touchFile(t, k.Control(small), "go")
	said(t, k, small, "app", fmt.Sprint("done touch=", grouped))
	if pages := anonPages(t, k, small, "app"); uint64(pages[1])*4096 < grouped*99/100 { // it has started wherever there was a CPU
		t.Fatalf("on node 1 are not the %d bytes that were touched there: %v", grouped, pages)
	}
	if mems := file(dirOf(t, k, small, "app"), "cpuset.mems"); len(ids(t, mems)) < 2 {
		t.Fatalf("cpuset.mems is %q, want those of a group", mems)
	}
	return big, small
}

// isOnNode0 waits until the memory of the container of a group is on node 0.
func isOnNode0(t *testing.T, k machine, small *kubelet.Pod) {
	t.Helper()
	eventually(t, "the memory moves to node 0", func() string {
		if pages := anonPages(t, k, small, "app"); uint64(pages[0])*4096 < grouped*99/100 {
			return fmt.Sprint(pages)
		}
		return ""
	})
}
