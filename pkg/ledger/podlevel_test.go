package ledger

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestAPodWithResourcesOfItsOwn of 6Gi, of which its container main has 2Gi, looks at that one after the last event.
func TestAPodWithResourcesOfItsOwn(t *testing.T) {
	const gi = claimGi
	const whole = "podLevelResourceManagers: true\ntopologyManagerScope: pod\ntopologyManagerPolicy: "
	const withPod = ", with its pod (pod-level resources)"
	web := claimPod("web", "")
	spec := func(pod Pod, budget uint64, containers ...pods.Container) pods.Answer {
		return pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{
			Ref: pod.Ref(), Class: memoryqos.Guaranteed, PodRequest: &budget, PodLimit: &budget, Containers: containers,
		}}
	}
	main, side := pods.Container{Name: "main", Request: 2 * gi, Limit: 2 * gi, Guaranteed: true}, pods.Container{Name: "side"}
	create := func(pod Pod, budget uint64, containers ...pods.Container) CreateContainer {
		e := claimed(pod, "main", 2*gi)
		e.PodInfo = spec(pod, budget, containers...)
		return e
	}
	nearDevice := create(web, 6*gi, main, side)
	nearDevice.Devices = map[string][]topologymanager.Device{"side": {topologymanager.NewDevice("gpu", "a", "test", nodeset.Of(1))}}
	required := annotated(web, "numa", "required")
	byKubelet := claimed(web, "main", 2*gi)
	byKubelet.Container.Resources.Mems = "1"
	found := func(mems string) Synchronize {
		c := claimed(web, "main", 2*gi).Container
		c.State = Running
		return Synchronize{Pods: []Pod{web}, Containers: []Container{c}, PodInfos: map[string]pods.Answer{"web": spec(web, 6*gi, main, side)},
			Found: Found{Files: map[string]Files{c.ID: {Mems: &mems}}}}
	}
	later := PodFacts{UID: "web", PodInfo: spec(web, 6*gi, main, side)}
	for name, test := range map[string]struct {
		yaml   string
		events []Event
		want   string
		pod    string // the pod's own allocation
		says   string
	}{
		"placed": {whole + "restricted", []Event{create(web, 6*gi, main, side)},
			"0: pinned under restricted" + withPod, "0: 6Gi of memory", ""},
		"near the device of another container": {whole + "restricted", []Event{nearDevice},
			"1: pinned under restricted" + withPod, "1: 6Gi of memory", ""},
		"no container of its spec": {whole + "restricted", []Event{create(web, 6*gi, side)},
			": not pinned: the pod's resources are its own, and the container is none of its spec", "", ""},
		"an ephemeral container": {whole + "restricted", []Event{create(web, 6*gi, pods.Container{Name: "main", Kind: memoryqos.Ephemeral}, side)},
			": not pinned: the pod's resources are its own, and the container is none of its spec", "", ""},
		"required, and fewer nodes would do": {whole + "best-effort", []Event{claimed(claimPod("large", ""), "main", 20*gi), create(required, 6*gi, main, side)},
			"NotPreferred: the pod's containers together, policy best-effort, scope pod: the pod's annotation numa is required: it could only have nodes 0-1, which are " +
				"more than it needs: node 1 has room, but only a container that gets all of nodes 0-1 may join the containers there:\n" +
				"node 0 (group 0-1): 0 of 15.5Gi free, 6Gi needed\nnode 1 (group 0-1): 11Gi of 15.5Gi free, 6Gi needed", "", ""},
		"no room for the pod": {whole + "single-numa-node", []Event{create(web, 20*gi, main, side)}, `TopologyAffinityError: the pod's containers together, ` +
			`policy single-numa-node, scope pod: only nodes 0-1 together have room, not one by itself:
node 0: 15.5Gi of 15.5Gi free, 20Gi needed
node 1: 15.5Gi of 15.5Gi free, 20Gi needed`, "", ""},
		"known later": {whole + "restricted", []Event{claimed(web, "main", 2*gi), later},
			"0: pinned under restricted", "0: 6Gi of memory", ""},
		"known later, and nothing is left to share": {whole + "restricted", []Event{claimed(web, "main", 2*gi), PodFacts{UID: "web", PodInfo: spec(web, 2*gi, main, side)}},
			"0: pinned under restricted", "", "a pod with pod-level resources cannot be allocated as a whole: the pod's containers together, " +
				"policy restricted, scope pod: the containers' own requests are all of the pod's memory, which leaves nothing to the containers without one"},
		"known later, and pinned by the kubelet": {whole + "restricted", []Event{byKubelet, later}, "1: pinned by the kubelet", "", ""},
		"known later, and not managed": {"", []Event{claimed(web, "main", 2*gi), later},
			": not pinned: the pod's resources are its own, not its containers' (pod-level resources)", "", ""},
		"known later, without a Memory Manager": {whole + "restricted\nmemoryManagerPolicy: None", []Event{claimed(web, "main", 2*gi), later},
			": not pinned: memoryManagerPolicy is None", "", ""},
		"placed with another container of it, after it found no room": {whole + "single-numa-node\nonUnsatisfiable: Unpinned", []Event{
			claimed(claimPod("one", ""), "main", 12*gi), claimed(claimPod("two", ""), "main", 12*gi), create(web, 6*gi, main, side),
			StartContainer{Pod: web, Container: claimed(web, "main", 2*gi).Container}, EndPod{Pod: claimPod("two", ""), Gone: true}, claimed(web, "side", 6*gi)},
			"1: pinned under single-numa-node" + withPod, "1: 6Gi of memory", ""},
		"found": {whole + "restricted", []Event{found("1")},
			"1: found pinned", "1: 6Gi of memory", "container found pinned: its memory is allocated where it is"},
		"found on nodes that are not there": {whole + "restricted", []Event{found("5")},
			`5: found pinned, not allocated: adopt the pod: adopt pod web: nodes "5" are not all of this machine's 0-1`, "",
			`a container's memory cannot be allocated on the nodes that it has: adopt the pod: adopt pod web: nodes "5" are not all of this machine's 0-1`},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.yaml)
			effects := l.after(test.events...)
			if got := placed(l, effects, "web", "main"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			pod := ""
			for _, b := range l.View().Pods[len(l.living)-1].Blocks {
				pod = fmt.Sprint(b.Nodes, ": ", memorymanager.Request{{Type: b.Type, Bytes: b.Size}})
			}
			if pod != test.pod {
				t.Errorf("the pod has %q, want %q", pod, test.pod)
			}
			effects.Notes = slices.DeleteFunc(effects.Notes, func(n Note) bool {
				return n.Text == "synchronized with the runtime" || n.Text == "memory request corrected"
			})
			if says := said(effects, ""); says != test.says {
				t.Errorf("notes %q, want %q", says, test.says)
			}
		})
	}
}

// A pod that is allocated as a whole, and whose nodes were taken while a configuration had it unpinned, is placed elsewhere with all its containers.
func TestAPodWithResourcesOfItsOwnIsPlacedBackWhole(t *testing.T) {
	const gi = claimGi
	const whole = "podLevelResourceManagers: true\ntopologyManagerScope: pod\ntopologyManagerPolicy: restricted\n"
	const taken = "1: pinned under restricted, with its pod (pod-level resources)"
	for name, test := range map[string]struct {
		later uint64
		want  string
	}{
		"there is room": {2 * gi, "0: pinned where it was before"},
		"there is none": {8 * gi, taken},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, whole)
			web, budget := claimPod("web", ""), uint64(12*gi)
			info := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: web.Ref(), Class: memoryqos.Guaranteed, PodRequest: &budget, PodLimit: &budget,
				Containers: []pods.Container{{Name: "main", Request: 2 * gi, Limit: 2 * gi, Guaranteed: true}, {Name: "side", Request: gi, Limit: gi, Guaranteed: true}}}}
			var events []Event
			for container, limit := range map[string]uint64{"main": 2 * gi, "side": gi} {
				e := claimed(web, container, limit)
				e.PodInfo = info
				running := e.Container
				running.State = Running
				events = append(events, e, StartContainer{Pod: web, Container: running})
			}
			effects := l.after(append(events,
				Reconfigure{Config: resolve(t, l, whole+`annotationRules: [{namespaces: [default], allowedAnnotations: [numa], defaults: {numa: none}}]`)},
				claimed(annotated(claimPod("later", ""), "numa", "preferred"), "app", test.later),
				Reconfigure{Config: resolve(t, l, whole)})...)
			for _, container := range []string{"main", "side"} {
				if got := placed(l, effects, "web", container); got != test.want {
					t.Errorf("%s: got  %s\nwant %s", container, got, test.want)
				}
			}
			if got := placed(l, effects, "later", "app"); got[:2] != "0:" {
				t.Errorf("later: %s", got)
			}
			if l.manager.Overcommitted() {
				t.Error("a node has more allocated than it has")
			}
		})
	}
}

// A pod whose containers were allocated one by one is allocated where they are when the scope becomes the pod, although one of them was
// on nodes that another pod has now.
func TestAPodIsAllocatedAsAWholeWhereItsContainersAre(t *testing.T) {
	const gi = claimGi
	const own, whole = "podLevelResourceManagers: true\ntopologyManagerPolicy: restricted\n", "podLevelResourceManagers: true\ntopologyManagerPolicy: restricted\ntopologyManagerScope: pod\n"
	web, budget := claimPod("web", ""), 12*gi
	info := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: web.Ref(), Class: memoryqos.Guaranteed, PodRequest: &budget, PodLimit: &budget,
		Containers: []pods.Container{{Name: "main", Request: 2 * gi, Limit: 2 * gi, Guaranteed: true}, {Name: "side"}}}}
	main := claimed(web, "main", 2*gi)
	main.PodInfo = info
	l := newLedger(t, whole)
	runs(t, l, main, claimed(web, "side", budget))
	l.after(Reconfigure{Config: resolve(t, l, "memoryManagerPolicy: None")}, Reconfigure{Config: resolve(t, l, own)},
		claimed(annotated(claimPod("later", ""), "numa", "preferred"), "app", 8*gi), Reconfigure{Config: resolve(t, l, whole)})
	for _, c := range l.pods["web"].containers {
		if has := nodesOf(l.blocks(c)); c.Nodes != nodeset.Of(0) || has != c.Nodes {
			t.Errorf("%s has nodes %s, %s, and is allocated on %s", c.Name, c.Nodes, c.Pinning, has)
		}
	}
}

// A configuration that unpins a pod takes all that the pod has, also what is kept for a container that does not run.
func TestAPodIsUnpinnedWithContainersThatDoNotRun(t *testing.T) {
	const gi = claimGi
	const whole = "podLevelResourceManagers: true\ntopologyManagerScope: pod\ntopologyManagerPolicy: restricted\n"
	const unpins = `annotationRules: [{namespaces: [default], allowedAnnotations: [numa], defaults: {numa: none}}]`
	web, budget := claimPod("web", ""), uint64(12*gi)
	info := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: web.Ref(), Class: memoryqos.Guaranteed, PodRequest: &budget, PodLimit: &budget,
		Containers: []pods.Container{{Name: "main", Request: 2 * gi, Limit: 2 * gi, Guaranteed: true}, {Name: "side", Request: gi, Limit: gi, Guaranteed: true}}}}
	main, side := claimed(web, "main", 2*gi), claimed(web, "side", gi)
	main.Container.State, side.Container.State = Running, Running
	wholeMain, wholeSide := main, side
	wholeMain.PodInfo, wholeSide.PodInfo = info, info
	end := EndContainer{ID: side.Container.ID}
	for name, test := range map[string]struct {
		yaml   string
		before []Event
	}{
		"as a whole, and one has not run":  {whole, []Event{wholeMain}},
		"as a whole, and one has ended":    {whole, []Event{wholeMain, wholeSide, end}},
		"as a whole, and all have ended":   {whole, []Event{wholeSide, end}},
		"by containers, and one has ended": {"", []Event{main, side, end}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.yaml)
			l.after(test.before...)
			stored := l.manager.State()
			restarted := newLedger(t, test.yaml+unpins)
			if _, err := restarted.Restore(stored); err != nil || len(stored.Entries) != 2 {
				t.Fatalf("%+v, %v", stored.Entries, err)
			}
			l.after(Reconfigure{Config: resolve(t, l, test.yaml+unpins)})
			restarted.after(Synchronize{Pods: []Pod{web}, PodInfos: map[string]pods.Answer{"web": test.before[0].(CreateContainer).PodInfo}})
			for when, l := range map[string]*Ledger{"a reload": l, "a start": restarted} {
				if state := l.manager.State(); len(state.Entries)+len(state.Pods) > 0 {
					t.Errorf("after %s: %+v of the pod %+v", when, state.Entries, state.Pods)
				}
			}
		})
	}
}

// A start of the plugin before a pod API answers leaves a pod that is allocated as a whole where its memory is, also if some of its containers
// do not run or start meanwhile.
func TestAPodWithResourcesOfItsOwnStaysAtAStartBeforeItsSpecIsKnown(t *testing.T) {
	const gi = claimGi
	const whole = "podLevelResourceManagers: true\ntopologyManagerScope: pod\ntopologyManagerPolicy: restricted\n"
	web, budget := claimPod("web", ""), uint64(12*gi)
	info := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: web.Ref(), Class: memoryqos.Guaranteed, PodRequest: &budget, PodLimit: &budget,
		Containers: []pods.Container{{Name: "job", Request: gi, Limit: gi, Guaranteed: true}, {Name: "main", Request: 2 * gi, Limit: 2 * gi, Guaranteed: true}, {Name: "side"}}}}
	limits := map[string]uint64{"job": gi, "main": 2 * gi, "side": budget}
	for name, running := range map[string][]string{"all run": {"job", "main", "side"}, "one has ended": {"main", "side"}} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, whole)
			l.after(claimed(claimPod("large", ""), "main", 10*gi)) // which is gone later
			mems := "1"
			start := Synchronize{Pods: []Pod{web}, Found: Found{PodLimits: map[string]uint64{web.ID: budget}, Files: map[string]Files{}, Seen: map[string]bool{}}}
			for container, limit := range limits {
				e := claimed(web, container, limit)
				e.PodInfo = info
				l.after(e)
				if e.Container.State = Running; slices.Contains(running, container) {
					start.Containers = append(start.Containers, e.Container)
					start.Found.Files[e.Container.ID], start.Found.Seen[e.Container.CgroupsPath[1:]] = Files{Mems: &mems}, true
				}
			}
			restarted := newLedger(t, whole)
			if _, err := restarted.Restore(l.manager.State()); err != nil {
				t.Fatal(err)
			}
			kept := func(l *Ledger) (all []string) {
				for _, e := range l.manager.Allocations("web").Entries {
					all = append(all, fmt.Sprint(e))
				}
				return append(all, fmt.Sprint(l.manager.PodBlocks("web")))
			}
			want := kept(l)
			for _, n := range restarted.after(start).Notes {
				if n.Level == Warn {
					t.Errorf("%+v", n)
				}
			}
			if got := kept(restarted); !slices.Equal(got, want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if !restarted.living[0].Shared {
				t.Fatal("its containers are not found to share its limit")
			}
			restarted.after(claimed(web, "job", gi), PodFacts{UID: "web", PodInfo: info})
			for container := range limits {
				if got := placed(restarted, Effects{}, "web", container); got[:2] != "1:" {
					t.Errorf("%s: %s", container, got)
				}
			}
			if got := kept(restarted); !slices.Equal(got, want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// In a pod with memory beside its containers', the spec bounds what counts of a container's limit. The runtime may report a resize first: it is
// allocated once the spec has it.
func TestAResizeThatTheSpecShowsLater(t *testing.T) {
	const gi = claimGi
	const byContainers = "podLevelResourceManagers: true\ntopologyManagerPolicy: "
	web := claimPod("web", "")
	answer := func(pod pods.Pod, main uint64) pods.Answer {
		pod.Ref, pod.Class = web.Ref(), memoryqos.Guaranteed
		pod.Containers = []pods.Container{{Name: "main", Request: main, Limit: main, Guaranteed: true}, {Name: "side"}}
		return pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pod}
	}
	podLevel := func(main uint64) pods.Answer {
		budget := 24 * gi
		return answer(pods.Pod{PodRequest: &budget, PodLimit: &budget}, main)
	}
	otherClass := podLevel(20 * gi)
	otherClass.Pod.PriorityClass = "high"
	mapped := func(main uint64) pods.Answer {
		return answer(pods.Pod{Claimed: gi, Mapped: map[string]uint64{"x": gi}}, main)
	}
	create := claimed(web, "main", 2*gi)
	with := func(e CreateContainer, info pods.Answer) CreateContainer {
		e.PodInfo = info
		return e
	}
	started := create.Container
	started.State = Running
	start := StartContainer{Pod: web, Container: started}
	update := func(bytes uint64, info pods.Answer) UpdateContainer {
		limit := int64(bytes)
		return UpdateContainer{Pod: web, Container: started, To: Resources{MemoryLimit: &limit}, Facts: Facts{PodInfo: info}}
	}
	later := func(info pods.Answer) PodFacts { return PodFacts{UID: "web", PodInfo: info} }
	for name, test := range map[string]struct {
		yaml   string
		events []Event
		want   string
		has    uint64
	}{
		"of a pod with pod-level resources": {byContainers + "restricted", []Event{with(create, podLevel(2*gi)), start, update(4*gi, podLevel(2*gi)), later(podLevel(4 * gi))},
			"0: pinned under restricted", 4 * gi},
		"which has it first": {byContainers + "restricted", []Event{with(create, podLevel(2*gi)), start, update(4*gi, podLevel(4*gi)), later(podLevel(4 * gi))},
			"0: pinned under restricted", 4 * gi},
		"to less": {byContainers + "restricted", []Event{with(create, podLevel(2*gi)), start, update(gi, podLevel(2*gi)), later(podLevel(gi))},
			"0: pinned under restricted", gi},
		"without room": {byContainers + "single-numa-node", []Event{with(create, podLevel(2*gi)), start, update(20*gi, podLevel(2*gi)), later(podLevel(20 * gi))},
			"0-1: pinned under single-numa-node, short of 4.5Gi of memory", 15*gi + gi/2},
		"without room, and the spec changes otherwise": {byContainers + "single-numa-node",
			[]Event{with(create, podLevel(2*gi)), start, update(20*gi, podLevel(2*gi)), later(podLevel(20 * gi)), later(otherClass)},
			"0-1: pinned under single-numa-node, short of 4.5Gi of memory", 15*gi + gi/2},
		"without room, which has it first": {byContainers + "single-numa-node",
			[]Event{with(create, podLevel(2*gi)), start, later(podLevel(20 * gi)), update(20*gi, podLevel(20*gi))},
			"ResizeInfeasible: policy single-numa-node, scope container: node 0 has no room for more, and the policy allows no second one:\n" +
				"node 0: 13.5Gi of 15.5Gi free, 18Gi more needed\nnode 1: 15.5Gi of 15.5Gi free, 18Gi more needed", 2 * gi},
		"of a pod with a mapped claim": {"", []Event{with(create, mapped(2*gi)), start, update(4*gi, mapped(2*gi)), later(mapped(4 * gi))},
			"0: pinned under best-effort", 4 * gi},
		"which is known after the creation": {"", []Event{create, start, later(mapped(gi))}, "0: pinned under best-effort", gi},
		"which is known after a resize that has no room": {"topologyManagerPolicy: single-numa-node",
			[]Event{claimed(web, "main", 15*gi+gi/2), start, update(17*gi, pods.Answer{}), later(mapped(15*gi + gi/2))}, "0: pinned under single-numa-node", 15*gi + gi/2},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.yaml)
			effects := l.after(test.events...)
			if got := placed(l, effects, "web", "main"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if has := l.manager.Blocks("web", "main")[0].Size; has != test.has {
				t.Errorf("%d are allocated, want %d", has, test.has)
			}
		})
	}
}

// What a container lacks since a resize is said once, and not again whenever the spec of its pod changes.
func TestAPendingResizeIsSaidOnce(t *testing.T) {
	const gi = claimGi
	web, budget := claimPod("web", ""), 24*gi
	answer := func(main uint64, class string) pods.Answer {
		return pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: web.Ref(), Class: memoryqos.Guaranteed, PodRequest: &budget, PodLimit: &budget, PriorityClass: class,
			Containers: []pods.Container{{Name: "main", Request: main, Limit: main, Guaranteed: true}, {Name: "side"}}}}
	}
	create := claimed(web, "main", 2*gi)
	create.PodInfo = answer(2*gi, "")
	l := newLedger(t, "podLevelResourceManagers: true\ntopologyManagerPolicy: single-numa-node")
	runs(t, l, create)
	limit := int64(budget)
	l.after(UpdateContainer{Pod: web, Container: create.Container, To: Resources{MemoryLimit: &limit}})
	for _, step := range []struct {
		info pods.Answer
		want string
	}{
		{answer(20*gi, ""), "a container was resized and found no room: it is allocated less than its limit"},
		{answer(20*gi, "high"), ""},
		{answer(21*gi, "high"), "a container was resized and found no room: it is allocated less than its limit"},
	} {
		effects := l.after(PodFacts{UID: "web", PodInfo: step.info})
		effects.Notes = slices.DeleteFunc(effects.Notes, func(n Note) bool { return n.Level != Warn })
		if got := said(effects, ""); got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
}
