package cases

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestPluginIsKilledWhileMemoryMoves kills the plugin at each moment at which it moves a container's memory, without FULL=1 while the
// kernel moves the pages: out of a group that is not needed, and off a node that is overcommitted. When it is back, allocation,
// cpuset.mems and pages agree, and rollback leaves nothing of it.
func TestPluginIsKilledWhileMemoryMoves(t *testing.T) {
	k := criOf(t)
	restoreHugepages(t, 0)
	dissolving, relieving := []string{"written"}, []string{"written"}
	if k.Plan.Full {
		dissolving, relieving = []string{"decided", "stored", "written", "moved"}, []string{"decided", "written", "relieved"}
	}
	for _, moment := range dissolving {
		t.Run("consolidate/"+moment, func(t *testing.T) {
			p := startPlugin(t, "topologyManagerPolicy: best-effort", "--timings=check=1s", "rebalance: {consolidate: true}")
			leaveNoPod(t, k)
			big, small := group(t, k)
			dir := dirOf(t, k, small, "app")
			if err := k.Remove(t.Context(), big); err != nil {
				t.Fatal(err)
			}
			p.killWhen(moment, map[string]func() bool{
				"decided": func() bool { return strings.Contains(p.output(), "moving the memory of a container") },
				"stored":  func() bool { return len(p.allocated(small, "app")[0].Nodes) == 1 },
				"written": func() bool { return file(dir, "cpuset.mems") == "0" },
				"moved":   func() bool { return strings.Contains(p.output(), "is on its new NUMA nodes") },
			})
			t.Logf("cpuset.mems %q, pages %v, allocated on %v", file(dir, "cpuset.mems"), anonPages(t, k, small, "app"), p.allocated(small, "app")[0].Nodes)
			if nodes := p.allocated(small, "app")[0].Nodes; file(dir, "cpuset.mems") == "0" && !slices.Equal(nodes, []int{0}) {
				t.Errorf("cpuset.mems is 0, and the state file has nodes %v", nodes)
			}
			p.restart()
			isOnNode0(t, k, small)
			placed(t, k, p, small, "0", grouped)
			p.clean(t)
			p.rollsBack(k, small)
			onNodes(t, "after the rollback", anonPages(t, k, small, "app"), []int{0}, grouped)
		})
	}
	for _, moment := range relieving {
		t.Run("deficits/"+moment, func(t *testing.T) {
			n := newCrowd(t, k, "rebalance: {deficits: Off}", deficit+32*MiB)
			n.holds(t)
			n.takes(t)
			n.lacks(t)
			dir := dirOf(t, k, n.hog, "app")
			isOff := func() bool {
				mems := file(dir, "cpuset.mems")
				return mems != "" && !slices.Contains(ids(t, mems), 0)
			}
			n.p.reload("rebalance: {deficits: On, maxBytes: 1Pi}")
			n.p.killWhen(moment, map[string]func() bool{
				"decided":  func() bool { return strings.Contains(n.p.output(), "a container's memory is moved off NUMA nodes") },
				"written":  isOff,
				"relieved": func() bool { return strings.Contains(n.p.output(), "have enough memory available again") },
			})
			t.Logf("cpuset.mems %q, pages %v", file(dir, "cpuset.mems"), anonPages(t, k, n.hog, "app"))
			n.p.restart()
			eventually(t, "node 0 has what its allocations need", func() string {
				out, _ := n.p.ask("status")
				if !isOff() || anonPages(t, k, n.hog, "app")[0] > 0 || !strings.Contains(out, " enough") || strings.Contains(out, "MORE THAN IT HAS") {
					return out
				}
				return ""
			})
			n.uses(t, &tally{}, 0)
			n.p.clean(t)
			n.p.rollsBack(k, n.hog)
			onNodes(t, "after the rollback", anonPages(t, k, n.holder, "app"), []int{0}, n.rest)
		})
	}
}

// killWhen kills the plugin at a moment.
func (p *plugin) killWhen(moment string, reached map[string]func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(waitLimit); !reached[moment](); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: not within %v:\n%s", moment, waitLimit, p.output())
		}
	}
	p.kill()
}

// rollsBack kills the plugin, and has rollback give a container of the pod the NUMA nodes of the pod's cgroup, once.
func (p *plugin) rollsBack(k machine, pod *kubelet.Pod) {
	p.t.Helper()
	p.kill()
	if out, code := p.ask("rollback"); code != 0 {
		p.t.Errorf("rollback: exit status %d: %s", code, out)
	}
	want := ids(p.t, file(k.Dir(pod), "cpuset.mems.effective"))
	if mems := ids(p.t, file(dirOf(p.t, k, pod, "app"), "cpuset.mems.effective")); !slices.Equal(mems, want) {
		p.t.Errorf("after the rollback the container may use nodes %v, its pod %v", mems, want)
	}
	if out, code := p.ask("rollback"); code != 0 || out != "nothing to restore\n" {
		p.t.Errorf("rollback, a second time: exit status %d: %s", code, out)
	}
}
