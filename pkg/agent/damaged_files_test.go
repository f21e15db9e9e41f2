package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

func TestWhatAnAgentCannotBeMadeOf(t *testing.T) {
	tree, err := cgroupfs.Open(t.TempDir(), cgroupfs.Plain())
	if err != nil {
		t.Fatal(err)
	}
	hardware := parseMachine(t, twoNodes)
	absent := parseConfig(t, "")
	absent.ReservedMemory = append(slices.Clone(absent.ReservedMemory), config.Reservation{NUMANode: 9, Limits: map[string]config.ReservedBytes{"memory": 1 << 20}})
	for name, test := range map[string]struct {
		options Options
		err     string
	}{
		"no tree":          {Options{Machine: hardware, Config: parseConfig(t, "")}, "cgroup tree"},
		"an absent node":   {Options{Tree: tree, Machine: hardware, Config: absent}, "9"},
		"no NUMA nodes":    {Options{Tree: tree, Config: config.Default()}, ""},
		"nothing is wrong": {Options{Tree: tree, Machine: hardware, Config: parseConfig(t, ""), StateDir: t.TempDir()}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := New(test.options)
			if test.err == "-" {
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Close(context.Background()); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("the error is %v, want %q in it", err, test.err)
			}
		})
	}
}

func TestAChangedMachineKeepsRunningContainersWhereTheyAre(t *testing.T) {
	n := newNode(t, "")
	pods, containers := fleet(n)
	for _, test := range []struct{ name, text string }{
		{"drift within the tolerance", strings.Replace(twoNodes, "id: 0, memory: 16Gi", "id: 0, memory: 16760832Ki", 1)},
		{"less memory", strings.Replace(twoNodes, "id: 0, memory: 16Gi", "id: 0, memory: 8Gi", 1)},
		{"a node less", strings.Join(slices.DeleteFunc(strings.Split(twoNodes, "\n"), func(l string) bool { return strings.Contains(l, "id: 1") }), "\n")},
	} {
		t.Run(test.name, func(t *testing.T) {
			n.TB = t
			described, err := machine.Describe("machine", []byte(strings.ReplaceAll(test.text, ", distances: [10, 21]", "")))
			if err != nil {
				described.Machine = parseMachine(t, test.text)
			}
			n.machine = described.Machine
			n.config.ReservedMemory = nil
			n.restart()
			n.sync(pods, containers)
			if got := n.containerView(pods[1], "main"); len(got.Blocks) != 1 || got.Blocks[0].Size != gi {
				t.Errorf("the small container has %+v", got)
			}
		})
	}
	if !strings.Contains(n.log.String(), "within the tolerance") || !strings.Contains(n.log.String(), "no longer has") {
		t.Errorf("the log does not tell of the changes:\n%s", n.log)
	}
}

func TestADamagedJournalAndDamagedRaisesAreNoReasonToStop(t *testing.T) {
	n := newNode(t, "")
	n.stop()
	for _, file := range []string{protect.JournalFile, raisesFile} {
		if err := os.WriteFile(filepath.Join(n.state, file), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	for _, told := range []string{"the journal of written cgroup files is damaged and was renamed", "raised memory.high values cannot be read"} {
		if !strings.Contains(n.log.String(), told) {
			t.Errorf("the log does not say %q", told)
		}
	}
}

// What the kubelet asks for and our answer overrides is what a rollback gives back.
func TestTheJournalKnowsWhatTheKubeletWants(t *testing.T) {
	asking := func(pod Pod, files map[string]string) Container {
		c := ofPod(pod, "main", 1000*mi)
		c.Resources.Unified = files
		return c
	}
	for name, test := range map[string]struct {
		config string
		asked  map[string]string
		do     func(*node, Pod, Container)
		want   string
	}{
		"a create": {
			asked: map[string]string{"memory.low": "104857600", "memory.high": "964689920"}, do: func(n *node, p Pod, c Container) { n.launch(p, c) },
			want: "memory.high=964689920 memory.low=104857600",
		},
		"a kubelet that asks for nothing": {
			asked: map[string]string{"memory.min": "0", "memory.high": "max"}, do: func(n *node, p Pod, c Container) { n.launch(p, c) },
			want: "memory.high=",
		},
		"a resize": {
			asked: map[string]string{"memory.low": "104857600"},
			do: func(n *node, p Pod, c Container) {
				c = n.launch(p, c)
				n.update(p, c, Resources{MemoryLimit: limit(int64(2000 * mi)), Unified: map[string]string{"memory.low": "209715200", "memory.high": "1908408320"}})
			},
			want: "memory.high=1908408320 memory.low=209715200",
		},
		"a resize of what the runtime shows with an old value of ours": { // as CRI-O does after its restart
			asked: map[string]string{"memory.low": "104857600"},
			do: func(n *node, p Pod, c Container) {
				c = n.launch(p, c)
				n.write(c.CgroupsPath, *n.update(p, c, Resources{Unified: map[string]string{"memory.low": bytesOf(1000 * mi)}})) // its limit: no memory.high
				n.must(n.PostUpdateContainer(context.Background(), p, c))
				n.must(n.protector.WriteLate(context.Background()))
				n.update(p, c, Resources{MemoryLimit: limit(int64(2000 * mi))})
			},
			want: "memory.high= memory.low=1048576000",
		},
		"a restart of the plugin": {
			asked: map[string]string{"memory.low": "104857600"},
			do: func(n *node, p Pod, c Container) {
				c = n.launch(p, c)
				n.restart()
				n.sync([]Pod{p}, []Container{c})
			},
			want: "memory.high= memory.low=104857600 memory.min=", // of which the runtime may have an old value
		},
		"a file that is ours only later": {
			config: "memoryReservationPolicy: None", asked: map[string]string{"memory.low": "104857600"},
			do: func(n *node, p Pod, c Container) {
				n.launch(p, c)
				n.reconfigure("memoryReservationPolicy: TieredReservation")
			},
			want: "memory.high= memory.low=104857600",
		},
		"a file that is ours only later, while the runtime is away": {
			config: "memoryReservationPolicy: None", asked: map[string]string{"memory.low": "104857600"},
			do: func(n *node, p Pod, c Container) {
				n.launch(p, c)
				n.write(c.CgroupsPath, Adjustment{Unified: c.Resources.Unified})
				n.Disconnected(nil)
				n.reconfigure("memoryReservationPolicy: TieredReservation")
			},
			want: "memory.high= memory.low=104857600",
		},
		"a container that was there before the plugin": {
			asked: map[string]string{"memory.low": "104857600", "memory.high": "838860800"},
			do: func(n *node, p Pod, c Container) {
				c.State = Running
				n.mkdir(c.CgroupsPath)
				n.write(c.CgroupsPath, Adjustment{Unified: c.Resources.Unified})
				n.sync([]Pod{p}, []Container{c})
			},
			want: "memory.high=838860800 memory.low=", // memory.low is what we would have set: the journal may have been lost
		},
		"a container that starts without an answer of ours": {
			asked: map[string]string{"memory.high": "838860800"},
			do: func(n *node, p Pod, c Container) {
				if err := n.StartContainer(context.Background(), p, c); err != nil {
					t.Fatal(err)
				}
			},
			want: "memory.high=838860800",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.config)
			pod := n.pod("pod", memoryqos.Burstable)
			c := asking(pod, test.asked)
			test.do(n, pod, c)
			var all []string
			for _, e := range n.journal.Entries() {
				if "/"+e.Cgroup == c.CgroupsPath {
					all = append(all, string(e.Knob)+"="+e.Restore)
				}
			}
			n.want("the journal of the container", strings.Join(all, " "), test.want)
		})
	}
}

func TestAncestorsThatCannotBeWrittenAreToldOnceAndTriedAgain(t *testing.T) {
	n := newNode(t, "")
	n.mkdir("kubepods/memory.min/in the way")
	for _, name := range []string{"a", "b"} {
		pod := n.pod(name, memoryqos.Guaranteed)
		n.launch(pod, ofPod(pod, "main", gi))
	}
	if told := strings.Count(n.log.String(), "the parent cgroups could not be written"); told != 1 {
		t.Errorf("it was told %d times", told)
	}
	n.rmdir("kubepods/memory.min")
	n.reconcile(context.Background())
	n.want("kubepods' memory.min", n.file("kubepods", "memory.min"), bytesOf(2*1052266496))
	if n.Counters().ProtectErrors < 2 || !strings.Contains(n.log.String(), "the parent cgroups can be written again") {
		t.Error("its end was not told")
	}
}

func TestTwoKubeletsHaveTheirOwnSums(t *testing.T) {
	n := newNode(t, "")
	for _, root := range []string{"/one", "/two"} {
		for i, name := range []string{"a", "b"} {
			pod := n.pod(root[1:]+name, memoryqos.Burstable)
			pod.CgroupParent = root + pod.CgroupParent
			n.mkdir(pod.CgroupParent)
			c := ofPod(pod, "main", uint64(i+1)*gi)
			c.Resources.Unified = map[string]string{"memory.low": bytesOf(uint64(i+1) * 100 * mi)}
			n.launch(pod, c)
		}
	}
	for _, root := range []string{"one", "two"} {
		n.want("burstable memory.low", n.file(root+"/kubepods/burstable", "memory.low"), bytesOf(300*mi))
		n.want("kubepods memory.min", n.file(root+"/kubepods", "memory.min"), bytesOf(300*mi))
	}
}

func TestInitContainersCountInTheSpecsOrder(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "memoryReservationPolicy: HardReservation", func(n *node) { n.providers = []podinfo.Provider{api} })
	n.background()
	pod := n.pod("pod", memoryqos.Burstable)
	api.say(spec(pod, memoryqos.Burstable,
		pods.Container{Name: "sidecar", Kind: memoryqos.Sidecar, Request: 100 * mi, Limit: gi},
		pods.Container{Name: "init", Kind: memoryqos.Init, Request: 300 * mi, Limit: gi},
		pods.Container{Name: "main", Request: 250 * mi, Limit: gi}))
	// After a restart of the plugin the runtime lists them in any order, and one that the spec does not have.
	var containers []Container
	for _, name := range []string{"stranger", "main", "init", "sidecar"} {
		c := ofPod(pod, name, gi)
		c.State = Running
		containers = append(containers, c)
		n.mkdir(c.CgroupsPath)
	}
	n.sync([]Pod{pod}, containers)
	// max(sidecar + main, sidecar + init)
	eventually(t, "the sums are right", func() bool { return n.file(pod.CgroupParent, "memory.min") == bytesOf(400*mi) })
}

func TestTheKubeletMayMoveWhatItHasPinned(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := ofPod(pod, "main", gi)
	c.Resources.Mems = "1"
	c = n.launch(pod, c)
	got := n.update(pod, c, Resources{
		Mems: "0", MemoryLimit: limit(int64(2 * gi)), OOMScoreAdj: limit(-997), CPUShares: new(uint64),
		Hugepages: []HugepageLimit{{PageSize: "2MB", Limit: 4 * mi}},
	})
	if got == nil || got.CpusetMems != "" || got.Unified["memory.min"] != "2104532992" {
		t.Errorf("it was answered with %+v", got)
	}
	n.want("allocations", n.allocated(), "2048 0")
	if blocks := n.containerView(pod, "main").Blocks; len(blocks) != 2 {
		t.Errorf("blocks are %v", blocks)
	}
	// A Burstable one is none of the memory manager's.
	burst := n.pod("burst", memoryqos.Burstable)
	b := ofPod(burst, "main", gi)
	b.Resources.Mems = "1"
	b = n.launch(burst, b)
	n.update(burst, b, Resources{Mems: "0"})
	n.want("allocations", n.allocated(), "2048 0")
}

func TestOnlyTheChosenSourcesAreBelieved(t *testing.T) {
	adj := int64(500)
	for yaml, want := range map[string]memoryqos.Source{
		"":                             memoryqos.SourceOOMScore,
		"requestSources: [oomscore]":   memoryqos.SourceOOMScore,
		"requestSources: [annotation]": memoryqos.SourceNone,
		"requestSources: [kubelet]":    memoryqos.SourceNone,
	} {
		n := newNode(t, yaml)
		pod := n.pod("pod", memoryqos.Burstable)
		c := ofPod(pod, "main", 20*gi)
		c.Resources.OOMScoreAdj = &adj
		n.create(pod, c)
		if got := n.containerView(pod, "main").Source; got != want {
			t.Errorf("with %q the source is %s, want %s", yaml, got, want)
		}
	}
}

func TestWhyThereIsNoMemoryHigh(t *testing.T) {
	for name, test := range map[string]struct {
		yaml  string
		limit uint64
		low   uint64
		want  string
	}{
		"no factor":         {"memoryThrottlingFactor: null", gi, 0, "memoryThrottlingFactor is not set"},
		"request is limit":  {"", gi, gi, "memory.high is not set: the container asks for its limit"},
		"less than a page":  {"", 8192, 4096, "rounded down to a page it would not exceed the request"},
		"its low is stated": {"", gi, 100 * mi, "memory.low = request = 100Mi, TieredReservation"},
	} {
		n := newNode(t, test.yaml)
		pod := n.pod("pod", memoryqos.Burstable)
		pod.Annotations = map[string]string{"reservation.memory-manager.nri.io": "low"}
		c := ofPod(pod, "main", test.limit)
		if test.low > 0 {
			c.Resources.Unified = map[string]string{"memory.low": bytesOf(test.low)}
		}
		n.create(pod, c)
		explained := n.explain(pod.UID, "main")
		want := strings.Replace(test.want, "TieredReservation", "annotation low", 1)
		if all := strings.Join(explained[0].Memory, "\n"); !strings.Contains(all, want) {
			t.Errorf("%s: %q is not in\n%s", name, want, all)
		}
	}
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Burstable)
	c := n.launch(pod, ofPod(pod, "main", gi))
	if err := n.SetHigh(context.Background(), c.ID, cgroup.Max); err != nil {
		t.Fatal(err)
	}
	explained := n.explain("pod", "main")
	if !strings.Contains(strings.Join(explained[0].Memory, "\n"), "memory.high stands at max: the stall guard has raised it") {
		t.Errorf("explained as %v", explained)
	}
}

func TestStatesHaveNames(t *testing.T) {
	for state, want := range map[State]string{Unknown: "unknown", Created: "created", Running: "running", Paused: "paused", Stopped: "stopped", Creating: "creating"} {
		if got := state.String(); got != want {
			t.Errorf("state %d is %q, want %q", state, got, want)
		}
	}
}

// TestShortLivedContainersLeaveTheJournal has containers that end before anything has looked at their cgroups.
func TestShortLivedContainersLeaveTheJournal(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("job", memoryqos.Burstable)
	for i := range 20 {
		c := ofPod(pod, "main", gi)
		c.ID = fmt.Sprintf("c%d", i)
		c.CgroupsPath = pod.CgroupParent + "/" + c.ID
		c = n.launch(pod, c)
		if err := n.StopContainer(t.Context(), pod, c); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range n.journal.Entries() {
		if cgroup.LevelOf(e.Cgroup) == cgroup.LevelContainer {
			t.Errorf("the journal has %v", e)
		}
	}
}

// A runtime that was killed may leave the cgroup of a container that ended while the plugin was away. What it claims is missing to
// the other containers of its pod.
func TestWhatEndedUnseenClaimsNothing(t *testing.T) {
	n := newNode(t, "guaranteedHeadroom: 0")
	pod := n.pod("pod", memoryqos.Guaranteed)
	gone, kept := n.launch(pod, ofPod(pod, "gone", gi)), n.launch(pod, ofPod(pod, "kept", gi))
	n.want("memory.min of the container", n.file(gone.CgroupsPath, "memory.min"), bytesOf(gi))
	n.stop()
	n.start()
	n.sync([]Pod{pod}, []Container{kept})
	n.want("memory.min of what is left", n.file(gone.CgroupsPath, "memory.min"), "0")
	n.want("memory.min of the other one", n.file(kept.CgroupsPath, "memory.min"), bytesOf(gi))
	n.want("memory.min of the pod", n.file(pod.CgroupParent, "memory.min"), bytesOf(gi))
}
