package agent

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// podAPI is a source of pods that a test speaks for.
type podAPI struct {
	mu      sync.Mutex
	pods    map[pods.Ref]*pods.Pod
	changed func(*pods.Pod)
}

func (s *podAPI) Source() memoryqos.Source { return memoryqos.SourceKubelet }
func (s *podAPI) Connected() bool          { return true }
func (s *podAPI) Problem() string          { return "" }

func (s *podAPI) Run(ctx context.Context, changed func(*pods.Pod)) {
	s.mu.Lock()
	s.changed = changed
	s.mu.Unlock()
	<-ctx.Done()
}

func (s *podAPI) Known(ref pods.Ref) (*pods.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod, ok := s.pods[ref]
	return pod, ok
}

func (s *podAPI) Ask(_ context.Context, ref pods.Ref) (*pods.Pod, error) {
	if pod, ok := s.Known(ref); ok {
		return pod, nil
	}
	return nil, podinfo.ErrNotFound
}

func (s *podAPI) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pods)
}

// say has the source tell of a pod.
func (s *podAPI) say(pod *pods.Pod) {
	s.mu.Lock()
	if s.pods == nil {
		s.pods = map[pods.Ref]*pods.Pod{}
	}
	s.pods[pod.Ref] = pod
	changed := s.changed
	s.mu.Unlock()
	if changed != nil {
		changed(pod)
	}
}

// listening waits for Run.
func (s *podAPI) listening(t testing.TB) {
	eventually(t, "the source is listened to", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.changed != nil
	})
}

func spec(p Pod, class memoryqos.QOSClass, containers ...pods.Container) *pods.Pod {
	return &pods.Pod{Ref: pods.Ref{UID: p.UID, Namespace: p.Namespace, Name: p.Name}, Class: class, Containers: containers}
}

// background runs the agent's Run until the test ends.
func (n *node) background() (stop func()) {
	n.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	agent := n.Agent
	go func() {
		defer close(done)
		if err := agent.Run(ctx); err != nil {
			n.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	n.Cleanup(stop)
	return stop
}

func TestAnEstimateIsCorrectedOnTheRunningContainer(t *testing.T) {
	for name, byRuntime := range map[string]bool{"through the runtime": true, "by files": false} {
		t.Run(name, func(t *testing.T) {
			api := &podAPI{}
			var mu sync.Mutex
			var applied []Update
			n := newNode(t, "", func(n *node) {
				n.timeout = 10 * time.Millisecond
				n.providers = []podinfo.Provider{api}
				if byRuntime {
					n.apply = func(_ context.Context, updates []Update) error {
						mu.Lock()
						defer mu.Unlock()
						applied = append(applied, updates...)
						return nil
					}
				}
			})
			pod := n.pod("pod", memoryqos.Burstable)
			c := n.launch(pod, ofPod(pod, "main", 1000*mi))
			n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(900*mi))
			n.background()
			api.listening(t)
			api.say(spec(pod, memoryqos.Burstable, pods.Container{Name: "main", Request: 500 * mi, Limit: 1000 * mi}))
			eventually(t, "the pod is protected", func() bool {
				return n.file(pod.CgroupParent, "memory.low") == bytesOf(500*mi) && n.file("kubepods/burstable", "memory.low") == bytesOf(500*mi)
			})
			eventually(t, "the container is throttled later", func() bool {
				return n.file(c.CgroupsPath, "memory.high") == bytesOf(950*mi) // by the check of the files, where the runtime failed silently
			})
			eventually(t, "the runtime is told", func() bool { // the check of the files may be earlier
				mu.Lock()
				defer mu.Unlock()
				return !byRuntime || len(applied) > 0
			})
			mu.Lock()
			defer mu.Unlock()
			if byRuntime && (len(applied) != 1 || applied[0].Unified["memory.low"] != bytesOf(500*mi)) {
				t.Errorf("the runtime was told %+v", applied)
			}
			view := n.containerView(pod, "main").Estimate
			if view.Source != memoryqos.SourceKubelet || !view.Exact() {
				t.Errorf("the request is shown as %+v", view)
			}
			if n.Counters().Corrections != 1 {
				t.Errorf("counted %d corrections", n.Counters().Corrections)
			}
		})
	}
}

// A pod API has the pod in its table, and the next container's creation finds it there before the notification arrives.
func TestWhatOneContainerLearnsIsKnownToTheOthers(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "", func(n *node) { n.timeout, n.providers = 10*time.Millisecond, []podinfo.Provider{api} })
	n.background()
	api.listening(t)
	pod := n.pod("pod", memoryqos.Burstable)
	side := n.launch(pod, ofPod(pod, "side", 1000*mi))
	info := spec(pod, memoryqos.Burstable,
		pods.Container{Name: "side", Kind: memoryqos.Sidecar, Request: 500 * mi, Limit: 1000 * mi},
		pods.Container{Name: "main", Request: 100 * mi, Limit: 1000 * mi})
	api.mu.Lock()
	api.pods = map[pods.Ref]*pods.Pod{info.Ref: info}
	api.mu.Unlock()
	n.launch(pod, ofPod(pod, "main", 1000*mi))
	eventually(t, "the first container has its request", func() bool { return n.file(side.CgroupsPath, "memory.low") == bytesOf(500*mi) })
	if got := n.containerView(pod, "side"); got.Request != 500*mi || got.Kind != memoryqos.Sidecar {
		t.Errorf("the first container is shown as %+v", got)
	}
}

func TestARuntimeThatRefusesUpdatesHasItsFilesWritten(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "", func(n *node) {
		n.timeout = 10 * time.Millisecond
		n.providers = []podinfo.Provider{api}
		n.apply = func(context.Context, []Update) error { return fmt.Errorf("no") }
	})
	pod := n.pod("pod", memoryqos.Burstable)
	c := n.launch(pod, ofPod(pod, "main", 1000*mi))
	n.background()
	api.listening(t)
	api.say(spec(pod, memoryqos.Burstable, pods.Container{Name: "main", Request: 500 * mi, Limit: 1000 * mi}))
	eventually(t, "the file is written", func() bool { return n.file(c.CgroupsPath, "memory.high") == bytesOf(950*mi) })
}

func TestRolesAndPodLevelsComeFromThePodAPI(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "", func(n *node) { n.providers = []podinfo.Provider{api} })
	n.background()
	pod := n.pod("pod", memoryqos.Guaranteed)
	known := spec(pod, memoryqos.Guaranteed,
		pods.Container{Name: "init", Kind: memoryqos.Init, Request: 2 * gi, Limit: 2 * gi},
		pods.Container{Name: "main", Request: gi, Limit: gi})
	known.Overhead = 10 * mi
	api.say(known)
	first := n.launch(pod, ofPod(pod, "init", 2*gi))
	n.want("allocations", n.allocated(), "2048 0")
	if err := n.StopContainer(context.Background(), pod, first); err != nil {
		t.Fatal(err)
	}
	if kind := n.containerView(pod, "init").Kind; kind != memoryqos.Init {
		t.Errorf("the role is %v", kind)
	}
	main := ofPod(pod, "main", gi)
	adjustment := n.create(pod, main)
	n.want("the app re-uses the init container's memory", n.allocated(), "2048 0")
	n.run(pod, main, adjustment)
	n.want("what the init container had beyond that is free", n.allocated(), "1024 0")
	// The init container's peak stays, less the headroom of its limit.
	n.want("the pod's memory.min", n.file(pod.CgroupParent, "memory.min"), bytesOf(2104532992+10*mi))
}

func TestAPodKeepsTheSumOfItsSpec(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "memoryReservationPolicy: TieredReservation", func(n *node) { n.providers = []podinfo.Provider{api} })
	n.background()
	api.listening(t)
	pod := n.pod("pod", memoryqos.Burstable)
	pod.Annotations = map[string]string{"reservation.memory-manager.noderesource.dev/container.plain": "none"}
	api.say(spec(pod, memoryqos.Burstable,
		pods.Container{Name: "init", Kind: memoryqos.Init, Request: 124 * mi, Limit: 200 * mi},
		pods.Container{Name: "plain", Request: 500 * mi},
		pods.Container{Name: "main", Request: 100 * mi, Limit: 1000 * mi}))
	sums := func(what string, bytes uint64) {
		t.Helper()
		n.want("the pod's memory.low "+what, n.file(pod.CgroupParent, "memory.low"), bytesOf(bytes))
		n.want("the class's memory.low "+what, n.file("kubepods/burstable", "memory.low"), bytesOf(bytes))
		n.want("kubepods' memory.low "+what, n.file("kubepods", "memory.low"), bytesOf(bytes))
	}
	first := n.launch(pod, ofPod(pod, "init", 200*mi))
	sums("in its first init container", 124*mi)
	if err := n.StopContainer(context.Background(), pod, first); err != nil {
		t.Fatal(err)
	}
	sums("between its containers", 124*mi)
	main := n.launch(pod, ofPod(pod, "main", 1000*mi))
	sums("in its app container", 124*mi)

	// A container that has more than the spec says is carried, as long as a pod API is behind a resize.
	api.say(spec(pod, memoryqos.Burstable,
		pods.Container{Name: "init", Kind: memoryqos.Init, Request: 124 * mi, Limit: 200 * mi},
		pods.Container{Name: "plain", Request: 500 * mi},
		pods.Container{Name: "main", Request: 300 * mi, Limit: 1000 * mi}))
	eventually(t, "the new request", func() bool { return n.file(main.CgroupsPath, "memory.low") == bytesOf(300*mi) })
	sums("after the resize", 300*mi)
}

func TestAPodLevelPodIsProtectedOnce(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "memoryManagerPolicy: None\nreservedMemory: []", func(n *node) { n.providers = []podinfo.Provider{api} })
	n.background()
	sums := func(what string, pod Pod, bytes uint64) {
		t.Helper()
		n.want("the pod's memory.min "+what, n.file(pod.CgroupParent, "memory.min"), bytesOf(bytes))
		n.want("kubepods' memory.min "+what, n.file("kubepods", "memory.min"), bytesOf(bytes))
	}

	// The runtime reports the pod's limit for containers that have none of their own.
	pod := n.pod("known", memoryqos.Guaranteed)
	request := uint64(4 * gi)
	known := spec(pod, memoryqos.Guaranteed, pods.Container{Name: "a", Request: 2 * gi, Limit: 2 * gi}, pods.Container{Name: "b"}, pods.Container{Name: "c"})
	known.PodRequest, known.PodLimit = &request, &request
	api.say(known)
	for name, want := range map[string]struct {
		limit uint64
		min   string
	}{"a": {2 * gi, "2104532992"}, "b": {4 * gi, ""}, "c": {4 * gi, ""}} {
		n.want("memory.min of "+name, n.create(pod, ofPod(pod, name, want.limit)).Unified["memory.min"], want.min)
	}
	sums("where its spec is known", pod, 4*gi)
	if share := n.podView(pod).Share(); share != 4*gi {
		t.Errorf("the pod may count on %d, want its own request", share)
	}
	if got := n.containerView(pod, "b").Estimate; got != (pods.Estimate{Source: memoryqos.SourceKubelet}) {
		t.Errorf("the request of a container without resources is %+v", got)
	}
	if err := n.endPod(context.Background(), pod); err != nil {
		t.Fatal(err)
	}

	pod = n.pod("unknown", memoryqos.Guaranteed)
	pod.MemoryLimit = 4 * gi
	c := n.launch(pod, ofPod(pod, "a", 4*gi))
	sums("with one container", pod, 4209065984) // less the headroom
	if got := n.create(pod, ofPod(pod, "b", 4*gi)).Unified; got != nil {
		t.Errorf("a container that has all of its pod's limit beside another gets %v", got)
	}
	sums("where only its limit is known", pod, 4*gi)
	eventually(t, "the first container's request is not known either", func() bool { return n.file(c.CgroupsPath, "memory.min") == "0" })
	if got := n.containerView(pod, "a").Estimate; got != (pods.Estimate{Source: memoryqos.SourceNone, Error: 4 * gi}) {
		t.Errorf("its request is %+v", got)
	}
	n.create(pod, ofPod(pod, "own", gi))
	sums("with a container that has a limit of its own", pod, 4*gi)

	// The kubelet raises the limit of the pod's cgroup first. Runtimes need not report that, nor know it after their restart.
	n.writeFile(pod.CgroupParent, "memory.max", bytesOf(5*gi))
	n.update(pod, c, Resources{MemoryLimit: limit(int64(5 * gi))})
	sums("after a resize", pod, 5*gi)
	n.restart()
	n.sync([]Pod{pod}, []Container{c, ofPod(pod, "b", 4*gi)})
	sums("after a restart", pod, 5*gi)
}

// TestMemoryHighInAPodWithResourcesOfItsOwn has the containers of a pod that is Guaranteed by 4Gi in spec.resources on a node with 8Gi
// for pods. The events show the pod's limit for a container without one.
func TestMemoryHighInAPodWithResourcesOfItsOwn(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "memoryManagerPolicy: None\nreservedMemory: []\nkubeReserved: {memory: 24Gi}\nguaranteedHeadroom: 0",
		func(n *node) { n.providers = []podinfo.Provider{api} })
	n.background()
	pod := n.pod("pod", memoryqos.Guaranteed)
	request := 4 * gi
	known := spec(pod, memoryqos.Guaranteed,
		pods.Container{Name: "all", Request: 2 * gi, Limit: 2 * gi}, pods.Container{Name: "nothing"},
		pods.Container{Name: "part", Request: gi, Limit: 2 * gi})
	known.PodRequest, known.PodLimit = &request, &request
	api.say(known)
	for _, c := range []struct {
		name      string
		limit     uint64
		min, high string
	}{
		{"all", 2 * gi, "2147483648", ""}, {"nothing", 4 * gi, "", "7730937856"}, {"part", 2 * gi, "1073741824", "2040107008"},
	} {
		files := n.create(pod, ofPod(pod, c.name, c.limit)).Unified
		n.want("memory.min of "+c.name, files["memory.min"], c.min)
		n.want("memory.high of "+c.name, files["memory.high"], c.high)
	}
	n.want("memory.min of the pod", text(n.podView(pod).Values.Min), "4294967296")
	n.want("memory.high of the pod", text(n.podView(pod).Values.High), text(nil))

	// Without a pod API two containers with all of the pod's limit show that it is the pod's: what they ask for is not known.
	pod = n.pod("unknown", memoryqos.Guaranteed)
	pod.MemoryLimit = 4 * gi
	n.launch(pod, ofPod(pod, "a", 4*gi))
	n.want("files of a container that shares the pod's limit", fmt.Sprint(n.create(pod, ofPod(pod, "b", 4*gi)).Unified), "map[]")
}

// TestClaimedMemoryIsNotTheContainersOwn has resource claims that add 5Gi to the limits that the events show: a container is allocated
// what it asks for itself, and the pod is protected with its claims.
func TestClaimedMemoryIsNotTheContainersOwn(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "guaranteedHeadroom: 0", func(n *node) { n.providers = []podinfo.Provider{api} })
	n.background()
	claims := func(name string, class memoryqos.QOSClass, request, limit uint64) map[string]string {
		pod := n.pod(name, class)
		known := spec(pod, class, pods.Container{Name: "main", Request: request, Limit: limit, Claimed: 5 * gi})
		known.Claimed = 5 * gi
		api.say(known)
		files := n.create(pod, ofPod(pod, "main", limit+5*gi)).Unified
		sums := n.podView(pod).Values
		files["pod"] = text(sums.Min) + " " + text(sums.Low)
		n.want("the request of "+name, fmt.Sprint(n.containerView(pod, "main").Estimate), fmt.Sprint(pods.Estimate{Request: request, Source: memoryqos.SourceKubelet}))
		return files
	}
	n.want("files of the Burstable pod", fmt.Sprint(claims("burst", memoryqos.Burstable, gi, 2*gi)),
		"map[memory.high:6871945216 memory.low:1073741824 pod:"+text(nil)+" 6442450944]")
	n.want("files of the Guaranteed pod", fmt.Sprint(claims("guar", memoryqos.Guaranteed, 2*gi, 2*gi)),
		"map[memory.min:2147483648 pod:7516192768 "+text(nil)+"]")
	n.want("allocated", n.allocated(), "2048 0")
}

func TestPodScopeAlignsTheWholePod(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "topologyManagerScope: pod\ntopologyManagerPolicy: restricted", func(n *node) { n.providers = []podinfo.Provider{api} })
	n.background()
	pod := n.pod("pod", memoryqos.Guaranteed)
	api.say(spec(pod, memoryqos.Guaranteed,
		pods.Container{Name: "a", Request: 10 * gi, Limit: 10 * gi},
		pods.Container{Name: "b", Request: 10 * gi, Limit: 10 * gi}))
	for _, name := range []string{"a", "b"} {
		n.want("cpuset.mems", n.create(pod, ofPod(pod, name, 10*gi)).CpusetMems, "0-1")
	}
	// The whole pod is refused at its first container.
	big := n.pod("big", memoryqos.Guaranteed)
	api.say(spec(big, memoryqos.Guaranteed,
		pods.Container{Name: "a", Request: 5 * gi, Limit: 5 * gi}, pods.Container{Name: "b", Request: 3 * gi, Limit: 3 * gi},
		pods.Container{Name: "debug", Kind: memoryqos.Ephemeral}))
	if _, err := n.CreateContainer(context.Background(), big, ofPod(big, "a", 5*gi)); err == nil {
		t.Error("a pod that needs more nodes than preferred was begun")
	}
	// After a restart the rest of a pod follows what it has.
	n.restart()
	n.background()
	c := ofPod(pod, "a", 10*gi)
	c.State, c.Resources.Mems = Running, "0-1"
	n.sync([]Pod{pod}, []Container{c})
	n.want("cpuset.mems", n.create(pod, ofPod(pod, "b", 10*gi)).CpusetMems, "0-1")
}

func TestPodsThatEndUnseenAreForgotten(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, "")
	pod := n.pod("gone", memoryqos.Guaranteed)
	c := n.launch(pod, ofPod(pod, "main", gi))
	fresh := n.pod("fresh", memoryqos.Guaranteed)
	n.create(fresh, ofPod(fresh, "main", gi))
	n.rmdir(fresh.CgroupParent) // its cgroup has not been seen yet
	n.reconcile(ctx)
	n.want("allocations", n.allocated(), "2048 0")

	n.rmdir(c.CgroupsPath) // the container died unseen
	n.reconcile(ctx)
	n.want("allocations", n.allocated(), "2048 0")
	if n.containerView(pod, "main").State.Alive() {
		t.Error("a container without a cgroup counts as alive")
	}
	n.rmdir(pod.CgroupParent)
	n.reconcile(ctx)
	n.want("allocations", n.allocated(), "1024 0")
	n.rmdir("kubepods")
	n.mkdir("kubepods")
	n.clock.add(2 * time.Minute)
	n.reconcile(ctx)
	n.want("allocations", n.allocated(), "0 0")
	if got := n.Counters().Forgotten; got != 2 {
		t.Errorf("%d pods were forgotten", got)
	}
	if _, err := n.CreateContainer(ctx, pod, ofPod(pod, "main", gi)); err == nil {
		t.Error("a late create of a forgotten pod was taken")
	}
}

// After a restart of containerd no event tells of the end of what it found: what Synchronize brought was seen then.
func TestWhatSynchronizeBroughtEndsAsSoonAsItsCgroupIsGone(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, "")
	ends, stays := n.pod("ends", memoryqos.Guaranteed), n.pod("stays", memoryqos.Guaranteed)
	late := n.pod("late", memoryqos.Guaranteed)
	first, second := n.launch(ends, ofPod(ends, "main", gi)), n.launch(stays, ofPod(stays, "main", 2*gi))
	third := ofPod(late, "main", 4*gi)
	n.create(late, third) // runc makes its cgroup at its start
	third.State = Created
	n.restart()
	n.sync([]Pod{ends, stays, late}, []Container{first, second, third})
	n.rmdir(ends.CgroupParent)
	n.rmdir(second.CgroupsPath)
	n.reconcile(ctx)
	n.want("allocations", n.allocated(), "6144 0")
	if n.containerView(stays, "main").State.Alive() {
		t.Error("a container without a cgroup counts as alive")
	}
	if !n.containerView(late, "main").State.Alive() {
		t.Error("a container that has not been started is ended")
	}
	if got := n.Counters().Forgotten; got != 1 {
		t.Errorf("%d pods were forgotten, want 1", got)
	}
}

// Of a cgroup that cannot be looked at, here for a link in its way as elsewhere for want of descriptors, nothing is known.
func TestWhatCannotBeLookedAtIsNotGone(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := n.launch(pod, ofPod(pod, "main", gi))
	n.reconcile(ctx)
	journaled := len(n.journal.Entries())

	hidden := n.root + "/hidden"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Rename(n.root+pod.CgroupParent, hidden))
	must(os.Symlink(hidden, n.root+pod.CgroupParent))
	n.reconcile(ctx)
	n.clock.add(2 * time.Hour)
	n.reconcile(ctx)
	n.want("allocations", n.allocated(), "1024 0")
	if got := len(n.journal.Entries()); got != journaled {
		t.Errorf("the journal has %d entries, want %d", got, journaled)
	}
	n.sync([]Pod{pod}, nil) // the runtime lists the pod without its container
	n.want("allocations", n.allocated(), "1024 0")
	must(os.Remove(n.root + pod.CgroupParent))
	must(os.Rename(hidden, n.root+pod.CgroupParent))
	n.sync([]Pod{pod}, []Container{c})
	if _, err := n.CreateContainer(ctx, pod, ofPod(pod, "second", gi)); err != nil {
		t.Errorf("the pod's next container: %v", err)
	}
}

// A container in a virtual machine has no cgroup of its own on the host.
func TestAContainerThatNeverHadACgroupEndsWithItsPod(t *testing.T) {
	ctx := context.Background()
	n := newNode(t, "")
	pod := n.pod("kata", memoryqos.Guaranteed)
	c := ofPod(pod, "main", gi)
	n.create(pod, c)
	c.State = Running
	if err := n.StartContainer(ctx, pod, c); err != nil {
		t.Fatal(err)
	}
	n.clock.add(2 * time.Minute)
	n.reconcile(ctx)
	n.want("the pod's memory.min", text(n.podView(pod).Values.Min), "1052266496")
	n.rmdir(pod.CgroupParent)
	n.reconcile(ctx)
	n.want("allocations", n.allocated(), "0 0")
}

func TestForeignWritesToContainersAreRepaired(t *testing.T) {
	n := newNode(t, "", func(n *node) { n.check = time.Second })
	n.background()
	pod := n.pod("pod", memoryqos.Burstable)
	c := n.launch(pod, ofPod(pod, "main", 1000*mi))
	pinned := n.pod("pinned", memoryqos.Guaranteed)
	p := n.launch(pinned, ofPod(pinned, "main", gi))
	n.writeFile(c.CgroupsPath, "memory.high", "9000000000000")
	n.writeFile(p.CgroupsPath, "cpuset.mems", "0-1")
	n.writeFile("kubepods", "memory.min", "9000000000000")
	eventually(t, "all is repaired", func() bool {
		return n.file(c.CgroupsPath, "memory.high") == bytesOf(900*mi) && n.file(p.CgroupsPath, "cpuset.mems") == "0" &&
			n.file("kubepods", "memory.min") == "1052266496"
	})
	got := n.Counters()
	if got.Repairs.Containers == 0 {
		t.Errorf("counted %+v", got)
	}
	for _, o := range []protect.Overwrite{{Level: "container", File: "memory.high"}, {Level: "container", File: "cpuset.mems"}, {Level: "kubepods", File: "memory.min"}} {
		if got.Overwrites[o] == 0 {
			t.Errorf("the overwritten %s of %s is not among %v", o.File, o.Level, got.Overwrites)
		}
	}
}

func TestAReloadReachesRunningContainers(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Burstable)
	c := n.launch(pod, ofPod(pod, "main", 1000*mi))
	pinned := n.pod("pinned", memoryqos.Guaranteed)
	p := n.launch(pinned, ofPod(pinned, "main", gi))

	n.reconfigure("memoryThrottlingFactor: 0.5")
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(500*mi))
	n.reconfigure("memoryThrottlingFactor: null\nmemoryReservationPolicy: None")
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), "max")
	n.want("memory.min", n.file(p.CgroupsPath, "memory.min"), "0")
	n.want("kubepods' memory.min", n.file("kubepods", "memory.min"), "0")
	n.reconfigure("memoryManagerPolicy: None\nreservedMemory: []")
	n.want("cpuset.mems", n.file(p.CgroupsPath, "cpuset.mems"), "0-1")
	if n.View().Nodes != nil {
		t.Error("there is a node map without a memory manager")
	}
	n.reconfigure("")
	n.want("allocations", n.allocated(), "1024 0")
	n.want("cpuset.mems", n.file(p.CgroupsPath, "cpuset.mems"), "0")
	n.reconfigure("reservedMemory: 0:memory=512Mi;1:memory=512Mi\nkubeReserved: {memory: 924Mi}\ntopologyManagerPolicy: restricted")
	n.want("allocations", n.allocated(), "1024 0")

	// One that does not fit this machine changes nothing.
	bad := n.config
	bad.ReservedMemory = append(bad.ReservedMemory[:0:0], bad.ReservedMemory...)
	bad.ReservedMemory[0].NUMANode = 9
	if err := n.Reconfigure(context.Background(), bad); err == nil {
		t.Fatal("it was taken")
	}
	n.sync([]Pod{pod, pinned}, []Container{c, p})
	if view := n.View(); view.Ready() || n.Counters().BadReloads != 1 {
		t.Errorf("the conditions are %+v", view.Conditions)
	}
	n.reconfigure("")
	if view := n.View(); !view.Ready() {
		t.Errorf("the conditions are %+v", view.Conditions)
	}
}

// slowAPI gives no answer, and remembers how long it had to answer.
type slowAPI struct {
	podAPI
	had chan time.Duration
}

func (s *slowAPI) Ask(ctx context.Context, _ pods.Ref) (*pods.Pod, error) {
	deadline, _ := ctx.Deadline()
	s.had <- time.Until(deadline)
	return nil, podinfo.ErrNotFound
}

func TestASourceHasTheRequestTimeout(t *testing.T) {
	api := &slowAPI{had: make(chan time.Duration, 1)}
	n := newNode(t, "", func(n *node) { n.timeout, n.providers = 5*time.Millisecond, []podinfo.Provider{api} })
	if err := n.RunPodSandbox(context.Background(), n.pod("pod", memoryqos.Burstable)); err != nil {
		t.Fatal(err)
	}
	if had := <-api.had; had > 5*time.Millisecond {
		t.Errorf("a source has %s to answer, want no more than 5ms", had)
	}
}

// Kernels before 6.17 reclaim before the write of a smaller memory.high returns. The write takes here until the test ends it.
func TestALoweredMemoryHighHoldsNoCreate(t *testing.T) {
	slow, ended := make(chan struct{}), make(chan struct{})
	n := newNode(t, "", func(n *node) {
		n.onWrite = func(w cgroupfs.Write) {
			if w.Knob == cgroup.MemoryHigh {
				slow <- struct{}{}
				<-ended
			}
		}
	})
	pod := n.pod("pod", memoryqos.Burstable)
	n.launch(pod, ofPod(pod, "main", 1000*mi))
	var reload sync.WaitGroup
	reload.Go(func() { n.reconfigure("memoryThrottlingFactor: 0.5") })
	<-slow
	other := n.pod("other", memoryqos.Guaranteed)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := n.CreateContainer(ctx, other, ofPod(other, "main", gi)); err != nil {
		t.Error(err)
	}
	n.work(ctx) // as Run does meanwhile
	n.want("the new pod's memory.min", n.file(other.CgroupParent, "memory.min"), "1052266496")
	close(ended)
	reload.Wait()
}

func TestADryRunTouchesNothing(t *testing.T) {
	var mu sync.Mutex
	writes := 0
	n := newNode(t, "profile: Observe\ntopologyManagerPolicy: restricted", func(n *node) {
		n.onWrite = func(cgroupfs.Write) { mu.Lock(); writes++; mu.Unlock() }
	})
	stop := n.background()
	pod := n.pod("pod", memoryqos.Guaranteed)
	if got := n.create(pod, ofPod(pod, "main", gi)); !got.Empty() {
		t.Errorf("it was adjusted: %+v", got)
	}
	n.want("the allocations shown", n.allocated(), "1024 0")
	big := n.pod("big", memoryqos.Guaranteed)
	if got := n.create(big, ofPod(big, "main", 60*gi)); !got.Empty() {
		t.Errorf("it was adjusted: %+v", got)
	}
	if rejections := n.View().Rejections; len(rejections) != 1 || rejections[0].Refused {
		t.Errorf("shown: %+v", rejections)
	}
	if !n.containerView(big, "main").State.Alive() {
		t.Error("a container that a dry run would refuse does not run")
	}
	burst := n.pod("burst", memoryqos.Burstable)
	c := ofPod(burst, "main", 1000*mi)
	n.create(burst, c)
	c = n.run(burst, c, Adjustment{})
	if got := n.update(burst, c, Resources{MemoryLimit: limit(int64(gi))}); got != nil {
		t.Errorf("the update was answered with %+v", got)
	}
	c.Resources.MemoryLimit = limit(int64(gi))
	if err := n.PostUpdateContainer(context.Background(), burst, c); err != nil {
		t.Error(err)
	}
	if err := n.SetHigh(context.Background(), c.ID, 2*gi); err != nil || len(n.HighContainers()) > 0 {
		t.Errorf("the guard has containers, or %v", err)
	}
	missed := n.pod("missed", memoryqos.Guaranteed)
	m := ofPod(missed, "main", gi)
	m.State = Running
	if updates := n.sync([]Pod{pod, big, burst, missed}, []Container{c, m}); len(updates) > 0 {
		t.Errorf("updates: %+v", updates)
	}
	n.reconcile(context.Background())
	stop()
	if mu.Lock(); writes > 0 {
		t.Errorf("%d cgroup files were written", writes)
	}
	mu.Unlock()
	if !n.View().Ready() {
		t.Errorf("not ready: %+v", n.View().Conditions)
	}
	// Its end brings what is there to what was decided.
	n.reconfigure("topologyManagerPolicy: restricted")
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), "966365184")
	n.restart()
	n.want("the checkpoint", strings.Split(n.allocated(), " ")[0], "2048")
}

func TestConditionsFollowTheConnection(t *testing.T) {
	n := newNode(t, "")
	message := func(name string) string {
		for _, condition := range n.View().Conditions {
			if condition.Name == name {
				return condition.Message
			}
		}
		return "none"
	}
	n.want(ledger.ConditionConnected, message(ledger.ConditionConnected), "")
	n.want(ledger.ConditionSynchronized, message(ledger.ConditionSynchronized), "not synchronized with a runtime yet")
	n.sync(nil, nil)
	n.want(ledger.ConditionSynchronized, message(ledger.ConditionSynchronized), "")
	n.Disconnected(fmt.Errorf("socket closed"))
	n.want(ledger.ConditionConnected, message(ledger.ConditionConnected), "socket closed")
	n.want(ledger.ConditionSynchronized, message(ledger.ConditionSynchronized), "not connected to a runtime")
	n.Connected(n.runtime, nil)
	n.Disconnected(nil)
	n.want(ledger.ConditionConnected, message(ledger.ConditionConnected), "the runtime has closed the connection")
}

func TestASlowDiskIsToldAndAFailingOneIsNot(t *testing.T) {
	n := newNode(t, "")
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	pod := n.pod("pod", memoryqos.Guaranteed)
	_, err := n.CreateContainer(ctx, pod, ofPod(pod, "main", gi))
	if err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Fatalf("the error is %v", err)
	}
	n.want("kubepods' memory.min", strings.Trim(n.file("kubepods", "memory.min"), "0"), "")
	n.want("the retry has the same nodes", n.create(pod, ofPod(pod, "main", gi)).CpusetMems, "0")
	n.want("allocations", n.allocated(), "1024 0")

	file := filepath.Join(n.state, checkpoint.FileName)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(file, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	other := n.pod("other", memoryqos.Guaranteed)
	n.want("nodes without a disk", n.create(other, ofPod(other, "main", gi)).CpusetMems, "0")
	if n.View().Ready() {
		t.Error("it is ready while nothing can be written")
	}
	if !strings.Contains(n.log.String(), "the state file cannot be written: containers start") {
		t.Errorf("the log does not say so:\n%s", n.log)
	}
}

func TestExplainShowsTheArithmetic(t *testing.T) {
	n := newNode(t, "topologyManagerPolicy: single-numa-node")
	pods := map[string]struct {
		class       memoryqos.QOSClass
		limit       uint64
		annotations map[string]string
		want        []string
	}{
		"burst":  {memoryqos.Burstable, 1000 * mi, nil, []string{"memory.high = request 0 + (limit 1000Mi - request) * 0.9 = 900Mi, in whole pages of 4Ki", "no memory.min and no memory.low"}},
		"guar":   {memoryqos.Guaranteed, gi, nil, []string{"memory.high is not set: the container asks for its limit", "memory.min = 1004Mi"}},
		"off":    {memoryqos.Burstable, gi, map[string]string{"memory-high.memory-manager.nri.io": "off"}, []string{"memory-high is off"}},
		"fixed":  {memoryqos.Burstable, gi, map[string]string{"memory-high.memory-manager.nri.io": "512Mi"}, []string{"memory.high = 512Mi, from the pod's annotation"}},
		"factor": {memoryqos.Burstable, 1000 * mi, map[string]string{"throttling-factor.memory-manager.nri.io": "0.8"}, []string{" * 0.8 = 800Mi"}},
		"small":  {memoryqos.Burstable, 64 * mi, nil, []string{"memory.high is not set: the request is an estimate and may equal the limit"}},
		"none":   {memoryqos.BestEffort, 0, nil, []string{"(node allocatable 31.1Gi - request)"}},
	}
	for name, test := range pods {
		pod := n.pod(name, test.class)
		pod.Annotations = test.annotations
		n.launch(pod, ofPod(pod, "main", test.limit))
		explained := n.explain("default/"+name, "")
		if len(explained) != 1 {
			t.Fatalf("%s: %v", name, explained)
		}
		all := strings.Join(explained[0].Memory, "\n")
		for _, want := range test.want {
			if !strings.Contains(all, want) {
				t.Errorf("%s: %q is not in\n%s", name, want, all)
			}
		}
		if (explained[0].Placement != nil) != (test.class == memoryqos.Guaranteed) {
			t.Errorf("%s: placement %v", name, explained[0].Placement)
		}
	}
	big := n.pod("big", memoryqos.Guaranteed)
	if _, err := n.CreateContainer(context.Background(), big, ofPod(big, "main", 20*gi)); err == nil {
		t.Fatal("it was created")
	}
	if explained := n.explain("big", "main"); len(explained) != 1 || explained[0].Rejection == nil {
		t.Errorf("the refused one: %+v", explained)
	}
	if _, err := n.Explain("nobody", ""); err == nil {
		t.Error("a pod that is not there was explained")
	}
	if _, err := n.Explain("guar", "nobody"); err == nil {
		t.Error("a container that is not there was explained")
	}
}

func TestAForeignWriteToAContainerIsRepairedAtOnce(t *testing.T) {
	n := newNode(t, "", func(n *node) { n.check, n.watches = time.Hour, true })
	n.background()
	pod := n.pod("pod", memoryqos.Burstable)
	c := ofPod(pod, "main", 1000*mi)
	c = n.run(pod, c, n.create(pod, c))
	n.writeFile(c.CgroupsPath, "memory.high", "9000000000000")
	eventually(t, "it is repaired", func() bool { return n.file(c.CgroupsPath, "memory.high") == bytesOf(900*mi) })
}

func TestAResizeKeepsTheKnownRequestUntilItsNewsComes(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "", func(n *node) { n.providers = []podinfo.Provider{api} })
	n.background()
	api.listening(t)
	pod := n.pod("pod", memoryqos.Burstable)
	api.say(spec(pod, memoryqos.Burstable, pods.Container{Name: "main", Request: 500 * mi, Limit: 1000 * mi}))
	c := n.launch(pod, ofPod(pod, "main", 1000*mi))
	n.want("memory.low", n.file(c.CgroupsPath, "memory.low"), bytesOf(500*mi))
	if got := n.update(pod, c, Resources{MemoryLimit: limit(int64(2000 * mi))}); got == nil || len(got.Unified) != 1 || got.Unified["memory.high"] != bytesOf(1850*mi) {
		t.Errorf("a new limit was answered with %+v", got)
	}
	if got := n.update(pod, c, Resources{MemoryLimit: limit(int64(400 * mi))}); got == nil || got.Unified["memory.low"] != bytesOf(400*mi) {
		t.Errorf("a limit below the request was answered with %+v", got)
	}
	api.say(spec(pod, memoryqos.Burstable, pods.Container{Name: "main", Request: 300 * mi, Limit: 400 * mi}))
	eventually(t, "the news has come", func() bool { return n.containerView(pod, "main").Request == 300*mi })
}

// The profile NUMA writes no file of Memory QoS, whatever a pod's annotations and the keys say: a kubelet's own values stay.
func TestProfileNUMALeavesMemoryQoSToTheKubelet(t *testing.T) {
	for name, test := range map[string]struct {
		keys, annotation, value string
	}{
		"no annotation":     {},
		"reservation":       {"", "reservation", "min"},
		"throttling-factor": {"", "throttling-factor", "0.5"},
		"memory-high":       {"", "memory-high", "600Mi"},
		"cache-room":        {"", "cache-room", "0.1"},
		"keys":              {"memoryReservationPolicy: HardReservation\nmemoryThrottlingFactor: 0.5\nstallGuard: true\ncacheRoom: 0.1\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "profile: NUMA\n"+test.keys)
			other, pod := n.pod("other", memoryqos.Guaranteed), n.pod("pod", memoryqos.Burstable)
			n.mkdir("/kubepods/burstable")
			kubelets := []string{"/kubepods", other.CgroupParent, pod.CgroupParent}
			for _, dir := range kubelets {
				n.mkdir(dir)
				n.writeFile(dir, "memory.min", bytesOf(8*gi))
			}
			n.launch(other, ofPod(other, "main", 8*gi))
			if test.annotation != "" {
				pod.Annotations = map[string]string{test.annotation + ".memory-manager.noderesource.dev": test.value}
			}
			c := ofPod(pod, "main", 1000*mi)
			score := int64(990)
			c.Resources.OOMScoreAdj = &score
			c = n.launch(pod, c)
			n.work(context.Background())
			n.reconcile(context.Background())
			for _, dir := range kubelets {
				n.want("memory.min of "+dir, n.file(dir, "memory.min"), bytesOf(8*gi))
			}
			for _, file := range []string{"memory.min", "memory.low", "memory.high"} {
				n.want(file+" of the container", n.file(c.CgroupsPath, file), "")
			}
			n.want("cpuset.mems of the other container", n.containerView(other, "main").Nodes.String(), "0")
			if explained := n.explain("pod", "main"); !strings.Contains(fmt.Sprint(explained), "the profile leaves Memory QoS to the kubelet") {
				t.Errorf("explain says %+v", explained)
			}
		})
	}
}

// A dry run that begins, by a reload or a restart, leaves nothing of ours in the files: a memory.high without the stall guard is a wall.
func TestADryRunTakesBackWhatWasWritten(t *testing.T) {
	for name, begin := range map[string]func(n *node){
		"reload":  func(n *node) { n.reconfigure("profile: Observe") },
		"restart": func(n *node) { n.config = parseConfig(n, "profile: Observe"); n.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "memoryReservationPolicy: HardReservation")
			pod, pinned := n.pod("pod", memoryqos.Burstable), n.pod("pinned", memoryqos.Guaranteed)
			n.mkdir(pinned.CgroupParent)
			n.writeFile(pinned.CgroupParent, "memory.min", bytesOf(300*mi)) // the kubelet's
			n.writeFile(pinned.CgroupParent, "cpuset.mems.effective", "0-1")
			c, d := n.launch(pod, ofPod(pod, "main", 1000*mi)), n.launch(pinned, ofPod(pinned, "main", gi))
			n.work(context.Background())
			files := []struct{ dir, file, written, back string }{
				{c.CgroupsPath, "memory.high", bytesOf(900 * mi), "max"},
				{d.CgroupsPath, "memory.min", "1052266496", "0"},
				{d.CgroupsPath, "cpuset.mems", "0", "0-1"},
				{pinned.CgroupParent, "memory.min", "1052266496", bytesOf(300 * mi)},
				{"/kubepods", "memory.min", "1052266496", "0"},
			}
			for _, f := range files {
				n.want("before, "+f.file+" of "+f.dir, n.file(f.dir, f.file), f.written)
			}
			begin(n)
			if len(n.restoreDue) == 0 {
				t.Error("the files are left until the next periodic check")
			}
			n.reconcile(context.Background())
			for _, f := range files {
				n.want("in the dry run, "+f.file+" of "+f.dir, n.file(f.dir, f.file), f.back)
			}
			if left := n.journal.Entries(); len(left) > 0 {
				t.Errorf("the journal has %+v", left)
			}
			n.reconfigure("memoryReservationPolicy: HardReservation")
			n.sync([]Pod{pod, pinned}, []Container{c, d})
			n.work(context.Background())
			for _, f := range files {
				n.want("after it, "+f.file+" of "+f.dir, n.file(f.dir, f.file), f.written)
			}
		})
	}
}

// The daemon cannot raise its own memory.high, and must never stall at it, whatever rules for annotations say.
func TestTheDaemonDoesNotThrottleItself(t *testing.T) {
	n := newNode(t, "annotationRules: [{namespaces: [\"*\"]}]\ncacheRoom: 0.1\n")
	itself, other := n.pod("itself", memoryqos.Burstable), n.pod("other", memoryqos.Burstable)
	c, d := ofPod(itself, "main", 128*mi), ofPod(other, "main", 128*mi)
	c.State, d.State = Running, Running
	n.mkdir(c.CgroupsPath)
	n.mkdir(d.CgroupsPath)
	n.writeFile(c.CgroupsPath, "cgroup.procs", fmt.Sprintf("0\n1\n%d\n", os.Getpid()))
	n.writeFile(d.CgroupsPath, "cgroup.procs", "0\n1\n")
	for range 2 { // a runtime may connect again
		n.sync([]Pod{itself, other}, []Container{c, d})
		n.work(context.Background())
		n.want("memory.high of the daemon", n.file(c.CgroupsPath, "memory.high"), "")
		if high := n.containerView(other, "main").High; high == nil {
			t.Error("another container has no memory.high")
		}
	}
	if explained := n.explain("itself", "main"); !strings.Contains(fmt.Sprint(explained), "the daemon does not throttle itself") {
		t.Errorf("explain says %+v", explained)
	}
}

// The container of the daemon may be found later, after a lack of descriptors.
func TestTheDaemonFindsItsContainerLater(t *testing.T) {
	n := newNode(t, "annotationRules: [{namespaces: [\"*\"]}]\n")
	itself := n.pod("itself", memoryqos.Burstable)
	c := ofPod(itself, "main", 128*mi)
	c.State = Running
	n.mkdir(c.CgroupsPath)
	n.writeFile(c.CgroupsPath, "cgroup.procs", fmt.Sprintf("%d\n", os.Getpid()))
	n.onOpen = noDescriptorFor("cgroup.procs")
	n.sync([]Pod{itself}, []Container{c})
	n.reconcile(context.Background())
	if n.containerView(itself, "main").High == nil {
		t.Fatal("the daemon's container has no memory.high before it is found")
	}
	n.onOpen = nil
	n.reconcile(context.Background())
	n.want("memory.high of the daemon", n.file(c.CgroupsPath, "memory.high"), "max")
}

// A container that ends before it is known whether the daemon is in it is forgotten: a daemon outside of containers would keep them all.
func TestContainersThatMayBeTheDaemonsAreForgotten(t *testing.T) {
	n := newNode(t, "")
	p := n.pod("other", memoryqos.Burstable)
	c := ofPod(p, "main", 128*mi)
	c.State = Running
	n.mkdir(c.CgroupsPath)
	n.onOpen = noDescriptorFor("cgroup.procs")
	n.sync([]Pod{p}, []Container{c})
	n.onOpen = nil
	n.rmdir(c.CgroupsPath)
	n.must(n.RemoveContainer(context.Background(), p, c))
	n.reconcile(context.Background())
	if len(n.unread) > 0 {
		t.Errorf("kept: %v", n.unread)
	}
}

// The protector's loop ends in a dry run while it has taken over the write of a memory.high that restoreFiles has left to it.
func TestALateWriteThatEndsWithTheLoopIsRestored(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := newNode(t, oneNode)
	n.sync(nil, nil)
	pod := n.pod("pod", memoryqos.Burstable)
	c, score := ofPod(pod, "main", 4000*mi), int64(950)
	c.Resources.OOMScoreAdj = &score // of a request, which gets memory.low
	c = n.launch(pod, c)
	n.work(ctx)
	var loop protectorLoop
	loop.keep(ctx, n.Agent)
	defer loop.stop()

	begun, stopped := make(chan struct{}), make(chan struct{})
	n.onOpen = func(cgroup, file string) error {
		switch path.Base(cgroup) + " " + file {
		case c.ID + " memory.low":
			<-begun
		case c.ID + " memory.high":
			close(begun)
			<-stopped
		}
		return nil
	}
	n.reconfigure("profile: Observe")
	<-n.restoreDue
	if err := n.restoreFiles(ctx); err != nil {
		t.Fatal(err)
	}
	n.onOpen = nil
	stop := loop.cancel
	loop.cancel = func() { stop(); close(stopped) }
	loop.keep(ctx, n.Agent)
	select {
	case <-n.restoreDue:
		if err := n.restoreFiles(ctx); err != nil {
			t.Fatal(err)
		}
	default:
	}
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), "max")
}

// Values that were computed before a dry run do not become desired in it.
func TestValuesOfBeforeADryRunAreNotDesired(t *testing.T) {
	n := newNode(t, oneNode)
	n.sync(nil, nil)
	n.reconfigure("profile: Observe")
	n.ancestors.desiring.Lock() // as desire has it between its two steps
	restored := make(chan struct{})
	go func() {
		defer close(restored)
		_ = n.restoreFiles(context.Background())
	}()
	select {
	case <-restored:
		t.Error("files are restored while older values become desired")
	case <-time.After(50 * time.Millisecond):
	}
	n.ancestors.desiring.Unlock()
	<-restored
}
