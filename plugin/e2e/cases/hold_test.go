package cases

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

const (
	// spare is what node 0 has free before the plugin starts: more would only take longer to touch.
	spare = 480 * MiB
	// excess is what the pods want beyond what node 0 has.
	excess = 96 * MiB
)

// TestAllocationsHold has an unpinned process on node 0 take most of its memory beside a Guaranteed container that is allocated as
// much and uses it later. A memory policy for the one or another node for the other, and nobody is killed. With FULL=1 without any: the
// kernel then kills one of them for want of memory on node 0, although other nodes have plenty.
func TestAllocationsHold(t *testing.T) {
	k := criOf(t)
	restoreHugepages(t, 0)
	runs := 1
	if k.Plan.Full {
		runs = 30
	}
	var prefer, strategy tally
	for i := range runs {
		t.Run(fmt.Sprint("PreferAvailable/", i), func(t *testing.T) {
			n := newCrowd(t, k, "unpinnedMemoryPolicy: PreferAvailable")
			n.holds(t)
			n.takes(t)
			n.uses(t, &prefer, 0)
		})
		t.Run(fmt.Sprint("least-used/", i), func(t *testing.T) {
			n := newCrowd(t, k, "topologyManagerPolicyOptions: {numa-allocation-strategy: least-used}")
			n.takes(t)
			n.holds(t)
			nodes := n.p.allocated(n.holder, "app")[0].Nodes
			n.uses(t, &strategy, nodes...)
			if len(nodes) != 1 || nodes[0] == 0 {
				t.Errorf("allocated on nodes %v, want one with room", nodes)
			}
		})
	}
	t.Logf("unpinnedMemoryPolicy: PreferAvailable: %v", prefer)
	t.Logf("topologyManagerPolicyOptions: {numa-allocation-strategy: least-used}: %v", strategy)
	if k.Plan.Full { // at last: the kernel may kill the runtime, too
		t.Run("a process without a policy", func(t *testing.T) {
			n := newCrowd(t, k, "unpinnedMemoryPolicy: None")
			n.holds(t)
			n.takes(t)
			touchFile(t, k.Control(n.holder), "go")
			eventually(t, "one of them is killed", func() string {
				if n.killed(t) == 0 {
					return "nobody is"
				}
				return ""
			})
			t.Logf("nothing set: %d processes killed", n.killed(t))
		})
	}
}

// tally sums up runs of one kind.
type tally struct {
	runs   int
	killed uint64
	least  float64 // percent of the holder's anonymous pages on its nodes
}

func (o tally) String() string {
	return fmt.Sprintf("%d runs, %d processes killed, at least %.2f %% of the container's pages on its node", o.runs, o.killed, o.least)
}

// crowd are two pods that want the memory of node 0.
type crowd struct {
	k machine
	p *plugin
	// holder is Guaranteed, and uses little before the file go is there; hog is Burstable and takes its memory at once.
	holder, hog *kubelet.Pod
	took, rest  uint64
	before      uint64 // processes killed for want of memory, of the whole machine
}

// newCrowd starts the plugin, and sizes the pods by what nodes 0 and 1 have free: together they want so much more than node 0 has.
func newCrowd(t *testing.T, k machine, setting string) *crowd {
	t.Helper()
	keepFree(t, 0, spare) // before the plugin looks at the machine
	p := startPlugin(t, setting)
	leaveNoPod(t, k)
	free := [2]uint64{freeOn(t, 0), freeOn(t, 1)}
	allocation := (min(free[0], free[1]) - 64*MiB) &^ (2*MiB - 1)
	n := &crowd{k: k, p: p, took: free[0] - allocation + excess, rest: allocation - 48*MiB, before: oomKills(t)}
	t.Logf("free on node 0: %d MiB, on node 1: %d MiB; allocated %d MiB, taken %d MiB", free[0]/MiB, free[1]/MiB, allocation/MiB, n.took/MiB)
	n.holder = guaranteed("holder", allocation, 0)
	n.holder.Containers[0].Args = []string{fmt.Sprint("touch=", 8*MiB), "wait=/ctl/go", fmt.Sprint("touch=", n.rest)}
	n.hog = &kubelet.Pod{Name: "hog", Containers: []kubelet.Container{{
		Name: "app", Request: n.took, Limit: n.took + 64*MiB, Args: []string{"wait=/ctl/go", fmt.Sprint("touch=", n.took)},
	}}}
	return n
}

// holds runs the holder, and waits until the plugin has seen what it uses.
func (n *crowd) holds(t *testing.T) {
	t.Helper()
	run(t, n.k, n.holder)
	said(t, n.k, n.holder, "app", fmt.Sprint("done touch=", 8*MiB))
	eventually(t, "what the holder has unused is known", func() string {
		out, _ := n.p.ask("explain", "holder")
		if !strings.Contains(out, "are not used yet") {
			return out
		}
		return ""
	})
}

// takes runs the hog on the CPUs of node 0.
func (n *crowd) takes(t *testing.T) {
	t.Helper()
	run(t, n.k, n.hog)
	write(t, "0", n.k.Dir(n.hog), "cpuset.cpus")
	touchFile(t, n.k.Control(n.hog), "go")
	said(t, n.k, n.hog, "app", fmt.Sprint("done touch=", n.took))
}

// uses has the holder use all that it is allocated, on these nodes, and nobody be killed for it.
func (n *crowd) uses(t *testing.T, o *tally, nodes ...int) {
	t.Helper()
	touchFile(t, n.k.Control(n.holder), "go")
	said(t, n.k, n.holder, "app", fmt.Sprint("done touch=", n.rest))
	share := onNodes(t, "the holder", anonPages(t, n.k, n.holder, "app"), nodes, n.rest)
	kills := n.killed(t)
	if kills > 0 {
		t.Errorf("%d processes were killed", kills)
	}
	if o.runs++; o.runs == 1 || share < o.least {
		o.least = share
	}
	o.killed += kills
}

// killed are the processes that were killed for want of memory since the crowd is there.
func (n *crowd) killed(t *testing.T) uint64 {
	t.Helper()
	return oomKills(t) - n.before
}

// oomKills are the processes that the kernel has killed for want of memory, on the whole machine.
func oomKills(t *testing.T) uint64 {
	t.Helper()
	for line := range strings.Lines(file("/proc/vmstat")) {
		if text, found := strings.CutPrefix(line, "oom_kill "); found {
			n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("/proc/vmstat has no oom_kill")
	return 0
}

// keepFree has a NUMA node have about so much free: the rest is in its pool of huge pages, which nothing here uses.
func keepFree(t *testing.T, node int, bytes uint64) {
	t.Helper()
	pool := hugepagesOf(node)
	pages := number(t, pool, "nr_hugepages")
	all := freeOn(t, node)/(2*MiB) + pages
	write(t, fmt.Sprint(all-min(all, bytes/(2*MiB))), pool, "nr_hugepages")
}

// restoreHugepages gives a NUMA node's pool back what it has now when the case ends.
func restoreHugepages(t *testing.T, node int) {
	t.Helper()
	pool := hugepagesOf(node)
	before := file(pool, "nr_hugepages")
	t.Cleanup(func() { write(t, before, pool, "nr_hugepages") })
}

// hugepagesOf is the folder of a NUMA node's pool of huge pages of 2 MiB.
func hugepagesOf(node int) string {
	return fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-2048kB", node)
}

// freeOn is the memory that a NUMA node has free.
func freeOn(t *testing.T, node int) uint64 {
	t.Helper()
	for line := range strings.Lines(file(fmt.Sprintf("/sys/devices/system/node/node%d", node), "meminfo")) {
		if fields := strings.Fields(line); len(fields) == 5 && fields[2] == "MemFree:" {
			kib, err := strconv.ParseUint(fields[3], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("node %d has no MemFree", node)
	return 0
}
