package cases

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestAllocationsHold has an unpinned process on node 0 take most of its memory beside a Guaranteed container that is allocated as
// much and uses it later. A memory policy for the one, another node for the other, or the one's memory moved in time, and nobody is
// killed. With FULL=1 without any: the kernel then kills one of them for want of memory on node 0, although other nodes have plenty.
func TestAllocationsHold(t *testing.T) {
	k := criOf(t)
	runs := 1
	if k.Plan.Full {
		runs = 30
	}
	for i := range runs {
		t.Run(fmt.Sprint("PreferSlack/", i), func(t *testing.T) {
			n := newCrowd(t, k, "unpinnedMemoryPolicy: PreferSlack", 96*MiB)
			n.holds(t)
			n.takes(t)
			n.uses(t, 0)
		})
		t.Run(fmt.Sprint("least-used/", i), func(t *testing.T) {
			n := newCrowd(t, k, "numaAllocationStrategy: least-used", 96*MiB)
			n.takes(t)
			n.holds(t)
			n.uses(t, n.p.allocated(n.holder, "app")[0].Nodes...)
			if nodes := n.p.allocated(n.holder, "app")[0].Nodes; len(nodes) != 1 || nodes[0] == 0 {
				t.Errorf("allocated on nodes %v, want one with room", nodes)
			}
		})
		t.Run(fmt.Sprint("coverDeficits/", i), func(t *testing.T) {
			n := newCrowd(t, k, "coverDeficits: Off", 128*MiB)
			n.holds(t)
			n.takes(t)
			n.isCovered(t)
			n.uses(t, 0)
		})
	}
	if k.Plan.Full { // at last: the kernel may kill the runtime, too
		t.Run("a process without a policy", func(t *testing.T) {
			n := newCrowd(t, k, "unpinnedMemoryPolicy: None", 96*MiB)
			n.holds(t)
			n.takes(t)
			touchFile(t, k.Control(n.holder), "go")
			eventually(t, "one of them is killed", func() string {
				if n.kills() == 0 {
					return "nobody is"
				}
				return ""
			})
		})
	}
}

// crowd are two pods that want the memory of node 0.
type crowd struct {
	k machine
	p *plugin
	// holder is Guaranteed, and uses little before the file go is there; hog is Burstable and takes its memory at once.
	holder, hog *kubelet.Pod
	took, rest  uint64
}

// newCrowd starts the plugin, and sizes the pods by what nodes 0 and 1 have free: together they want so much more than node 0 has.
// What node 0 has more than node 1 is in use before the setting is in force.
func newCrowd(t *testing.T, k machine, setting string, excess uint64) *crowd {
	t.Helper()
	p := startPlugin(t)
	leaveNoPod(t, k)
	free := [2]uint64{freeOn(t, 0), freeOn(t, 1)}
	if free[0] > free[1]+64*MiB {
		used := free[0] - free[1]
		placed(t, k, p, run(t, k, guaranteed("used", used+32*MiB, used)), "0", used)
		free[0] = freeOn(t, 0)
	}
	p.change(setting)
	allocation := (min(free[0], free[1]) - 64*MiB) &^ (2*MiB - 1)
	n := &crowd{k: k, p: p, took: free[0] - allocation + excess, rest: allocation - 48*MiB}
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
	eventually(t, "what is owed to the holder is known", func() string {
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

// isCovered has the plugin move the hog's memory off node 0, which owes more than it has.
func (n *crowd) isCovered(t *testing.T) {
	t.Helper()
	eventually(t, "the deficit is shown", func() string {
		out, _ := n.p.ask("status")
		if !strings.Contains(out, "MORE THAN IT HAS") {
			return out
		}
		return ""
	})
	if pages := anonPages(t, n.k, n.hog, "app"); uint64(pages[0])*4096 < n.took*3/4 { // the kernel leaves a node some pages
		t.Fatalf("the hog has taken %d bytes, too few of them on node 0: %v", n.took, pages)
	}
	n.p.change("coverDeficits: On")
	eventually(t, "the hog's memory is off node 0, and status says why", func() string {
		out, _ := n.p.ask("status")
		if pages := anonPages(t, n.k, n.hog, "app"); pages[0] > 0 || !strings.Contains(out, "of it were moved off node 0 at ") {
			return fmt.Sprint(pages, "\n", out)
		}
		return ""
	})
	if mems := ids(t, file(dirOf(t, n.k, n.hog, "app"), "cpuset.mems")); slices.Contains(mems, 0) {
		t.Errorf("the hog's cpuset.mems is %v", mems)
	}
}

// uses has the holder use all that it is allocated, on these nodes, and nobody be killed for it.
func (n *crowd) uses(t *testing.T, nodes ...int) {
	t.Helper()
	touchFile(t, n.k.Control(n.holder), "go")
	said(t, n.k, n.holder, "app", fmt.Sprint("done touch=", n.rest))
	onNodes(t, "the holder", anonPages(t, n.k, n.holder, "app"), nodes, n.rest)
	if kills := n.kills(); kills > 0 {
		t.Errorf("%d processes were killed", kills)
	}
}

// kills are the processes of both pods that were killed for want of memory.
func (n *crowd) kills() uint64 {
	return event(n.k.Dir(n.holder), "memory.events", "oom_kill") + event(n.k.Dir(n.hog), "memory.events", "oom_kill")
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
