package cases

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// migrated is what the container of TestMigration has touched on the wrong node.
const migrated = 256 * MiB

// TestMigration adopts a running container whose memory is on another NUMA node than its allocation. Beyond the bound its
// cpuset.mems stays, and verify says so; without one the kernel moves its memory. The container looks at the clock every
// millisecond: its largest gap, which the case logs, is how long it stood still.
func TestMigration(t *testing.T) {
	k := criOf(t)
	pod := guaranteed("moves", migrated+64*MiB, migrated)
	pod.Containers[0].Args = []string{"wait=/ctl/go", fmt.Sprint("touch=", migrated), "gap=/ctl/blocked", "gap=/ctl/moved"}
	run(t, k, pod)
	dir := dirOf(t, k, pod, "app")
	write(t, "1", k.Dir(pod), "cpuset.mems") // the pod's: the container keeps none of its own
	touchFile(t, k.Control(pod), "go")
	said(t, k, pod, "app", fmt.Sprint("done touch=", migrated))
	write(t, "0-1", k.Dir(pod), "cpuset.mems") // nothing moves
	onNodes(t, "before", anonPages(t, k, pod, "app"), []int{1}, migrated)

	p := startPlugin(t, "maxMigrationBytes: 64Mi")
	blocked := finding{Severity: "warning", ID: "not-moved", Object: "moves/app", What: "from node 1 to node 0, more than maxMigrationBytes (64Mi)"}
	p.names(t, blocked)
	if got := file(dir, "cpuset.mems"); got != "" {
		t.Errorf("beyond the bound cpuset.mems is %q, want none", got)
	}
	// What the process has taken since is on either node, and the kernel's NUMA balancing brings single pages to where it runs.
	if pages := anonPages(t, k, pod, "app"); uint64(pages[1])*4096 < migrated*99/100 {
		t.Errorf("beyond the bound: %v pages by node, want %d bytes on node 1", pages, uint64(migrated))
	}
	if blocks := p.allocated(pod, "app"); len(blocks) == 0 || len(blocks[0].Nodes) != 1 || blocks[0].Nodes[0] != 0 {
		t.Errorf("allocated %+v, want node 0", blocks)
	}
	touchFile(t, k.Control(pod), "blocked")
	still := gapOf(t, k, pod, "blocked")

	p.kill()
	p.configure("maxMigrationBytes: 1Pi")
	began := time.Now()
	p.restart()
	eventually(t, "the memory moves to node 0", func() string {
		if pages := anonPages(t, k, pod, "app"); uint64(pages[0])*4096 < migrated*99/100 {
			return fmt.Sprint(pages)
		}
		return ""
	})
	took := time.Since(began)
	touchFile(t, k.Control(pod), "moved")
	placed(t, k, p, pod, "0", migrated)
	p.names(t, finding{Severity: "note", ID: "moved", Object: "moves/app", What: "from node 1 to node 0"})
	t.Logf("%d MiB moved within %v of the plugin's start; the container stood still for %v at most, and for %v while nothing moved",
		migrated/MiB, took.Round(time.Millisecond), gapOf(t, k, pod, "moved"), still)
}

// gapOf is the largest gap that a container has found until a file was there.
func gapOf(t *testing.T, k machine, pod *kubelet.Pod, name string) time.Duration {
	t.Helper()
	said(t, k, pod, "app", "done gap=/ctl/"+name)
	for line := range strings.Lines(k.Output(pod, "app")) {
		if _, number, found := strings.Cut(strings.TrimSpace(line), "gap /ctl/"+name+" "); found {
			micros, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return time.Duration(micros) * time.Microsecond
		}
	}
	t.Fatalf("no gap of %s in %s", name, k.Output(pod, "app"))
	return 0
}
