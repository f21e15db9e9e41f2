package agent

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// fleet is a node with pods in it, and what the runtime would show of them.
func fleet(n *node) (pods []Pod, containers []Container) {
	n.Helper()
	for _, spec := range []struct {
		name  string
		class memoryqos.QOSClass
		limit uint64
	}{
		{"big", memoryqos.Guaranteed, 20 * gi}, {"small", memoryqos.Guaranteed, gi}, {"burst", memoryqos.Burstable, gi},
		{"rest", memoryqos.BestEffort, 0},
	} {
		pod := n.pod(spec.name, spec.class)
		pods = append(pods, pod)
		containers = append(containers, n.launch(pod, ofPod(pod, "main", spec.limit)))
	}
	return pods, containers
}

func TestARestartKeepsEveryAllocationAndUpdatesNothing(t *testing.T) {
	n := newNode(t, "")
	pods, containers := fleet(n)
	allocated, kubepods := n.allocated(), above(n.View(), cgroup.LevelKubepods)
	for range 5 { // the order of pods and containers never matters
		rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		rand.Shuffle(len(containers), func(i, j int) { containers[i], containers[j] = containers[j], containers[i] })
		n.restart()
		if updates := n.sync(pods, containers); len(updates) > 0 {
			t.Errorf("updates: %+v", updates)
		}
		n.want("allocations", n.allocated(), allocated)
		n.want("kubepods' memory.min", text(above(n.View(), cgroup.LevelKubepods).Min), text(kubepods.Min))
	}
	if view := n.View(); !view.Ready() {
		t.Errorf("not ready: %+v", view.Conditions)
	}
}

func TestSynchronizeDropsWhatIsGone(t *testing.T) {
	n := newNode(t, "")
	pods, containers := fleet(n)
	n.restart()
	// big has no container any more and no cgroup, small's pod is not listed at all.
	n.rmdir(pods[0].CgroupParent)
	n.sync([]Pod{pods[0], pods[2], pods[3]}, containers[2:])
	n.want("allocations", n.allocated(), "0 0")
	if got := len(n.View().Pods); got != 2 {
		t.Errorf("%d pods are shown", got)
	}
	// A container that is gone keeps its allocation while its pod lives.
	pod := n.pod("loop", memoryqos.Guaranteed)
	n.launch(pod, ofPod(pod, "main", gi))
	n.sync([]Pod{pod}, nil)
	n.want("allocations", n.allocated(), "1024 0")
	n.want("kubepods' memory.min", n.file("kubepods", "memory.min"), "0")
	// A kubelet that is killed leaves a container that it never started. The runtime has it for a minute after the end of its pod.
	left := n.pod("left", memoryqos.Guaranteed)
	c := ofPod(left, "main", gi)
	n.create(left, c)
	c.State = Created
	for _, there := range []bool{true, false} {
		want := "1024 0"
		if !there {
			n.rmdir(left.CgroupParent)
			want = "0 0"
		}
		n.restart()
		n.sync([]Pod{left}, []Container{c})
		n.want("allocations", n.allocated(), want)
	}
}

func TestAStateFileThatIsLostOrBadIsRebuiltFromTheRuntime(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"lost":      os.Remove,
		"truncated": func(file string) error { return os.Truncate(file, 40) },
		"garbage":   func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) },
		"a folder":  func(file string) error { os.Remove(file); return os.Mkdir(file, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "")
			pods, containers := fleet(n)
			allocated := n.allocated()
			n.stop()
			if err := damage(filepath.Join(n.state, checkpoint.FileName)); err != nil {
				t.Fatal(err)
			}
			n.start()
			if updates := n.sync(pods, containers); len(updates) > 0 {
				t.Errorf("updates: %+v", updates)
			}
			n.want("allocations", n.allocated(), allocated)
			n.want("pinning", n.containerView(pods[1], "main").Pinning, "found pinned")
		})
	}
}

func TestAContainerThatWasCreatedMeanwhileIsPlaced(t *testing.T) {
	n := newNode(t, "")
	pods, containers := fleet(n)
	n.stop()
	pod := n.pod("missed", memoryqos.Guaranteed)
	c := ofPod(pod, "main", gi)
	c.State = Running
	burst := n.pod("missed-burst", memoryqos.Burstable)
	b := ofPod(burst, "main", 1000*mi)
	b.State = Created
	big := n.pod("missed-big", memoryqos.Guaranteed) // fits nowhere: a running container is never refused
	g := ofPod(big, "main", 60*gi)
	g.State = Running
	n.start()
	n.reconfigure("onUnsatisfiable: Reject")
	updates := n.sync(append(pods, pod, burst, big), append(containers, c, b, g))
	if len(updates) != 3 {
		t.Fatalf("updates: %+v", updates)
	}
	byID := map[string]Update{}
	for _, update := range updates {
		byID[update.ContainerID] = update
	}
	if got := byID[c.ID]; got.CpusetMems != "0-1" || got.Unified["memory.min"] != "1052266496" { // big has both nodes
		t.Errorf("the Guaranteed one: %+v", got)
	}
	if got := byID[b.ID]; got.CpusetMems != "" || got.Unified["memory.high"] != bytesOf(900*mi) {
		t.Errorf("the Burstable one: %+v", got)
	}
	if got := byID[g.ID]; got.CpusetMems != "" {
		t.Errorf("the one that fits nowhere: %+v", got)
	}
	if pinning := n.containerView(big, "main").Pinning; pinning != "not pinned: UnexpectedAdmissionError" {
		t.Errorf("pinning is %q", pinning)
	}
}

func TestCRIOsStaleValuesDoNotWin(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, "", func(n *node) { n.runtime = Runtime{Name: "cri-o", Version: "1.37.0", ReplyUnified: true} })
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := n.launch(pod, ofPod(pod, "main", gi))
	stale := c
	got := n.update(pod, c, Resources{MemoryLimit: limit(int64(20 * gi))})
	n.write(c.CgroupsPath, *got)
	n.writeFile(c.CgroupsPath, "memory.max", bytesOf(20*gi))
	burst := n.pod("burst", memoryqos.Burstable)
	b := n.launch(burst, ofPod(burst, "main", 1000*mi))
	staleBurst := b
	n.write(b.CgroupsPath, *n.update(burst, b, Resources{MemoryLimit: limit(int64(2000 * mi))}))
	n.writeFile(b.CgroupsPath, "memory.max", bytesOf(2000*mi))

	for _, restart := range []bool{false, true} { // CRI-O alone, then the plugin with it
		if restart {
			n.restart()
		}
		updates := n.sync([]Pod{pod, burst}, []Container{stale, staleBurst})
		n.want("allocations", n.allocated(), "14848 5632")
		if got := n.containerView(burst, "main"); got.Limit != 2000*mi {
			t.Errorf("the Burstable limit is taken as %d", got.Limit)
		}
		if len(updates) != 0 {
			t.Errorf("the files are right, and there are updates: %+v", updates)
		}
		// At its next update CRI-O would write what it has in its record.
		if got := n.update(pod, c, Resources{CPUs: "0-3"}); got == nil || got.CpusetMems != "0-1" || got.Unified["memory.min"] == "" {
			t.Errorf("the Guaranteed one is answered with %+v", got)
		}
		if got := n.update(burst, b, Resources{CPUs: "0-3"}); got == nil || got.Unified["memory.high"] != bytesOf(1800*mi) {
			t.Errorf("the Burstable one is answered with %+v", got)
		}
	}
	n.reconcile(ctx)
}

func TestWhatWeSetIsNotTakenForTheKubeletsWord(t *testing.T) {
	n := newNode(t, "")
	adj := int64(990)
	pod := n.pod("pod", memoryqos.Burstable)
	c := ofPod(pod, "main", gi)
	c.Resources.OOMScoreAdj = &adj
	c = n.launch(pod, c)
	before := n.containerView(pod, "main").Estimate
	if before.Source != "oomscore" {
		t.Fatalf("the request is %+v", before)
	}
	n.restart()
	n.sync([]Pod{pod}, []Container{c})
	if after := n.containerView(pod, "main").Estimate; after != before {
		t.Errorf("the request was %+v and is %+v after a restart", before, after)
	}
}

func TestTwoContainersOfOneNameAreOne(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Burstable)
	first, second := ofPod(pod, "main", gi), ofPod(pod, "main", 1000*mi)
	first.State = Created
	second.ID, second.CgroupsPath, second.State = "second", pod.CgroupParent+"/second", Running
	for _, order := range [][]Container{{first, second}, {second, first}} {
		n.restart()
		n.sync([]Pod{pod}, order)
		if got := n.containerView(pod, "main").ID; got != "second" {
			t.Errorf("the container is %s", got)
		}
	}
}

func TestAHostilePodDoesNotStopSynchronize(t *testing.T) {
	n := newNode(t, "")
	pods, containers := fleet(n)
	hostile := Pod{ID: "x", UID: "x", Namespace: "default", Name: "x", CgroupParent: "/kubepods/../x"}
	n.sync(append(pods, hostile, Pod{ID: "plain", CgroupParent: "/system.slice"}), append(containers, ofPod(hostile, "main", gi), Container{ID: "lost"}))
	if got := len(n.View().Pods); got < 4 {
		t.Errorf("%d pods are shown", got)
	}
}

func TestAReadOnlyStateFolderIsNoReasonToStop(t *testing.T) {
	n := newNode(t, "", func(n *node) {
		n.state = filepath.Join(n.root, "file")
		if err := os.WriteFile(n.state, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	pod := n.pod("pod", memoryqos.Guaranteed)
	n.want("cpuset.mems", n.create(pod, ofPod(pod, "main", gi)).CpusetMems, "0")
	n.sync([]Pod{pod}, nil)
	view := n.View()
	if view.Ready() {
		t.Error("it is ready without a checkpoint")
	}
	for _, condition := range view.Conditions {
		if condition.Name == ledger.ConditionCheckpoint && (condition.OK || condition.Message == "") {
			t.Errorf("the condition is %+v", condition)
		}
	}
}

// A runtime that has cut the connection creates a container without the answer. What it shows has no unified map then.
func TestAnAnswerThatTheRuntimeHasNotReadIsSentAgain(t *testing.T) {
	for _, version := range []string{"0.8.0", "0.12.3"} {
		n := newNode(t, "", func(n *node) { n.runtime.NRIVersion = version })
		pod := n.pod("pod", memoryqos.Burstable)
		c := ofPod(pod, "main", 1000*mi)
		n.create(pod, c)
		n.mkdir(c.CgroupsPath)
		c.State = Running
		n.Connected(n.runtime, n.apply)
		updates := n.sync([]Pod{pod}, []Container{c})
		if len(updates) != 1 || updates[0].Unified["memory.high"] != bytesOf(900*mi) {
			t.Errorf("NRI %s: the updates are %+v", version, updates)
		}
	}
}

// TestWhatCouldNotBeSentIsInTheNextAnswer: NRI before 0.12.1 takes updates only in an answer, and 0.8 shows no unified map.
func TestWhatCouldNotBeSentIsInTheNextAnswer(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Burstable)
	c := ofPod(pod, "main", 1000*mi)
	n.launch(pod, c)
	c.State = Running
	n.reconfigure("memoryThrottlingFactor: 0.5")
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(500*mi))
	n.Connected(n.runtime, n.apply)
	if updates := n.sync([]Pod{pod}, []Container{c}); len(updates) != 1 || updates[0].Unified["memory.high"] != bytesOf(500*mi) {
		t.Errorf("the updates are %+v", updates)
	}
}

// TestARaiseIsNotForTheRecord: with a late answer of the runtime it would undo the next raise.
func TestARaiseIsNotForTheRecord(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Burstable)
	c := n.launch(pod, ofPod(pod, "main", 1000*mi))
	if err := n.SetHigh(t.Context(), c.ID, 950*mi); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if updates := n.sync([]Pod{pod}, []Container{c}); len(updates) > 0 {
		t.Errorf("the updates are %+v", updates)
	}
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(950*mi))
}
