package cases

import (
	"fmt"
	"strings"
	"testing"
)

// TestGroupIsDissolved has a small container in a group of NUMA nodes that a large one has made and leaves. Its memory, which it has
// touched on a CPU of node 1, moves to the node on which it fits.
func TestGroupIsDissolved(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t, "topologyManagerPolicy: best-effort", "reconcilePeriod: 1s", "dissolveGroups: true")
	const touched = 96 * MiB
	large := 64
	for _, n := range k.Plan.Nodes {
		if n.CPUs > 0 && n.ID < 2 {
			large += n.MiB
		}
	}
	big := run(t, k, guaranteed("big", uint64(large)*MiB, 16*MiB)) // more than nodes 0 and 1 have: of all there is a group
	small := guaranteed("small", touched+32*MiB, touched)
	small.Containers[0].Args = []string{"wait=/ctl/go", fmt.Sprint("touch=", touched)}
	run(t, k, small)
	write(t, "1", k.Dir(small), "cpuset.cpus") // the CPU of node n has number n
	touchFile(t, k.Control(small), "go")
	before := file(dirOf(t, k, small, "app"), "cpuset.mems")
	said(t, k, small, "app", fmt.Sprint("done touch=", touched))
	if pages := anonPages(t, k, small, "app"); uint64(pages[1])*4096 < touched*99/100 { // it has started wherever there was a CPU
		t.Fatalf("on node 1 are not the %d bytes that were touched there: %v", touched, pages)
	}
	if len(ids(t, before)) < 2 {
		t.Fatalf("cpuset.mems is %q, want those of a group", before)
	}
	if err := k.Remove(t.Context(), big); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the memory moves to node 0", func() string {
		if pages := anonPages(t, k, small, "app"); uint64(pages[0])*4096 < touched*99/100 {
			return fmt.Sprint(pages)
		}
		return ""
	})
	placed(t, k, p, small, "0", touched)
	if out, _ := p.ask("explain", "small"); !strings.Contains(out, "moved from nodes "+before+": its group of nodes is not needed any more") {
		t.Error(out)
	}
}
