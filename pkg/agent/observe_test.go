package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// The connection is lost, the kubelet resizes, the connection is back.
func TestAResizeWhileDisconnectedIsObserved(t *testing.T) {
	for _, runtime := range []string{"containerd", "cri-o"} { // which shows the limits of the creation
		t.Run(runtime, func(t *testing.T) {
			n := newNode(t, "", func(n *node) { n.runtime.Name = runtime })
			burst := n.pod("burst", memoryqos.Burstable)
			b := n.launch(burst, ofPod(burst, "main", 1000*mi))
			pinned := n.pod("pinned", memoryqos.Guaranteed)
			g := n.launch(pinned, ofPod(pinned, "main", gi))
			n.Disconnected(nil)
			n.writeFile(b.CgroupsPath, "memory.max", bytesOf(2000*mi))
			n.writeFile(g.CgroupsPath, "memory.max", bytesOf(4*gi))
			if runtime == "containerd" {
				b.Resources.MemoryLimit = limit(int64(2000 * mi))
				g.Resources.MemoryLimit = limit(int64(4 * gi))
			}
			n.Connected(n.runtime, nil)
			n.sync([]Pod{burst, pinned}, []Container{b, g})
			if got := n.containerView(burst, "main").Limit; got != 2000*mi {
				t.Errorf("memory.max is %d, the limit is taken as %d", 2000*mi, got)
			}
			n.want("allocated", n.allocated(), "4096 0")
		})
	}
}

// The exact bytes that the kubelet asks for are no multiple of a page; the file shows them rounded.
func TestAnObservedLimitKeepsItsExactBytes(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := n.launch(pod, ofPod(pod, "main", 1_000_000_001))
	n.writeFile(c.CgroupsPath, "memory.max", bytesOf(1_000_000_001/4096*4096))
	n.reconcile(context.Background())
	if got := n.containerView(pod, "main").Limit; got != 1_000_000_001 {
		t.Errorf("the limit is %d", got)
	}
}

// A look at cgroups wakes the recorder of OOM kills, and has the next View made, only if it changes something.
func TestALookThatChangesNothingWakesNobody(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := n.launch(pod, ofPod(pod, "main", gi))
	n.reconcile(context.Background())
	n.View()
	for _, step := range []struct {
		limit uint64
		wakes bool
	}{{gi, false}, {2 * gi, true}, {2 * gi, false}} {
		select {
		case <-n.Changed():
		default:
		}
		n.writeFile(c.CgroupsPath, "memory.max", bytesOf(step.limit))
		n.reconcile(context.Background())
		if woken := len(n.Changed()) > 0; woken != step.wakes || n.viewStale != step.wakes {
			t.Errorf("memory.max of %d: woken %v, View to be made %v, want %v", step.limit, woken, n.viewStale, step.wakes)
		}
		if got := n.containerView(pod, "main").Limit; got != step.limit {
			t.Errorf("memory.max of %d: the limit is shown as %d", step.limit, got)
		}
	}
}

// A pod's own limit that could not be read when its containers were created says later whether they share it.
func TestAPodsOwnLimitIsReadAgain(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	pod.Overhead = 100 * mi
	for _, name := range []string{"a", "b"} {
		n.launch(pod, ofPod(pod, name, 2*gi))
	}
	n.want("allocated while it is not known", n.allocated(), "4096 0")
	n.writeFile(pod.CgroupParent, "memory.max", bytesOf(2*gi+100*mi))
	n.reconcile(context.Background())
	n.want("allocated while they share it", n.allocated(), "0 0")
	n.writeFile(pod.CgroupParent, "memory.max", bytesOf(4*gi+100*mi))
	n.reconcile(context.Background())
	n.want("allocated with a limit of their own each", n.allocated(), "4096 0")
}

// Without a later look, the kernel tells of a container's and a pod's limit, and of their ends, which no runtime reports here.
func TestTheKernelTellsOfLimitsAndEnds(t *testing.T) {
	n := newNode(t, "", func(n *node) { n.watches, n.check = true, time.Hour })
	n.background()
	pod, other := n.pod("pod", memoryqos.Guaranteed), n.pod("other", memoryqos.Guaranteed)
	a, b := n.launch(pod, ofPod(pod, "a", 2*gi)), n.launch(pod, ofPod(pod, "b", 2*gi))
	n.launch(other, ofPod(other, "main", gi))
	n.reconcile(t.Context()) // it has been seen
	n.writeFile(a.CgroupsPath, "memory.max", bytesOf(3*gi))
	eventually(t, "the container's limit is known", func() bool { return n.containerView(pod, "a").Limit == 3*gi })
	n.want("allocated", n.allocated(), "6144 0")
	n.writeFile(pod.CgroupParent, "memory.max", bytesOf(3*gi))
	eventually(t, "they share the pod's limit", func() bool { return n.allocated() == "1024 0" })
	n.rmdir(b.CgroupsPath)
	eventually(t, "the container has ended", func() bool { _, lives := n.cgroupOf(b.ID); return !lives })
	if _, lives := n.cgroupOf(a.ID); !lives {
		t.Error("the other one has ended, too")
	}
	n.rmdir(other.CgroupParent)
	eventually(t, "the pod has ended", func() bool { return len(n.View().Pods) == 1 })
	n.must(n.StopPodSandbox(t.Context(), pod))
	n.rmdir(pod.CgroupParent)
	eventually(t, "the pod without a sandbox has ended", func() bool { return len(n.View().Pods) == 0 })
}

// A pod that ends while the plugin is away, and whose cgroup cannot be looked at when the runtime lists it, has had a cgroup.
func TestAPodThatCouldNotBeLookedAtEnds(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	n.launch(pod, ofPod(pod, "main", gi))
	n.restart()
	n.rmdir(pod.CgroupParent)
	n.onOpen = noDescriptorFor(".")
	n.sync([]Pod{pod}, nil)
	n.onOpen = nil
	n.want("pods", fmt.Sprint(len(n.View().Pods)), "1")
	n.reconcile(t.Context())
	n.want("pods after the next check", fmt.Sprint(len(n.View().Pods)), "0")
}

// On a node with many pods each has its turn.
func TestOfManyPodsTheOneThatIsGoneEnds(t *testing.T) {
	const pods, turns = 60, 2
	n := newNode(t, "")
	var all []Pod
	for i := range pods {
		pod := n.pod(fmt.Sprintf("pod-%d", i), memoryqos.Guaranteed)
		n.launch(pod, ofPod(pod, "main", 100*mi))
		all = append(all, pod)
	}
	for range turns {
		n.reconcile(context.Background())
	}
	n.want("pods", fmt.Sprint(len(n.View().Pods)), fmt.Sprint(pods))
	path, _, err := all[3].Path()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(n.root, path.Pod)); err != nil {
		t.Fatal(err)
	}
	for range turns {
		n.reconcile(context.Background())
	}
	n.want("pods", fmt.Sprint(len(n.View().Pods)), fmt.Sprint(pods-1))
	for _, view := range n.View().Pods {
		if view.UID == all[3].UID {
			t.Errorf("pod %s is still there", view.Name)
		}
	}
}

func TestAnUpdateThatWeFailedIsNotBelieved(t *testing.T) {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for _, class := range []memoryqos.QOSClass{memoryqos.Burstable, memoryqos.Guaranteed} {
		t.Run(string(class), func(t *testing.T) {
			n := newNode(t, "")
			pod := n.pod("pod", class)
			c := n.launch(pod, ofPod(pod, "main", 1000*mi))
			n.writeFile(c.CgroupsPath, "memory.max", bytesOf(1000*mi))
			allocated := n.allocated()
			if _, err := n.UpdateContainer(ctx, pod, c, Resources{MemoryLimit: limit(int64(4000 * mi))}); err == nil {
				t.Fatal("no error")
			}
			n.reconcile(context.Background())
			if got := n.containerView(pod, "main").Limit; got != 1000*mi {
				t.Errorf("memory.max is %d, the limit is taken as %d", 1000*mi, got)
			}
			n.want("allocated", n.allocated(), allocated)
		})
	}
}

// runc, or a plugin behind us, fails after our answer: PostUpdateContainer never comes.
func TestAnUpdateThatTheRuntimeFailedIsNotBelieved(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Burstable)
	c := n.launch(pod, ofPod(pod, "main", 4000*mi))
	n.writeFile(c.CgroupsPath, "memory.max", bytesOf(4000*mi))
	if got := n.update(pod, c, Resources{MemoryLimit: limit(int64(1000 * mi))}); got == nil {
		t.Fatal("no answer")
	}
	n.reconcile(context.Background())
	n.want("memory.high while the runtime may be at it", n.file(c.CgroupsPath, "memory.high"), bytesOf(3600*mi))
	n.clock.add(time.Minute)
	n.reconcile(context.Background())
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(3600*mi))
	if got := n.containerView(pod, "main").Limit; got != 4000*mi {
		t.Errorf("memory.max is %d, the limit is taken as %d", 4000*mi, got)
	}
	// The kubelet tries again, and this time it works.
	if got := n.update(pod, c, Resources{MemoryLimit: limit(int64(1000 * mi))}); got == nil || got.Unified["memory.high"] != bytesOf(900*mi) {
		t.Errorf("answered with %+v", got)
	}
}

// NRI before 0.10 does not show unified: the files say what is there.
func TestARestartUpdatesNothingThatIsRight(t *testing.T) {
	n := newNode(t, "", func(n *node) {
		n.runtime = Runtime{Name: "containerd", Version: "v2.1.4", NRIVersion: "0.8.0", ReplyUnified: true}
	})
	pods, containers := fleet(n)
	for i := range containers {
		containers[i].Resources.Unified = nil
	}
	n.restart()
	if updates := n.sync(pods, containers); len(updates) > 0 {
		t.Errorf("the files are right, and there are updates: %+v", updates)
	}
}

// A dry run writes nothing, and so must not keep what is to be written.
func TestADryRunKeepsNothingOfEndedPods(t *testing.T) {
	n := newNode(t, "profile: Observe")
	n.log.discard()
	ctx := context.Background()
	for i := range 100 {
		pod := n.pod(fmt.Sprint("pod", i), memoryqos.Guaranteed)
		c := ofPod(pod, "main", mi)
		n.create(pod, c)
		_ = n.StopContainer(ctx, pod, c)
		_ = n.endPod(ctx, pod)
	}
	if kept := len(n.outbox.ended) + len(n.outbox.targets) + len(n.outbox.tickets) + len(n.outbox.sync); kept > 0 {
		t.Errorf("no pod lives, and the outbox has %d entries", kept)
	}
}

// Of containers that have ended nothing stays, however they were watched and repaired.
func TestNothingOfEndedContainersIsKept(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, "", func(n *node) { n.watches = true })
	for i := range 20 {
		pod := n.pod(fmt.Sprint("pod", i), memoryqos.Guaranteed)
		c := n.launch(pod, ofPod(pod, "main", 100*mi))
		n.writeFile(c.CgroupsPath, "cpuset.mems", "1") // another writer
		n.reconcile(ctx)
		_ = n.StopContainer(ctx, pod, c)
		_ = n.endPod(ctx, pod)
		n.rmdir(pod.CgroupParent)
	}
	n.reconcile(ctx)
	n.sync(nil, nil)
	o := &n.outbox
	if kept := len(o.tickets) + len(o.targets) + len(o.ended) + len(o.limits) + len(o.seen) + n.watcher.Watches() + len(n.protector.OverwritesByFile()); kept > 0 {
		t.Errorf("no pod lives, and this is kept: %+v, %d watches, %v", o, n.watcher.Watches(), n.protector.OverwritesByFile())
	}
}

// A cgroup that no event and no pod is about leaves the journal once it is gone.
func TestThePeriodicCheckForgetsWhatIsGone(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	n.journal.Note(protect.Entry{Cgroup: pod.CgroupParent[1:] + "/c", Knob: cgroup.MemoryMin})
	if err := os.Mkdir(filepath.Join(n.root, pod.CgroupParent, "c"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.reconcile(context.Background())
	if entries := n.journal.Entries(); len(entries) != 1 {
		t.Errorf("while it is there, the journal has %v", entries)
	}
	n.rmdir(pod.CgroupParent)
	n.reconcile(context.Background())
	if left := n.journal.Entries(); len(left) > 0 {
		t.Errorf("the journal has %v", left)
	}
}

// A look at files that are as they should be changes nothing that anybody sees.
func TestALookThatFindsNothingIsNoChange(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	n.launch(pod, ofPod(pod, "main", gi))
	n.work(context.Background())
	before := n.View().Generation
	n.reconcile(context.Background())
	if got := n.View().Generation; got != before {
		t.Errorf("the state has changed %d times", got-before)
	}
}

// The plugin restarts while an init container runs; its app container takes the memory over.
func TestAnInitContainersMemoryIsReusedAfterARestart(t *testing.T) {
	ctx := context.Background()
	api := &podAPI{}
	n := newNode(t, "topologyManagerPolicy: single-numa-node", func(n *node) { n.providers = []podinfo.Provider{api} })
	stop := n.background()
	pod := n.pod("pod", memoryqos.Guaranteed)
	info := spec(pod, memoryqos.Guaranteed,
		pods.Container{Name: "init", Kind: memoryqos.Init, Request: 14 * gi, Limit: 14 * gi},
		pods.Container{Name: "main", Request: 14 * gi, Limit: 14 * gi})
	api.say(info)
	blocker := n.pod("blocker", memoryqos.Guaranteed)
	init := n.launch(pod, ofPod(pod, "init", 14*gi))
	other := n.launch(blocker, ofPod(blocker, "main", 14*gi))
	n.want("allocated", n.allocated(), "14336 14336")
	stop()
	n.restart()
	api.changed = nil
	n.background()
	api.listening(t)
	n.sync([]Pod{pod, blocker}, []Container{init, other})
	api.say(info)
	eventually(t, "the role is known", func() bool { return n.containerView(pod, "init").Kind == memoryqos.Init })
	_ = n.StopContainer(ctx, pod, init)
	n.create(pod, ofPod(pod, "main", 14*gi))
}

// scope pod: a reload that changes the Memory Manager, or a restart, keeps a pod's affinity.
func TestAPodKeepsItsAffinity(t *testing.T) {
	const config = "topologyManagerScope: pod\ntopologyManagerPolicy: restricted"
	for _, how := range []string{"reload", "restart"} {
		t.Run(how, func(t *testing.T) {
			api := &podAPI{}
			n := newNode(t, config, func(n *node) { n.providers = []podinfo.Provider{api} })
			stop := n.background()
			fill := n.pod("fill", memoryqos.Guaranteed)
			api.say(spec(fill, memoryqos.Guaranteed, pods.Container{Name: "main", Request: 5 * gi, Limit: 5 * gi}))
			f := n.launch(fill, ofPod(fill, "main", 5*gi))
			pod := n.pod("pod", memoryqos.Guaranteed)
			info := spec(pod, memoryqos.Guaranteed,
				pods.Container{Name: "a", Request: 7 * gi, Limit: 7 * gi}, pods.Container{Name: "b", Request: 6 * gi, Limit: 6 * gi})
			api.say(info)
			a := n.launch(pod, ofPod(pod, "a", 7*gi))
			if how == "reload" {
				n.reconfigure(config + "\nonConflict: CPUs")
			} else {
				stop()
				n.restart()
				n.background()
				n.sync([]Pod{pod, fill}, []Container{a, f})
				api.say(info)
			}
			b := n.create(pod, ofPod(pod, "b", 6*gi))
			n.want("the nodes of b", b.CpusetMems, n.containerView(pod, "a").Nodes.String())
		})
	}
}

// The kubelet gives each container of a pod that is Guaranteed by pod-level resources the pod's limit, and does not place
// such pods.
func TestAPodLevelPodCountsOnce(t *testing.T) {
	for name, known := range map[string]bool{"pod API": true, "no pod API": false} {
		t.Run(name, func(t *testing.T) {
			api := &podAPI{}
			n := newNode(t, "guaranteedHeadroom: 0", func(n *node) {
				if known {
					n.providers = []podinfo.Provider{api}
				}
			})
			n.background()
			pod := n.pod("pod", memoryqos.Guaranteed)
			pod.MemoryLimit = gi
			request := gi
			p := spec(pod, memoryqos.Guaranteed, pods.Container{Name: "a"}, pods.Container{Name: "b"}, pods.Container{Name: "c"})
			p.PodRequest, p.PodLimit = &request, &request
			api.say(p)
			for _, c := range []string{"a", "b", "c"} {
				n.launch(pod, ofPod(pod, c, gi))
			}
			n.work(context.Background())
			n.want("the pod's memory.min", text(n.podView(pod).Values.Min), bytesOf(gi))
			n.want("memory.min of kubepods", text(above(n.View(), cgroup.LevelKubepods).Min), bytesOf(gi))
			n.want("allocated", n.allocated(), "0 0")
			for _, c := range []string{"a", "b", "c"} {
				n.want("pinning of "+c, n.containerView(pod, c).Pinning,
					"not pinned: the pod's resources are its own, not its containers' (pod-level resources)")
			}
		})
	}
}

// A runtime that never answers an unasked update holds up neither the periodic look nor the values.
func TestARuntimeThatHangsHoldsNothingUp(t *testing.T) {
	api := &podAPI{}
	asked := make(chan bool, 100)
	n := newNode(t, "", func(n *node) {
		n.check, n.timeout = time.Second, 10*time.Millisecond
		n.providers = []podinfo.Provider{api}
		n.apply = func(ctx context.Context, _ []Update) error {
			asked <- true
			<-ctx.Done()
			return ctx.Err()
		}
	})
	pod := n.pod("pod", memoryqos.Burstable)
	c := n.launch(pod, ofPod(pod, "main", 1000*mi))
	n.background()
	api.listening(t)
	api.say(spec(pod, memoryqos.Burstable, pods.Container{Name: "main", Request: 500 * mi, Limit: 1000 * mi}))
	<-asked
	eventually(t, "memory.low is written", func() bool { return n.file(c.CgroupsPath, "memory.low") == bytesOf(500*mi) })
	gone := n.pod("gone", memoryqos.Guaranteed)
	n.launch(gone, ofPod(gone, "main", gi))
	n.clock.add(2 * time.Minute)
	n.rmdir(gone.CgroupParent)
	eventually(t, "the pod that is gone is free", func() bool { return n.allocated() == "0 0" })
}

// News that come more often than the period do not keep the periodic look away.
func TestWakeUpsDoNotStarveThePeriodicLook(t *testing.T) {
	n := newNode(t, "", func(n *node) { n.check = time.Second })
	gone := n.pod("gone", memoryqos.Guaranteed)
	n.launch(gone, ofPod(gone, "main", gi))
	n.background()
	n.clock.add(2 * time.Minute)
	n.rmdir(gone.CgroupParent)
	eventually(t, "the pod that is gone is free", func() bool {
		n.poke()
		return n.allocated() == "0 0"
	})
}

// A log that blocks holds up no other pod: nothing is logged under the lock.
func TestALogThatBlocksHoldsNoLock(t *testing.T) {
	n := newNode(t, "")
	pod, other := n.pod("pod", memoryqos.Burstable), n.pod("other", memoryqos.Burstable)
	unblock := n.log.block()
	created := make(chan error)
	go func() {
		_, err := n.CreateContainer(context.Background(), pod, ofPod(pod, "main", gi))
		created <- err
	}()
	eventually(t, "a line is stuck", n.log.stuck)
	n.View() // takes the lock
	if _, err := n.Explain("pod", ""); err != nil {
		t.Error(err)
	}
	n.step(ledger.EndPod{Pod: other, Gone: true})
	unblock()
	if err := <-created; err != nil {
		t.Error(err)
	}
}

// The periodic look is at another container's cgroup, on a slow host, while a container starts and the create of its pod's next one finds its
// cgroup: nothing changes for the running container.
func TestALookThatBeganBeforeAStart(t *testing.T) {
	ctx := context.Background()
	entered, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := false // set before the look begins
	n := newNode(t, "topologyManagerPolicy: single-numa-node\nmemoryReservationPolicy: HardReservation", func(n *node) {
		n.onOpen = func(cgroup, file string) error {
			if slow && file == "." && strings.HasSuffix(cgroup, "other-app") {
				once.Do(func() { close(entered); <-gate })
			}
			return nil
		}
	})
	n.sync(nil, nil)
	pod := n.pod("pod", memoryqos.Guaranteed)
	n.writeFile(pod.CgroupParent, "memory.max", bytesOf(6*gi))
	if err := n.RunPodSandbox(ctx, pod); err != nil {
		t.Fatal(err)
	}
	other := n.pod("other", memoryqos.Guaranteed)
	n.launch(other, ofPod(other, "app", gi))
	one := ofPod(pod, "one", 4*gi)
	adjustment := n.create(pod, one)
	slow = true
	done := make(chan struct{})
	go func() { defer close(done); n.Agent.reconcile(ctx) }()
	<-entered // one has no cgroup yet; the look goes on with the others
	one = n.run(pod, one, adjustment)
	n.work(ctx)
	before := n.file(one.CgroupsPath, "memory.min")
	n.launch(pod, ofPod(pod, "two", 2*gi))
	close(gate)
	<-done
	n.work(ctx)
	if _, lives := n.cgroupOf(one.ID); !lives {
		t.Errorf("the running container one is unknown")
	}
	n.want("memory.min of the running container", n.file(one.CgroupsPath, "memory.min"), before)
}

// What an ended pod had is free soon after its cgroup's end, which comes after its containers', also where the kernel does not tell of it.
func TestAnEndedPodIsFreeWithoutThePeriodicLook(t *testing.T) {
	for name, test := range map[string]struct {
		yaml    string
		watches bool
		class   memoryqos.QOSClass
	}{
		"by default":       {"", true, memoryqos.Guaranteed},
		"NUMA alone":       {"profile: NUMA\n", true, memoryqos.Guaranteed},
		"no reservation":   {"memoryReservationPolicy: None\n", true, memoryqos.Guaranteed},
		"in a dry run":     {"profile: Observe\n", true, memoryqos.Guaranteed},
		"without inotify":  {"", false, memoryqos.Guaranteed},
		"a Burstable pod":  {"", true, memoryqos.Burstable},
		"a BestEffort pod": {"", true, memoryqos.BestEffort},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.yaml, func(n *node) { n.watches, n.check = test.watches, time.Hour })
			n.background()
			pod := n.pod("pod", test.class)
			limit := uint64(2 * gi)
			if test.class == memoryqos.BestEffort {
				limit = 0
			}
			a := n.launch(pod, ofPod(pod, "a", limit))
			n.reconcile(t.Context())
			n.must(n.StopContainer(t.Context(), pod, a))
			n.must(n.StopPodSandbox(t.Context(), pod))
			n.rmdir(a.CgroupsPath)
			n.rmdir(pod.CgroupParent)
			eventually(t, "the pod has ended", func() bool { return len(n.View().Pods) == 0 })
		})
	}
}

// A limit that is written after it was read and before the kernel tells of it is read again.
func TestALimitThatChangesBeforeItIsWatched(t *testing.T) {
	for name, yaml := range map[string]string{"at a start": "", "after a dry run": "profile: Observe\n"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, yaml, func(n *node) { n.watches, n.check = true, time.Hour })
			pod := n.pod("pod", memoryqos.Guaranteed)
			a := n.launch(pod, ofPod(pod, "a", 2*gi))
			if yaml == "" {
				n.stop()
				n.start()
				n.sync([]Pod{pod}, []Container{a})
			}
			n.writeFile(a.CgroupsPath, "memory.max", bytesOf(3*gi))
			n.must(n.Reconfigure(t.Context(), parseConfig(t, "")))
			n.background()
			eventually(t, "the limit is known", func() bool { return n.containerView(pod, "a").Limit == 3*gi })
		})
	}
}

// The kernel tells of a new limit once: if it cannot be read then, the next check reads it.
func TestALimitThatCannotBeReadIsReadAgain(t *testing.T) {
	n := newNode(t, "", func(n *node) { n.watches = true })
	p := n.pod("pod", memoryqos.Burstable)
	c := n.launch(p, ofPod(p, "main", gi))
	n.reconcile(t.Context())
	if !n.protector.Watched()[c.CgroupsPath[1:]] {
		t.Fatal("the container is not watched")
	}
	n.writeFile(c.CgroupsPath, "memory.max", bytesOf(2*gi))
	place, _ := n.cgroupOf(c.ID)
	n.onOpen = noDescriptorFor("memory.max")
	n.readLimit(place)
	n.onOpen = nil
	n.reconcile(t.Context())
	n.want("the limit", bytesOf(n.containerView(p, "main").Limit), bytesOf(2*gi))
	n.want("to read again", fmt.Sprint(len(n.unread)), "0")
}
