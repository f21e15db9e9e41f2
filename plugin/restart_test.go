package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

const testConfig = `
topologyManagerPolicy: restricted
kubeReserved: {memory: 924Mi}
memoryThrottlingFactor: 0.9
guaranteedHeadroom: 0
`

// step is something that kubelet and runtime do.
type step struct {
	name      string
	do        func(*host) error
	allocated []string // afterwards
}

// life is the story of two pods; every step leaves something to be right or wrong.
func life() []step {
	first, second := guaranteed("first", 4*gi), guaranteed("second", 10*gi)
	web := burstable("web", 2*gi, 968) // a request between 1 and 1.1 GiB on this machine of 32 GiB
	steps := []step{
		{name: "run first", do: func(h *host) error { return h.runPod(first) }},
		{name: "create first", do: func(h *host) error { return h.create(first) }},
		{name: "start first", do: func(h *host) error { return h.startContainer(first) }},
		{name: "run web", do: func(h *host) error { return h.runPod(web) }},
		{name: "create web", do: func(h *host) error { return h.create(web) }},
		{name: "start web", do: func(h *host) error { return h.startContainer(web) }},
		{name: "resize web", do: func(h *host) error { return h.resize(web, 3*gi) }},
		{name: "resize first", do: func(h *host) error { return h.resize(first, 6*gi) }},
		{name: "run second", do: func(h *host) error { return h.runPod(second) }},
		{name: "create second", do: func(h *host) error { return h.create(second) }},
		{name: "first crashes", do: func(h *host) error { return h.stopContainer(first) }},
		{name: "remove first's container", do: func(h *host) error { return h.removeContainer(first) }},
		{name: "create first again", do: func(h *host) error { first.tries++; return h.create(first) }},
		{name: "start first again", do: func(h *host) error { return h.startContainer(first) }},
		{name: "delete web", do: func(h *host) error { return h.endPod(web) }},
		{name: "remove web", do: func(h *host) error { return h.removePod(web) }},
		{name: "delete second", do: func(h *host) error { return h.endPod(second) }},
		{name: "remove second", do: func(h *host) error { return h.removePod(second) }},
		{name: "delete first", do: func(h *host) error { return h.endPod(first) }},
		{name: "remove first", do: func(h *host) error { return h.removePod(first) }},
	}
	// What the state file has from a step on.
	const small, grown, other = "uid-first/app 0 4294967296", "uid-first/app 0 6442450944", "uid-second/app 1 10737418240"
	from := map[string][]string{
		"create first": {small}, "resize first": {grown}, "create second": {grown, other}, "delete second": {grown}, "delete first": nil,
	}
	var allocated []string
	for i := range steps {
		if change, ok := from[steps[i].name]; ok {
			allocated = change
		}
		steps[i].allocated = allocated
	}
	return steps
}

// settled returns the picture once the state file has these allocations and nothing has changed for a while: protection that
// is no longer needed is taken back after the answer.
func (h *host) settled(allocated []string) map[string]string {
	h.t.Helper()
	last, same := h.picture(), 0
	eventually(h.t, fmt.Sprintf("the allocations %q, and idle", allocated), func() bool {
		now := h.picture()
		same++
		if !maps.Equal(now, last) || !slices.Equal(h.entries(), allocated) {
			last, same = now, 0
		}
		return same > 80 // at least 5 ms each
	})
	return last
}

// picture is what can be seen of the plugin's work: allocations, containers' values, and the cgroups above them.
func (h *host) picture() map[string]string {
	all := map[string]string{}
	for _, entry := range h.entries() {
		all["allocated "+entry] = ""
	}
	for _, container := range h.runtime.Containers() {
		cgroup := container.Linux.CgroupsPath
		for _, file := range []string{"memory.min", "memory.low", "memory.high", "memory.max", "cpuset.mems"} {
			if text, err := h.tree.Read(cgroup, file); err == nil {
				all[container.Id+" "+file] = text
			}
		}
	}
	for _, cgroup := range []string{"kubepods", "kubepods/burstable", "kubepods/poduid-first", "kubepods/poduid-second", "kubepods/burstable/poduid-web"} {
		for _, file := range []string{"memory.min", "memory.low"} {
			if text, err := h.tree.Read(cgroup, file); err == nil {
				all[cgroup+" "+file] = text
			}
		}
	}
	return all
}

// live plays the story. After each step the picture must be the wanted one; without wanted pictures they are taken.
func (h *host) live(plugin *process, killAfter func(step int) bool, wanted []map[string]string) []map[string]string {
	h.t.Helper()
	var taken []map[string]string
	for i, step := range life() {
		if err := step.do(h); err != nil {
			h.t.Fatalf("%s: %v", step.name, err)
		}
		if killAfter(i) {
			plugin.kill()
			plugin = h.start()
		}
		if wanted == nil {
			taken = append(taken, h.settled(step.allocated))
			continue
		}
		var diff string
		last := func() bool { diff = cmp.Diff(wanted[i], h.picture()); return diff == "" }
		if !last() {
			eventually(h.t, fmt.Sprintf("the same as without a crash after %q:\n%s", step.name, diff), last)
		}
	}
	return taken
}

func never(int) bool { return false }

func TestKilledBetweenAnyTwoEventsThePluginKeepsEverything(t *testing.T) {
	t.Parallel()
	idle := newHost(t, cri.Options{}, testConfig)
	wanted := idle.live(idle.start(), never, nil)
	steps := life()
	t.Run("once", func(t *testing.T) {
		for at := range steps {
			t.Run(strings.ReplaceAll(steps[at].name, " ", "-"), func(t *testing.T) {
				t.Parallel()
				h := newHost(t, cri.Options{}, testConfig)
				h.live(h.start(), func(i int) bool { return i == at }, wanted)
			})
		}
	})
	t.Run("every-time", func(t *testing.T) {
		h := newHost(t, cri.Options{}, testConfig)
		h.live(h.start(), func(int) bool { return true }, wanted)
	})
}

func TestTheRuntimeRestarts(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	first := guaranteed("first", 4*gi)
	h.deploy(first)
	before := h.picture()
	h.runtime.Stop()
	eventually(t, "the plugin sees that the runtime is gone", func() bool {
		return strings.Contains(plugin.get("/readyz"), "[-] connected")
	})
	must(t, h.runtime.Start())
	h.connected()
	if diff := cmp.Diff(before, h.picture()); diff != "" {
		t.Errorf("after the restart:\n%s", diff)
	}
	h.deploy(guaranteed("second", 12*gi))
	eventually(t, "the plugin is ready", func() bool { return !strings.Contains(plugin.get("/readyz"), "[-]") })
}

// A container may end and a pod may go while the plugin is away; nothing tells it.
func TestWhatEndedWhileThePluginWasAwayIsFreed(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	gone, stays := guaranteed("gone", 12*gi), guaranteed("stays", 2*gi)
	h.deploy(gone, stays)
	plugin.kill()
	must(t, h.endPod(gone))
	must(t, h.removePod(gone))
	plugin = h.start()
	eventually(t, "only stays is allocated", func() bool {
		got := h.entries()
		return len(got) == 1 && strings.HasPrefix(got[0], "uid-stays/app")
	})
	next := guaranteed("next", 12*gi)
	h.deploy(next)
	plugin.kill()
	for _, last := range []*testPod{stays, next} {
		must(t, h.endPod(last))
		must(t, h.removePod(last))
	}
	h.start()
	eventually(t, "kubepods protects no memory", func() bool { return h.knob("kubepods", "memory.min") == "0" })
}

func TestRuntimesWithAnOlderNRI(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]cri.Options{
		"containerd 1.7.20": {Name: "containerd", Version: "v1.7.20", NRI: nriplugin.Version{Minor: 6, Patch: 1}},
		"containerd 1.7.28": {Name: "containerd", Version: "1.7.28-0ubuntu1", NRI: nriplugin.Version{Minor: 8}},
		"CRI-O 1.33":        {Name: "cri-o", Version: "1.33.4", NRI: nriplugin.Version{Minor: 9}},
		"containerd 2.2":    {Name: "containerd", Version: "v2.2.1", NRI: nriplugin.Version{Minor: 11}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, options, testConfig)
			h.start()
			first, web := guaranteed("first", 4*gi), burstable("web", 2*gi, 968)
			h.deploy(first, web)
			if got := h.mems(first); got != "0" {
				t.Errorf("cpuset.mems is %q, want 0", got)
			}
			high := func() string { return h.knob(web.cgroup()+"/"+web.id(), "memory.high") }
			before := high()
			must(t, h.resize(web, 3*gi))
			eventually(t, "memory.high follows the resize", func() bool { return high() != before })
			must(t, h.endPod(first))
			must(t, h.removePod(first))
			eventually(t, "nothing is allocated", func() bool { return len(h.entries()) == 0 })
		})
	}
}

func TestAnotherPluginSetsTheSameKey(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	h.start()
	stop := h.rival()
	first := guaranteed("first", 12*gi)
	must(t, h.runPod(first))
	err := h.create(first)
	if err == nil || !strings.Contains(err.Error(), "memory-manager") || !strings.Contains(err.Error(), "rival") {
		t.Fatalf("the create ended with %v, want the names of both plugins", err)
	}
	stop()
	// The kubelet tries again; the first try has left nothing that would be in its way.
	eventually(t, "the rival is gone", func() bool { return h.create(first) == nil })
	eventually(t, "it alone is allocated", func() bool { return slices.Equal(h.entries(), []string{"uid-first/app 0 12884901888"}) })
}

func TestARejectedContainerLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	h.start()
	large := guaranteed("large", 64*gi)
	must(t, h.runPod(large))
	err := h.create(large)
	for _, want := range []string{"64Gi needed; node 1: ", "restricted", "node 0: ", " free, "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("the create ended with %v, want %q in it", err, want)
		}
	}
	must(t, h.runtime.StopPodSandbox(context.Background(), large.sandbox()))
	eventually(t, "nothing is allocated", func() bool { return len(h.entries()) == 0 })
	h.deploy(guaranteed("fits", 12*gi))
}

func TestAHostileCgroupParentTouchesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	h.start()
	for _, parent := range []string{"/kubepods/../../outside/poduid", "../kubepods/poduid", "/kubepods/burstable/../../poduid", "/system.slice/poduid"} {
		evil := guaranteed("evil", gi)
		pod := evil.pod()
		pod.Linux.CgroupParent = parent
		if err := h.runtime.RunPodSandbox(context.Background(), pod); err == nil {
			_ = h.create(evil) // may be refused or left alone
			must(t, h.runtime.RemovePodSandbox(context.Background(), evil.sandbox()))
		}
	}
	eventually(t, "nothing is allocated", func() bool { return len(h.entries()) == 0 })
	h.deploy(guaranteed("good", gi))
}
