package cases

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// crashCycles is how many pods come and go while the plugin is killed.
const crashCycles = 50

// TestPluginIsKilledAtAnyMoment kills the plugin once in every cycle in which
// a pod comes and another goes, at a moment drawn from the length of the cycle
// before, so that it hits every stage. No create fails, the state file is valid
// at each start, and in the end exactly the living pods are booked.
func TestPluginIsKilledAtAnyMoment(t *testing.T) {
	k := kubeletOf(t)
	p := startPlugin(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	stays := guaranteed("stays", 32*MiB, 8*MiB)
	run(t, k, stays)
	nodes := file(dirOf(t, k, stays, "app"), "cpuset.mems")

	length := 2 * time.Second
	var last *kubelet.Pod
	for i := range crashCycles {
		pod := guaranteed(fmt.Sprint("pod", i), 32*MiB, MiB)
		killed := make(chan error, 1)
		moment := time.Duration(random.Int64N(int64(length)))
		time.AfterFunc(moment, func() {
			p.kill()
			killed <- p.launch()
		})
		began := time.Now()
		run(t, k, pod)
		if last != nil {
			if err := k.Remove(t.Context(), last); err != nil {
				t.Fatal(err)
			}
		}
		length, last = time.Since(began), pod
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		if i%5 == 4 { // the others are hit while they start
			p.waitSynchronized(1)
			p.onlyBooked(k, stays, pod)
		}
		if now := file(dirOf(t, k, stays, "app"), "cpuset.mems"); now != nodes {
			t.Fatalf("cycle %d: the pod that stays moved from node %s to %s", i, nodes, now)
		}
	}
	p.waitSynchronized(1)
	p.onlyBooked(k, stays, last)
	if all := file(p.log); strings.Contains(all, ".corrupt-") {
		t.Errorf("a state file was damaged by a kill")
	}
	if err := k.RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.waitFree()
}

// onlyBooked waits until these pods' containers are booked and no others, and
// verifies the state file.
func (p *plugin) onlyBooked(_ *kubelet.Kubelet, pods ...*kubelet.Pod) {
	p.t.Helper()
	var want []string
	for _, pod := range pods {
		want = append(want, pod.UID)
	}
	slices.Sort(want)
	eventually(p.t, "exactly the living pods are booked", func() string {
		s, err := p.read()
		if err != nil {
			return err.Error()
		}
		var booked []string
		var sum, reserved uint64
		for uid, containers := range s.Entries {
			booked = append(booked, uid)
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
		slices.Sort(booked)
		if !slices.Equal(booked, want) || sum != reserved {
			return fmt.Sprintf("booked %v with %d bytes, the nodes say %d; living are %v", booked, sum, reserved, want)
		}
		return ""
	})
	if out, code := p.command("state", "verify", p.stateFile()); code != 0 {
		p.t.Fatalf("state verify: exit status %d: %s", code, out)
	}
}

// TestPodsMadeWhileThePluginIsAwayAreAdopted creates pods without the plugin;
// when it comes back they are booked and get their values.
func TestPodsMadeWhileThePluginIsAwayAreAdopted(t *testing.T) {
	k := kubeletOf(t)
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
	p.onlyBooked(k, before, pinned)
	want := p.simulate(burstable).container(t, "burstable", "app")
	eventually(t, "the Burstable container gets its values", func() string {
		dir := dirOf(t, k, burstable, "app")
		if high, low := number(t, dir, "memory.high"), number(t, dir, "memory.low"); high != value(want.Memory.High, unlimited) || low != value(want.Memory.Low, 0) {
			return fmt.Sprintf("memory.high %d, memory.low %d", high, low)
		}
		return ""
	})
}
