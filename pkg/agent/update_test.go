package agent

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/systemd"
)

// update resizes a container and has the runtime apply the answer.
func (n *node) update(p Pod, c Container, to Resources) *Adjustment {
	n.Helper()
	got, err := n.UpdateContainer(context.Background(), p, c, to)
	if err != nil {
		n.Fatal(err)
	}
	return got
}

func TestAResizeRecomputesWhatItMust(t *testing.T) {
	tests := map[string]struct {
		class   memoryqos.QOSClass
		limit   uint64
		to      Resources
		nothing bool
		want    Adjustment
	}{
		"Burstable limit up": {
			class: memoryqos.Burstable, limit: 1000 * mi, to: Resources{MemoryLimit: limit(int64(2000 * mi))},
			want: Adjustment{Unified: map[string]string{"memory.high": bytesOf(1800 * mi)}},
		},
		"Burstable limit down": {
			class: memoryqos.Burstable, limit: 1000 * mi, to: Resources{MemoryLimit: limit(int64(500 * mi))},
			want: Adjustment{Unified: map[string]string{"memory.high": bytesOf(450 * mi)}},
		},
		"Burstable limit lifted": {
			class: memoryqos.Burstable, limit: 1000 * mi, to: Resources{MemoryLimit: limit(-1)},
			want: Adjustment{Unified: map[string]string{"memory.high": bytesOf(30051766272)}},
		},
		"only CPUs": {
			class: memoryqos.Burstable, limit: 1000 * mi, to: Resources{CPUs: "0-3", MemoryLimit: limit(0)}, nothing: true,
		},
		"the kubelet's max never wins": {
			class: memoryqos.Burstable, limit: 1000 * mi,
			to:   Resources{Unified: map[string]string{"memory.high": "max", "memory.min": "0"}},
			want: Adjustment{Unified: map[string]string{"memory.high": bytesOf(900 * mi)}},
		},
		"the kubelet says the same": {
			class: memoryqos.Burstable, limit: 1000 * mi,
			to: Resources{Unified: map[string]string{"memory.high": bytesOf(900 * mi)}}, nothing: true,
		},
		"Guaranteed grows where it is": {
			class: memoryqos.Guaranteed, limit: gi, to: Resources{MemoryLimit: limit(int64(2 * gi))},
			want: Adjustment{Unified: map[string]string{"memory.min": "2104532992"}},
		},
		"Guaranteed grows to a second node": {
			class: memoryqos.Guaranteed, limit: gi, to: Resources{MemoryLimit: limit(int64(20 * gi))},
			want: Adjustment{CpusetMems: "0-1", Unified: map[string]string{"memory.min": "21045338112"}},
		},
		"Guaranteed shrinks": {
			class: memoryqos.Guaranteed, limit: 2 * gi, to: Resources{MemoryLimit: limit(int64(gi))},
			want: Adjustment{Unified: map[string]string{"memory.min": "1052266496"}},
		},
		"a stale cpuset.mems in the request": {
			class: memoryqos.Guaranteed, limit: gi, to: Resources{Mems: "0-1"},
			want: Adjustment{CpusetMems: "0"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "")
			pod := n.pod("pod", test.class)
			c := n.launch(pod, ofPod(pod, "main", test.limit))
			got := n.update(pod, c, test.to)
			if test.nothing {
				if got != nil {
					t.Errorf("it was answered with %+v", *got)
				}
				return
			}
			if got == nil {
				t.Fatal("it was not answered")
			}
			n.want("cpuset.mems", got.CpusetMems, test.want.CpusetMems)
			if len(got.Unified) != len(test.want.Unified) {
				t.Errorf("unified is %v, want %v", got.Unified, test.want.Unified)
			}
			for file, value := range test.want.Unified {
				n.want(file, got.Unified[file], value)
			}
			if again := n.update(pod, c, Resources{MemoryLimit: test.to.MemoryLimit}); again == nil || !maps.Equal(again.Unified, got.Unified) {
				t.Errorf("the same once more, before the runtime has applied it, was answered with %+v", again)
			}
			if err := n.PostUpdateContainer(context.Background(), pod, c); err != nil {
				t.Fatal(err)
			}
			if again := n.update(pod, c, Resources{MemoryLimit: test.to.MemoryLimit}); again != nil {
				t.Errorf("the same once more was answered with %+v", *again)
			}
		})
	}
}

func TestWhatIsLoweredIsLoweredAboveOnlyAfterwards(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := n.launch(pod, ofPod(pod, "main", 2*gi))
	before := n.file("kubepods", "memory.min")
	got := n.update(pod, c, Resources{MemoryLimit: limit(int64(gi))})
	n.want("kubepods' memory.min before the runtime has applied it", n.file("kubepods", "memory.min"), before)
	n.want("allocations", n.allocated(), "1024 0")
	n.write(c.CgroupsPath, *got)
	if err := n.PostUpdateContainer(context.Background(), pod, c); err != nil {
		t.Fatal(err)
	}
	n.want("kubepods' memory.min afterwards", n.file("kubepods", "memory.min"), got.Unified["memory.min"])
}

func TestAResizeThatDoesNotFitIsRefusedAndChangesNothing(t *testing.T) {
	n := newNode(t, "topologyManagerPolicy: single-numa-node")
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := n.launch(pod, ofPod(pod, "main", 2*gi))
	min := n.file(pod.CgroupParent, "memory.min")
	_, err := n.UpdateContainer(context.Background(), pod, c, Resources{MemoryLimit: limit(int64(20 * gi))})
	if err == nil || !strings.Contains(err.Error(), "container main of pod default/pod") {
		t.Fatalf("the error is %v", err)
	}
	n.want("allocations", n.allocated(), "2048 0")
	n.want("the pod's memory.min", n.file(pod.CgroupParent, "memory.min"), min)
	if got := n.containerView(pod, "main").Limit; got != 2*gi {
		t.Errorf("the limit is shown as %d", got)
	}
	n.want("the reason shown", n.View().Rejections[0].Reason, "ResizeInfeasible")
}

func TestARuntimeThatDropsUnifiedFromRepliesHasItsFilesWritten(t *testing.T) {
	n := newNode(t, "", func(n *node) { n.runtime.ReplyUnified = false })
	pod := n.pod("pod", memoryqos.Burstable)
	c := n.launch(pod, ofPod(pod, "main", 1000*mi))
	n.mkdir(c.CgroupsPath + "/container") // crun's
	n.writeFile(c.CgroupsPath+"/container", "memory.high", bytesOf(900*mi))
	if got := n.update(pod, c, Resources{MemoryLimit: limit(int64(2000 * mi)), Unified: map[string]string{"memory.high": "max"}}); got != nil {
		t.Errorf("it was answered with %+v", *got)
	}
	n.writeFile(c.CgroupsPath, "memory.high", "max") // the runtime applies the kubelet's
	if err := n.PostUpdateContainer(context.Background(), pod, c); err != nil {
		t.Fatal(err)
	}
	n.work(context.Background())
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(1800*mi))
	n.want("crun's memory.high", n.file(c.CgroupsPath+"/container", "memory.high"), bytesOf(1800*mi))
}

func TestAPodsOverheadCountsAndFollowsAResize(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("kata", memoryqos.Guaranteed)
	pod.Overhead = 100 * mi
	if err := n.RunPodSandbox(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	n.want("the pod's memory.min", n.file(pod.CgroupParent, "memory.min"), bytesOf(100*mi))
	if err := n.UpdatePodSandbox(context.Background(), pod, 50*mi, 0); err != nil {
		t.Fatal(err)
	}
	n.want("the pod's memory.min", n.file(pod.CgroupParent, "memory.min"), bytesOf(50*mi))
	n.want("kubepods' memory.min", n.file("kubepods", "memory.min"), bytesOf(50*mi))
	if err := n.endPod(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	for _, event := range []func() error{
		func() error { return n.UpdatePodSandbox(context.Background(), pod, 1, 0) },
		func() error { return n.RunPodSandbox(context.Background(), pod) },
		func() error {
			_, err := n.UpdateContainer(context.Background(), pod, ofPod(pod, "main", gi), Resources{})
			return err
		},
	} {
		if err := event(); err == nil {
			t.Error("an event of a stopped sandbox was taken")
		}
	}
}

func TestAnUpdateOfAContainerThatWasMissedTakesItIn(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := ofPod(pod, "main", gi)
	c.State = Running
	got := n.update(pod, c, Resources{MemoryLimit: limit(int64(2 * gi))})
	if got == nil || got.CpusetMems != "0" || got.Unified["memory.min"] != "2104532992" {
		t.Errorf("the answer is %+v", got)
	}
	n.want("allocations", n.allocated(), "2048 0")
	c = ofPod(pod, "dead", gi)
	c.State = Stopped
	if got := n.update(pod, c, Resources{}); got != nil {
		t.Errorf("a dead container was answered with %+v", got)
	}
}

func TestSetHighRaisesAndSurvives(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Burstable)
	c := n.launch(pod, ofPod(pod, "main", 1000*mi))
	<-n.HighChanged()
	if err := n.SetHigh(ctx, c.ID, 950*mi); err != nil {
		t.Fatal(err)
	}
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(950*mi))
	high := n.HighContainers()
	if len(high) != 1 || high[0].Raised != 950*mi || high[0].High != 900*mi || high[0].Limit != 1000*mi || high[0].PodName != "pod" {
		t.Fatalf("the guard sees %+v", high)
	}
	// An update of anything else must not put the runtime's own value back.
	got := n.update(pod, c, Resources{CPUs: "0-1"})
	if got == nil || got.Unified["memory.high"] != bytesOf(950*mi) {
		t.Errorf("the update was answered with %+v", got)
	}
	n.write(c.CgroupsPath, *got)
	c.Resources = with(c.Resources, *got)

	// A restart of the plugin knows it, and so does the file check.
	n.restart()
	n.sync([]Pod{pod}, []Container{c})
	n.reconcile(ctx)
	n.want("memory.high after a restart", n.file(c.CgroupsPath, "memory.high"), bytesOf(950*mi))
	if got := n.containerView(pod, "main").Raised; got != 950*mi {
		t.Errorf("the view shows %d", got)
	}

	// A resize beyond the raise ends it; back to the computed value is no raise.
	if err := n.SetHigh(ctx, c.ID, cgroup.Max); err != nil {
		t.Fatal(err)
	}
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), "max")
	if err := n.SetHigh(ctx, c.ID, 900*mi); err != nil {
		t.Fatal(err)
	}
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(900*mi))
	if n.HighContainers()[0].Raised != 0 {
		t.Error("it still counts as raised")
	}
	if err := n.SetHigh(ctx, "nobody", gi); err == nil {
		t.Error("a container that is not there was raised")
	}
	if err := n.StopContainer(ctx, pod, c); err != nil {
		t.Fatal(err)
	}
	if len(n.HighContainers()) != 0 {
		t.Error("a stopped container is left to the guard")
	}
}

// The guard may have decided before it heard that it is to leave a container alone.
func TestRaiseIsRefusedWhereTheGuardIsOff(t *testing.T) {
	ctx := context.Background()
	off := map[string]string{"stall-guard.memory-manager.noderesource.dev": "off"}
	for name, test := range map[string]struct {
		config      string
		annotations map[string]string
	}{
		"by annotation":    {"", off},
		"by configuration": {"stallGuard: false", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.config)
			pod := n.pod("pod", memoryqos.Burstable)
			pod.Annotations = test.annotations
			c := n.launch(pod, ofPod(pod, "main", 1000*mi))
			before := n.file(c.CgroupsPath, "memory.high")
			if err := n.SetHigh(ctx, c.ID, 950*mi); err != nil {
				t.Fatal(err)
			}
			n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), before)
			if high := n.HighContainers()[0]; high.Raised != 0 || !high.GuardOff {
				t.Errorf("the guard sees %+v, want it off for a container that is not raised", high)
			}
		})
	}
}

func TestRaisesThatComeAtOnceAreAllKept(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Burstable)
	var group sync.WaitGroup
	for i := range 50 {
		c := n.launch(pod, ofPod(pod, fmt.Sprint("c", i), 1000*mi))
		group.Go(func() {
			raise := 901*mi + uint64(i)
			if err := n.SetHigh(context.Background(), c.ID, raise); err != nil {
				t.Error(err)
			}
			// What SetHigh has returned for is on the disk, unless that took half a second, for which nothing waits.
			disk := n.raises.Stats()
			slow := disk.Pending && time.Since(disk.PendingSince) >= 500*time.Millisecond
			if got := loadRaises(raisesPath(n.state), logrus.New())[c.ID]; got != raise && !slow {
				t.Errorf("container %d stands at %d after a restart", i, got)
			}
		})
	}
	group.Wait()
	n.stop()
	if kept := loadRaises(raisesPath(n.state), logrus.New()); len(kept) != 50 {
		t.Errorf("%d of 50 are kept", len(kept))
	}
}

// restart ends the agent as SIGKILL would, but for what is on its way to the disk, and starts another one.
func (n *node) restart() {
	n.Helper()
	n.stop()
	n.start()
}

// TestRaiseHoldsWithoutSystemdsAnswer keeps the stall guard from giving a container up that the kernel has given room.
func TestRaiseHoldsWithoutSystemdsAnswer(t *testing.T) {
	units := &systemd.Units{}
	n := newNode(t, "", func(n *node) { n.units = units })
	pod := n.pod("pod", memoryqos.Burstable)
	pod.CgroupParent = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podpod_uid.slice"
	c := ofPod(pod, "main", 1000*mi)
	c.CgroupsPath = pod.CgroupParent + "/cri-containerd-" + c.ID + ".scope"
	c = n.launch(pod, c)
	units.Turn(systemd.Loses)
	if err := n.SetHigh(t.Context(), c.ID, 950*mi); err != nil {
		t.Fatal(err)
	}
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(950*mi))
	if high := n.HighContainers(); len(high) != 1 || high[0].Raised != 950*mi {
		t.Errorf("the guard sees %+v", high)
	}
}

// TestASystemdThatHangsHoldsNoContainer takes in running pods, creates one and starts its container while systemd hangs.
func TestASystemdThatHangsHoldsNoContainer(t *testing.T) {
	units := &systemd.Units{}
	units.Turn(systemd.Slow)
	n := newNode(t, "", func(n *node) { n.units = units })
	var pods []Pod
	var containers []Container
	for i := range 20 {
		pod := n.pod(fmt.Sprintf("p%d", i), memoryqos.Guaranteed)
		pod.CgroupParent = fmt.Sprintf("/kubepods.slice/kubepods-podp%d.slice", i)
		c := ofPod(pod, "main", 10*mi)
		c.State, c.CgroupsPath = Running, pod.CgroupParent+"/cri-containerd-"+c.ID+".scope"
		n.mkdir(c.CgroupsPath)
		pods, containers = append(pods, pod), append(containers, c)
	}
	n.sync(pods, containers)
	pod := n.pod("new", memoryqos.Guaranteed)
	pod.CgroupParent = "/kubepods.slice/kubepods-podnew.slice"
	c := ofPod(pod, "main", 10*mi)
	c.CgroupsPath = pod.CgroupParent + "/cri-containerd-" + c.ID + ".scope"
	n.mkdir(pod.CgroupParent)
	n.run(pod, c, n.create(pod, c))
	for _, dir := range []string{"/kubepods.slice", pod.CgroupParent} {
		if got := n.file(dir, "memory.min"); got == "0" {
			t.Errorf("memory.min of %s is %s", dir, got)
		}
	}
}
