package cases

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// crashesPerPod is how many containers of a pod come and go while the plugin is killed, before their pod goes, too.
const crashesPerPod = 10

// TestPluginIsKilledAtAnyMoment kills the plugin once in every cycle in which
// a container of a pod, of five with FULL=1, comes and the one before goes, at a moment drawn from the length
// of the cycle before, so that it hits every stage. No create fails, the state
// file is valid at each start, every living container is allocated, and in the end
// nothing is.
func TestPluginIsKilledAtAnyMoment(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	stays := guaranteed("stays", 32*MiB, 8*MiB)
	run(t, k, stays)
	nodes := file(dirOf(t, k, stays, "app"), "cpuset.mems")

	length := 2 * time.Second
	var pod *kubelet.Pod
	cycles := crashesPerPod
	if k.Plan.Full {
		cycles = crashesPerPod * 5
	}
	for i := range cycles {
		killed := make(chan error, 1)
		time.AfterFunc(time.Duration(random.Int64N(int64(length))), func() {
			p.kill()
			killed <- p.launch()
		})
		began := time.Now()
		n := i % crashesPerPod
		if n == 0 {
			if pod != nil {
				if err := k.Remove(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
			}
			pod = &kubelet.Pod{Name: fmt.Sprint("pod", i)}
			for c := range crashesPerPod {
				pod.Containers = append(pod.Containers, kubelet.Container{Name: fmt.Sprint("c", c), Request: 16 * MiB, Limit: 16 * MiB})
			}
			if err := k.Prepare(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.RunContainer(t.Context(), pod, fmt.Sprint("c", n)); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			if err := k.StopContainer(t.Context(), pod, fmt.Sprint("c", n-1)); err != nil {
				t.Fatal(err)
			}
		}
		length = time.Since(began)
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		if n == 4 || n == 9 { // in the other cycles the next kill may hit the start
			p.waitSynchronized(1)
			p.onlyAllocated(stays, pod)
			eventually(t, "the living container is allocated", func() string {
				if len(p.allocated(pod, fmt.Sprint("c", n))) == 0 {
					return fmt.Sprintf("cycle %d: no allocation of c%d", i, n)
				}
				return ""
			})
		}
		if now := file(dirOf(t, k, stays, "app"), "cpuset.mems"); now != nodes {
			t.Fatalf("cycle %d: the pod that stays moved from node %s to %s", i, nodes, now)
		}
	}
	if kept, _ := filepath.Glob(p.stateFile() + ".corrupt-*"); len(kept) > 0 {
		t.Errorf("a kill left a damaged state file: %v", kept)
	}
	if err := k.RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.waitFree()
}

// onlyAllocated waits until these pods' containers are allocated and no others, and
// verifies the state file.
func (p *plugin) onlyAllocated(pods ...*kubelet.Pod) {
	p.t.Helper()
	var want []string
	for _, pod := range pods {
		want = append(want, pod.UID)
	}
	slices.Sort(want)
	eventually(p.t, "exactly the living pods are allocated", func() string {
		s, err := p.read()
		if err != nil {
			return err.Error()
		}
		var allocated []string
		var sum, reserved uint64
		for uid, containers := range s.Entries {
			allocated = append(allocated, uid)
			for _, blocks := range containers {
				for _, b := range blocks {
					sum += b.Size
				}
			}
		}
		for _, n := range s.MachineState {
			for _, table := range n.Memory {
				reserved += table.Reserved
			}
		}
		slices.Sort(allocated)
		if !slices.Equal(allocated, want) || sum != reserved {
			return fmt.Sprintf("allocated %v with %d bytes, the nodes say %d; living are %v", allocated, sum, reserved, want)
		}
		return ""
	})
	if out, code := p.command("state", "verify", p.stateFile()); code != 0 {
		p.t.Fatalf("state verify: exit status %d: %s", code, out)
	}
}

// TestPodsMadeWhileThePluginIsAwayAreAdopted creates pods without the plugin;
// when it comes back they are allocated and get their values.
func TestPodsMadeWhileThePluginIsAwayAreAdopted(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	before := guaranteed("before", 32*MiB, 8*MiB)
	run(t, k, before)
	p.kill()
	pinned := guaranteed("pinned", 40*MiB, 8*MiB)
	burstable := &kubelet.Pod{Name: "burstable", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB}}}
	run(t, k, pinned)
	run(t, k, burstable)
	if high := number(t, dirOf(t, k, burstable, "app"), "memory.high"); high != unlimited {
		t.Fatalf("memory.high is %d without the plugin", high)
	}
	p.restart()
	p.onlyAllocated(before, pinned)
	want := p.simulate(burstable).container(t, "burstable", "app")
	eventually(t, "the Burstable container gets its values", func() string {
		dir := dirOf(t, k, burstable, "app")
		if high, low := number(t, dir, "memory.high"), number(t, dir, "memory.low"); high != value(want.Memory.High, unlimited) || low != value(want.Memory.Low, 0) {
			return fmt.Sprintf("memory.high %d, memory.low %d", high, low)
		}
		return ""
	})
}
