package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

const claimGi = uint64(1) << 30

// on is a part of a claim: memory on a node.
func on(node int, bytes uint64) claims.Part {
	return claims.Part{Request: "mem", Node: node, Amounts: memorymanager.Request{{Type: memorymanager.Memory, Bytes: bytes}}}
}

func claimOf(name string, pods []string, parts ...claims.Part) claims.Claim {
	return claims.Claim{UID: "uid-" + name, Namespace: "default", Name: name, Pods: pods, Parts: parts}
}

// claimed creates a container with parts of claims.
func claimed(pod Pod, name string, limit uint64, refs ...claims.Ref) CreateContainer {
	bytes := int64(limit)
	return CreateContainer{Pod: pod, Container: Container{
		ID: pod.Name + "-" + name, PodID: pod.ID, Name: name, CgroupsPath: pod.CgroupParent + "/" + pod.Name + "-" + name,
		Resources: Resources{MemoryLimit: &bytes}, Claims: refs,
	}}
}

func claimPod(name, class string) Pod {
	return Pod{ID: "sandbox-" + name, UID: name, Namespace: "default", Name: name, CgroupParent: "/kubepods/" + class + "pod" + name}
}

func TestAClaimIsAllocatedOnItsNodesOnce(t *testing.T) {
	now := time.Unix(1, 0)
	l := newLedger(t, "dra: {enabled: true}")
	half := l.state.Claims.Capacities(l.claimSupply())[0].Capacity
	rest, _, _ := l.manager.Capacity(0, memorymanager.Memory)
	for _, step := range []struct {
		name    string
		event   Event
		err     string
		claimed [2]uint64 // bytes on nodes 0 and 1 afterwards
		changed bool
	}{
		{"a claim", PrepareClaim{claimOf("a", []string{"p"}, on(0, claimGi))}, "", [2]uint64{claimGi, 0}, true},
		{"the same again", PrepareClaim{claimOf("a", []string{"p"}, on(0, claimGi))}, "", [2]uint64{claimGi, 0}, false},
		{"for another pod", PrepareClaim{claimOf("a", []string{"q"}, on(0, claimGi))}, "", [2]uint64{claimGi, 0}, true},
		{"on two nodes", PrepareClaim{claimOf("b", nil, on(0, claimGi), on(1, 2*claimGi))}, "", [2]uint64{2 * claimGi, 2 * claimGi}, true},
		{"allocated anew elsewhere", PrepareClaim{claimOf("a", nil, on(1, claimGi))}, "", [2]uint64{claimGi, 3 * claimGi}, true},
		{"more than there is", PrepareClaim{claimOf("c", nil, on(0, 1<<60))}, "claim default/c: takes 1Ei of memory on NUMA node 0, where claims have 14.5Gi left", [2]uint64{claimGi, 3 * claimGi}, false},
		{"a sum beyond 64 bits", PrepareClaim{claimOf("c", nil, on(0, 1<<63), on(0, 1<<63))}, "claim default/c: takes 8Ei of memory on NUMA node 0, where claims have 14.5Gi left", [2]uint64{claimGi, 3 * claimGi}, false},
		{"no such node", PrepareClaim{claimOf("c", nil, on(7, claimGi))}, "claim default/c: NUMA node 7 has no memory for claims", [2]uint64{claimGi, 3 * claimGi}, false},
		{"nothing", PrepareClaim{claimOf("c", nil)}, "claim default/c: has no UID or no NUMA node", [2]uint64{claimGi, 3 * claimGi}, false},
		{"released", UnprepareClaim{"uid-a"}, "", [2]uint64{claimGi, 2 * claimGi}, true},
		{"released again", UnprepareClaim{"uid-a"}, "", [2]uint64{claimGi, 2 * claimGi}, false},
	} {
		before := l.View()
		effects := l.Step(now, step.event)
		changed := !reflect.DeepEqual(l.View(), before)
		if got := fmt.Sprint(effects.Err); got != step.err && (effects.Err != nil || step.err != "") {
			t.Errorf("%s: got %v, want %s", step.name, effects.Err, step.err)
		}
		if prepare, ok := step.event.(PrepareClaim); ok && step.err == "" {
			if diff := cmp.Diff(&prepare.Claim, l.state.Claims[prepare.Claim.UID]); diff != "" {
				t.Errorf("%s: %s", step.name, diff)
			}
		}
		sums := l.state.Claims.Claimed("")
		got := [2]uint64{sums[claims.NodeType{Node: 0, Type: memorymanager.Memory}], sums[claims.NodeType{Node: 1, Type: memorymanager.Memory}]}
		if got != step.claimed || changed != step.changed {
			t.Errorf("%s: claims have %v, changed %v; want %v, %v", step.name, got, changed, step.claimed, step.changed)
		}
		if left, _, _ := l.manager.Capacity(0, memorymanager.Memory); left != rest {
			t.Errorf("%s: pods without claims may have %d on node 0, want %d", step.name, left, rest)
		}
	}
	// Beyond the share, which has been lowered since the scheduler looked: what pods have is not touched, what they may have is.
	if effects := l.Step(now, PrepareClaim{claimOf("big", nil, on(0, half))}); effects.Err != nil {
		t.Fatal(effects.Err)
	}
	if left, _, _ := l.manager.Capacity(0, memorymanager.Memory); left != rest-claimGi {
		t.Errorf("pods may have %d beside claims larger than the share, want %d", left, rest-claimGi)
	}
	l.Step(now, UnprepareClaim{"uid-big"})
	if left, _, _ := l.manager.Capacity(0, memorymanager.Memory); left != rest {
		t.Errorf("pods may have %d again, want %d", left, rest)
	}
}

func TestAContainerHasTheNodesAndAmountsOfItsClaims(t *testing.T) {
	now := time.Unix(1, 0)
	web, other := claimPod("web", ""), claimPod("other", "")
	burstable := claimPod("burst", "burstable/")
	a := claimOf("a", []string{"web", "burst"}, on(1, 2*claimGi))
	two := claimOf("two", []string{"web"}, on(0, claimGi), on(1, claimGi))
	refA, ref0, ref1 := claims.Ref{UID: "uid-a", Part: 0}, claims.Ref{UID: "uid-two", Part: 0}, claims.Ref{UID: "uid-two", Part: 1}
	for name, test := range map[string]struct {
		before []Event
		create CreateContainer
		want   string // mems min low high, or the error
	}{
		"one claim":                     {nil, claimed(web, "main", 2*claimGi, refA), "1 2104532992 - -"},
		"a limit above the claim":       {nil, claimed(web, "main", 4*claimGi, refA), "1 2147483648 - 4080218112"},
		"Burstable: the claim protects": {nil, claimed(burstable, "main", 4*claimGi, refA), "1 - 2147483648 4080218112"},
		"a claim over two nodes":        {nil, claimed(web, "main", 2*claimGi, ref0, ref1), "0-1 2104532992 - -"},
		"one request of a claim":        {nil, claimed(web, "main", claimGi, ref1), "1 1052266496 - -"},
		"several claims":                {nil, claimed(web, "main", 3*claimGi, refA, ref0), "0-1 3156799488 - -"},
		"the other requests of a claim": {[]Event{claimed(web, "side", claimGi, ref0)}, claimed(web, "main", claimGi, ref1), "1 1052266496 - -"},
		"shared by containers of a pod": {[]Event{claimed(web, "side", claimGi, refA)}, claimed(web, "main", claimGi, refA), "1 1052266496 - -"},
		"after the one that shared it":  {[]Event{claimed(web, "init", 2*claimGi, refA), EndContainer{ID: "web-init"}}, claimed(web, "main", 2*claimGi, refA), "1 2104532992 - -"},
		"not prepared":                  {nil, claimed(web, "main", claimGi, claims.Ref{UID: "uid-z", Part: 0}), "its resource claim uid-z is not prepared on this node"},
		"of another pod":                {nil, claimed(other, "main", claimGi, refA), "the resource claim default/a is not reserved for its pod"},
		"no such device":                {nil, claimed(web, "main", claimGi, claims.Ref{UID: "uid-a", Part: 3}), "the resource claim default/a has no device 3"},
		"in use by another pod":         {[]Event{claimed(burstable, "main", claimGi, refA)}, claimed(web, "main", claimGi, refA), "the resource claim default/a is in use by pod default/burst: containers of one pod can share a claim, pods cannot"},
		"after the other pod has ended": {[]Event{claimed(burstable, "main", claimGi, refA), EndPod{Pod: burstable, Gone: true}}, claimed(web, "main", 2*claimGi, refA), "1 2104532992 - -"},
		"the kubelet has set the cpuset": {nil, func() CreateContainer {
			c := claimed(web, "main", 2*claimGi, refA)
			c.Container.Resources.Mems = "0"
			return c
		}(), " 2104532992 - -"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "topologyManagerPolicy: single-numa-node\ndra: {enabled: true}")
			for _, event := range append([]Event{PrepareClaim{a}, PrepareClaim{two}}, test.before...) {
				if effects := l.Step(now, event); effects.Err != nil {
					t.Fatal(effects.Err)
				}
			}
			effects := l.Step(now, test.create)
			file := func(name string) string {
				if text, set := effects.Answer.Unified[name]; set {
					return text
				}
				return "-"
			}
			got := strings.Join([]string{effects.Answer.CpusetMems, file("memory.min"), file("memory.low"), file("memory.high")}, " ")
			if effects.Err != nil {
				got = effects.Err.Error()
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if entries := l.manager.State().Entries; len(entries) > 0 {
				t.Errorf("a container with claims is allocated by the Memory Manager: %v", entries)
			}
		})
	}
}

// A container of a claim runs on when the record of it is lost, and is brought to the claim once that is prepared again.
func TestAClaimThatIsPreparedAgain(t *testing.T) {
	now := time.Unix(1, 0)
	l := newLedger(t, "dra: {enabled: true}")
	web := claimPod("web", "")
	c := claimed(web, "main", claimGi, claims.Ref{UID: "uid-a", Part: 0}).Container
	c.State = Running
	found := "1"
	l.Step(now, Synchronize{Pods: []Pod{web}, Containers: []Container{c}, Found: Found{Files: map[string]Files{c.ID: {Mems: &found}}}})
	if got := l.containers[c.ID]; got.Nodes.String() != "1" || got.Pinning != "not pinned: its resource claim uid-a is not prepared on this node" {
		t.Errorf("nodes %s, %s", got.Nodes, got.Pinning)
	}
	if shown := l.View().Pods[0].Containers[0]; !slices.Equal(shown.Claims, []string{"uid-a"}) || shown.Claimed != nil || shown.Blocks != nil {
		t.Errorf("the view has claims %v, %v, %v", shown.Claims, shown.Claimed, shown.Blocks)
	}
	effects := l.Step(now, PrepareClaim{claimOf("a", []string{"web"}, on(0, claimGi))})
	if got := l.containers[c.ID]; got.Nodes.String() != "0" || !slices.Equal(effects.Sync, []string{c.ID}) {
		t.Errorf("nodes %s, to bring %v", got.Nodes, effects.Sync)
	}
}

// As long as a container that has a claim lives, the claim is its pod's as it was allocated, whatever the API server has forgotten: after
// a forced deletion containers run for their grace period.
func TestAClaimStaysWithItsContainers(t *testing.T) {
	const inUse = "the resource claim default/a is in use by pod default/one"
	now, one, two := time.Unix(1, 0), claimPod("one", ""), claimPod("two", "")
	first := claimed(one, "main", 12*claimGi, claims.Ref{UID: "uid-a"})
	second := claimed(two, "main", 12*claimGi, claims.Ref{UID: "uid-a"})
	prepared := claimOf("a", []string{"one"}, on(0, 12*claimGi))
	for name, ended := range map[string]Event{
		"until it ends":         EndContainer{ID: first.Container.ID},
		"until its pod ends":    EndPod{Pod: one, Gone: true},
		"until it is abandoned": AbandonContainer{ID: first.Container.ID},
		"until it is not found": Synchronize{},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "dra: {enabled: true}")
			l.Step(now, PrepareClaim{prepared})
			runs(t, l)
			if err := l.Step(now, first).Err; err != nil {
				t.Fatal(err)
			}
			attempts := []struct {
				event Event
				want  string // the error as long as the container lives
			}{
				{PrepareClaim{claimOf("a", []string{"two"}, on(0, 12*claimGi))}, inUse},
				{PrepareClaim{claimOf("a", []string{"one"}, on(1, claimGi))}, inUse},
				{PrepareClaim{claimOf("a", []string{"one", "two"}, on(0, 12*claimGi))}, ""},
				{second, inUse + ": containers of one pod can share a claim, pods cannot"},
				{PrepareClaim{prepared}, ""},
				{second, inUse + ": containers of one pod can share a claim, pods cannot"},
				{UnprepareClaim{"uid-a"}, inUse},
				{PrepareClaim{claimOf("b", []string{"two"}, on(0, 12*claimGi))}, "claim default/b: takes 12Gi of memory on NUMA node 0, where claims have 3.5Gi left"},
			}
			for _, attempt := range attempts {
				got := ""
				if err := l.Step(now, attempt.event).Err; err != nil {
					got = err.Error()
				}
				if got != attempt.want {
					t.Errorf("%T: got %q, want %q", attempt.event, got, attempt.want)
				}
				if c := l.containers[first.Container.ID]; c.Nodes.String() != "0" || c.pod.derived.runs[0].request.Request != 12*claimGi {
					t.Errorf("%T: the container has nodes %s and a request of %d", attempt.event, c.Nodes, c.pod.derived.runs[0].request.Request)
				}
			}
			for _, event := range []Event{ended, attempts[0].event, second, EndPod{Pod: two, Gone: true}, attempts[6].event, attempts[7].event} {
				if err := l.Step(now, event).Err; err != nil {
					t.Errorf("%T after its end: %v", event, err)
				}
			}
		})
	}
}

// Memory is plugged in and out while claims and pods have some: the share follows, and what is published is never more than there is.
func TestTheShareFollowsTheMachine(t *testing.T) {
	const yaml = "dra: {enabled: true}"
	now := time.Unix(1, 0)
	l := newLedger(t, yaml)
	for _, event := range []Event{
		PrepareClaim{claimOf("a", []string{"web"}, on(0, claimGi), on(1, 5*claimGi))},
		claimed(claimPod("web", ""), "main", 6*claimGi, claims.Ref{UID: "uid-a", Part: 0}, claims.Ref{UID: "uid-a", Part: 1}),
		claimed(claimPod("full", ""), "main", 7*claimGi), // of the rest on node 0
		claimed(claimPod("next", ""), "main", 2*claimGi), // of the rest on node 1
	} {
		if effects := l.Step(now, event); effects.Err != nil {
			t.Fatal(effects.Err)
		}
	}
	for _, step := range []struct {
		memory   string
		capacity uint64 // published of node 1, whose reservation is 512Mi
		fits     uint64 // the largest claim beside the 5Gi
		warned   string
	}{
		{"16Gi", 7936 << 20, 15872<<20 - 7*claimGi, ""},
		{"32Gi", 16128 << 20, 32256<<20 - 7*claimGi, ""},
		{"8704Mi", 5 * claimGi, claimGi, ""},              // half of 8Gi is less than claims have
		{"5632Mi", 3 * claimGi, 0, "claimed 5Gi has 3Gi"}, // pods have 2Gi of the 5Gi that claims have
		{"4608Mi", 2 * claimGi, 0, "claimed 5Gi has 2Gi"},
		{"16Gi", 7936 << 20, 15872<<20 - 7*claimGi, ""},
	} {
		_, resolved := resolvedOn(t, strings.Replace(twoNodes, "1, memory: 16Gi", "1, memory: "+step.memory, 1), yaml)
		effects := l.Step(now, Reconfigure{Config: resolved})
		if effects.Err != nil {
			t.Fatalf("%s: %v", step.memory, effects.Err)
		}
		if got := l.state.Claims.Capacities(l.claimSupply())[1]; got.Capacity != step.capacity || got.Claimed != 5*claimGi {
			t.Errorf("%s: %d for claims, want %d", step.memory, got.Capacity, step.capacity)
		}
		warned := ""
		for _, note := range effects.Notes {
			if note.Text == "resource claims have more allocated on a node than it has for them" {
				warned = fmt.Sprint("claimed ", note.Fields["claimed"], " has ", note.Fields["has"])
			}
		}
		if warned != step.warned {
			t.Errorf("%s: warned %q, want %q", step.memory, warned, step.warned)
		}
		if effects := l.Step(now, PrepareClaim{claimOf("b", nil, on(1, step.fits+1))}); effects.Err == nil {
			t.Errorf("%s: a claim of %d was prepared", step.memory, step.fits+1)
		}
		if effects := l.Step(now, PrepareClaim{claimOf("b", nil, on(1, step.fits))}); effects.Err != nil {
			t.Errorf("%s: %v", step.memory, effects.Err)
		}
		l.Step(now, UnprepareClaim{"uid-b"})
		if c := l.containers["web-main"]; c.Nodes.String() != "0-1" {
			t.Errorf("%s: the claim's container has nodes %s", step.memory, c.Nodes)
		}
		if _, err := New(now, Options{Config: resolved, Claims: l.Claims()}); err != nil {
			t.Errorf("%s: a start with these claims: %v", step.memory, err)
		}
	}
}

// TestAMappedClaimCountsOnce: the kubelet adds a mapped claim to its pod's request. The container is protected with its claim and its own
// request, and the pod has both once.
func TestAMappedClaimCountsOnce(t *testing.T) {
	const mi = uint64(1) << 20
	pod := claimPod("burst", "burstable/")
	refA, ref0, ref1 := claims.Ref{UID: "uid-a"}, claims.Ref{UID: "uid-two", Part: 0}, claims.Ref{UID: "uid-two", Part: 1}
	spec := func(name string, request, limit uint64) pods.Container {
		return pods.Container{Name: name, Kind: memoryqos.App, Request: request, Limit: limit}
	}
	for name, test := range map[string]struct {
		info    pods.Pod
		creates []CreateContainer
		want    string // request of each container, whether its limit is above its claims, and memory.low of the pod
	}{
		"no claim is mapped": {pods.Pod{Containers: []pods.Container{spec("main", 2*claimGi, 2*claimGi)}},
			[]CreateContainer{claimed(pod, "main", 2*claimGi, refA)}, "2048Mi pod 2048Mi"},
		"beside its own request": {pods.Pod{Claimed: 2 * claimGi, Mapped: map[string]uint64{"a": 2 * claimGi}, Containers: []pods.Container{spec("main", 64*mi, 128*mi)}},
			[]CreateContainer{claimed(pod, "main", 2*claimGi+128*mi, refA)}, "2112Mi pod 2112Mi"},
		"no limit and no request": {pods.Pod{Claimed: 2 * claimGi, Mapped: map[string]uint64{"a": 2 * claimGi}, Containers: []pods.Container{spec("main", 0, 0)}},
			[]CreateContainer{claimed(pod, "main", 0, refA)}, "2048Mi above pod 2048Mi"},
		"not created yet": {pods.Pod{Claimed: 2 * claimGi, Mapped: map[string]uint64{"a": 2 * claimGi}, Containers: []pods.Container{spec("main", 64*mi, 128*mi), spec("side", 32*mi, 32*mi)}},
			[]CreateContainer{claimed(pod, "side", 32*mi)}, "32Mi pod 2144Mi"},
		"shared by two containers": {pods.Pod{Claimed: 2 * claimGi, Mapped: map[string]uint64{"a": 2 * claimGi}, Containers: []pods.Container{spec("main", 64*mi, 64*mi), spec("side", 32*mi, 32*mi)}},
			[]CreateContainer{claimed(pod, "main", 2*claimGi+64*mi, refA), claimed(pod, "side", 2*claimGi+32*mi, refA)}, "64Mi 32Mi pod 2144Mi"},
		"two claims": {pods.Pod{Claimed: 4 * claimGi, Mapped: map[string]uint64{"a": 2 * claimGi, "two": 2 * claimGi}, Containers: []pods.Container{spec("main", 64*mi, 64*mi)}},
			[]CreateContainer{claimed(pod, "main", 4*claimGi+64*mi, refA, ref0, ref1)}, "4160Mi pod 4160Mi"},
		"two parts of a claim": {pods.Pod{Claimed: 2 * claimGi, Mapped: map[string]uint64{"two": 2 * claimGi}, Containers: []pods.Container{spec("main", 64*mi, 64*mi), spec("side", 0, 0)}},
			[]CreateContainer{claimed(pod, "main", 2*claimGi+64*mi, ref0), claimed(pod, "side", 2*claimGi, ref1)}, "1088Mi 1024Mi above pod 2112Mi"},
		"with a device of another driver": {pods.Pod{Claimed: 6 * claimGi, Mapped: map[string]uint64{"a": 6 * claimGi}, Containers: []pods.Container{spec("main", 64*mi, 64*mi)}},
			[]CreateContainer{claimed(pod, "main", 6*claimGi+64*mi, refA)}, "2112Mi pod 6208Mi"},
		"another container's claim is mapped": {pods.Pod{Claimed: 3 * claimGi, Mapped: map[string]uint64{"gpu": 3 * claimGi}, Containers: []pods.Container{spec("main", 2*claimGi, 2*claimGi)}},
			[]CreateContainer{claimed(pod, "main", 2*claimGi, refA)}, "2048Mi pod 5120Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "memoryReservationPolicy: TieredReservation\ndra: {enabled: true}")
			test.info.Ref, test.info.Class = pod.Ref(), memoryqos.Burstable
			events := []Event{
				PrepareClaim{claimOf("a", []string{"burst"}, on(1, 2*claimGi))},
				PrepareClaim{claimOf("two", []string{"burst"}, on(0, claimGi), on(1, claimGi))},
				RunPod{Pod: pod}, PodFacts{UID: "burst", PodInfo: pods.Answer{Source: memoryqos.SourceKubelet, Pod: &test.info}},
			}
			for _, create := range test.creates {
				events = append(events, create)
			}
			for _, event := range events {
				if effects := l.Step(time.Unix(1, 0), event); effects.Err != nil {
					t.Fatal(effects.Err)
				}
			}
			view := l.View().Pods[0]
			var got []string
			for _, c := range view.Containers {
				got = append(got, fmt.Sprintf("%dMi", c.Request/mi))
				if c.AboveClaim() != "" {
					got = append(got, "above")
				}
			}
			got = append(got, fmt.Sprintf("pod %dMi", *view.Values.Low/mi))
			if got := strings.Join(got, " "); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestWithoutDRANothingHeedsClaims(t *testing.T) {
	l := newLedger(t, "")
	effects := l.Step(time.Unix(1, 0), claimed(claimPod("web", ""), "main", claimGi, claims.Ref{UID: "uid-a", Part: 0}))
	if effects.Err != nil || effects.Answer.CpusetMems != "0" {
		t.Errorf("%v, %v", effects.Answer, effects.Err)
	}
	refused := l.Step(time.Unix(1, 0), Reconfigure{Config: resolve(t, l, "memoryManagerPolicy: None")})
	if prepared := l.Step(time.Unix(1, 0), PrepareClaim{claimOf("a", nil, on(0, claimGi))}); refused.Err != nil ||
		fmt.Sprint(prepared.Err) != "claim default/a: NUMA node 0 has no memory for claims" {
		t.Errorf("%v, %v", refused.Err, prepared.Err)
	}
	if view := l.View(); view.Claimable != nil || view.Claims != nil {
		t.Errorf("%v, %v", view.Claimable, view.Claims)
	}
}

// Whatever comes in whatever order, a restart of the plugin included: what is allocated for claims is what is prepared and not
// released, pods never have what claims may have, and what the container of a pod has of claims stays its until it ends.
func TestAnySequenceLeavesTheClaimsThatArePrepared(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 0))
		now := time.Unix(1, 0)
		l := newLedger(t, "dra: {enabled: true}")
		want := map[string]claims.Claim{}
		var kept []claims.Claim      // by their specifications
		users := map[string]string{} // the claims that are used, by pod
		for i := range 300 {
			name, other := fmt.Sprint("c", r.IntN(12)), fmt.Sprint("pc", r.IntN(12))
			var event Event
			switch r.IntN(5) {
			case 0, 1:
				event = PrepareClaim{claimOf(name, []string{"p" + name, other}, on(r.IntN(2), claimGi<<r.IntN(3)), on(r.IntN(2), claimGi))}
			case 2:
				event = UnprepareClaim{"uid-" + name}
			case 3:
				pod := claimPod([]string{"p" + name, other}[r.IntN(2)], []string{"", "burstable/"}[r.IntN(2)])
				event = claimed(pod, "main", claimGi<<r.IntN(3), []claims.Ref{{UID: "uid-" + name, Part: r.IntN(2)}}[:r.IntN(2)]...)
			default:
				if r.IntN(4) > 0 {
					event = EndPod{Pod: claimPod("p"+name, ""), Gone: true}
					break
				}
				clear(users)
				state := l.manager.State()
				restarted, err := New(now, Options{Config: l.state.Resolved, Claims: kept})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := restarted.Restore(state); err != nil {
					t.Fatal(err)
				}
				l = restarted
				continue
			}
			if i%10 == 0 {
				l = reopened(t, l)
			}
			effects := l.Step(now, event)
			kept = l.Claims()
			switch e := event.(type) {
			case PrepareClaim:
				if effects.Err == nil {
					want[e.Claim.UID] = e.Claim
				}
			case UnprepareClaim:
				if effects.Err == nil {
					delete(want, e.UID)
				}
			case CreateContainer: // in the place of the one before
				delete(users, e.Pod.UID)
				if refs := e.Container.Claims; effects.Err == nil && len(refs) > 0 {
					users[e.Pod.UID] = refs[0].UID
				}
			case EndPod:
				delete(users, e.Pod.UID)
			}
			owners := map[string]string{}
			for pod, claim := range users {
				if before, used := owners[claim]; used || !slices.Contains(want[claim].Pods, pod) {
					t.Fatalf("seed %d, %+v: pod %s has a container with claim %v, and so has pod %q", seed, event, pod, want[claim], before)
				}
				owners[claim] = pod
			}
			for i, node := range l.manager.Nodes() {
				for _, table := range node.Memory {
					claimed := l.state.Claims.Claimed("")[claims.NodeType{Node: i, Type: table.Type}]
					whole, _, _ := l.manager.Capacity(i, table.Type)
					for _, reserved := range l.reserved {
						if reserved.Node == i {
							whole += reserved.Amounts.Of(table.Type)
						}
					}
					if table.Reserved+claimed > whole {
						t.Fatalf("seed %d: pods have %d and claims %d of %d on node %d", seed, table.Reserved, claimed, whole, i)
					}
				}
			}
		}
		if diff := cmp.Diff(slices.SortedFunc(maps.Values(want), func(a, b claims.Claim) int { return strings.Compare(a.UID, b.UID) }), l.Claims()); diff != "" && len(want) > 0 {
			t.Errorf("seed %d (-prepared +allocated):\n%s", seed, diff)
		}
	}
}

// manyRefs are more parts of claims than a container may name.
func manyRefs(number int) (refs []claims.Ref) {
	for i := range number {
		refs = append(refs, claims.Ref{UID: fmt.Sprintf("none-%d", i)})
	}
	return refs
}

// A container that names more parts of claims than it may is refused, or left where it is where it runs already. Of its names nothing
// is kept, and nothing is looked at again.
func TestAContainerThatNamesTooManyClaims(t *testing.T) {
	const want = "it names more than 64 devices of resource claims, by its CDI devices or by variables NUMA_MEMORY_CLAIM_…: want at most 64"
	now, pod := time.Unix(1, 0), claimPod("hostile", "burstable/")
	for name, test := range map[string]struct {
		config  string
		running bool
		refs    []claims.Ref
		want    string // the error, or how it is pinned
	}{
		"as many as it may":            {"dra: {enabled: true}", false, manyRefs(64), "its resource claim none-0 is not prepared on this node"},
		"one more":                     {"dra: {enabled: true}", false, manyRefs(65), want},
		"many":                         {"dra: {enabled: true}", false, manyRefs(40_000), want},
		"running":                      {"dra: {enabled: true}", true, manyRefs(40_000), "not pinned: " + want},
		"where claims are not enabled": {"", false, manyRefs(40_000), "not pinned: only Guaranteed pods are"},
		"a dry run refuses nothing":    {"dra: {enabled: true}\nprofile: Observe", false, manyRefs(65), want},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.config)
			runs(t, l)
			create := claimed(pod, "a", 0, test.refs...)
			var event Event = create
			if test.running {
				create.Container.State = Running
				event = Synchronize{Pods: []Pod{pod}, Containers: []Container{create.Container}}
			}
			got := ""
			if err := l.Step(now, event).Err; err != nil {
				got = err.Error()
			}
			c := l.View().Pods[0].Containers[0]
			if got == "" {
				got = c.Pinning
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if len(c.Claims) > claims.MaxRefs {
				t.Errorf("the view has %d claims", len(c.Claims))
			}
		})
	}
}

// What a view costs does not grow with the names of a container that was refused.
func TestARefusedContainerCostsNothing(t *testing.T) {
	cost := func(number int) float64 {
		l := newLedger(t, "dra: {enabled: true}")
		pod := claimPod("hostile", "burstable/")
		runs(t, l, claimed(pod, "other", claimGi))
		l.Step(time.Unix(1, 0), claimed(pod, "a", 0, manyRefs(number)...))
		limit := uint64(0)
		return testing.AllocsPerRun(20, func() {
			limit++
			l.Step(time.Unix(1, 0), UpdatePod{Pod: pod, Limit: limit})
			l.View()
		})
	}
	if many, one := cost(40_000), cost(1); many > 2*one { // a map grows when it likes
		t.Errorf("a view of a container that names 40,000 claims takes %v allocations, of one that names one %v", many, one)
	}
}

// A container that shares a part of a claim has none of it by itself, and all of it once the others have ended.
func TestAPartOfAClaimHasUsers(t *testing.T) {
	l, web, names := newLedger(t, "dra: {enabled: true}"), claimPod("web", ""), []string{"a", "b", "c", "d"}
	l.after(PrepareClaim{claimOf("a", []string{"web"}, on(0, 2*claimGi))})
	for _, name := range names {
		l.after(claimed(web, name, claimGi, claims.Ref{UID: "uid-a"}))
	}
	for i, name := range names {
		for _, c := range l.View().Pods[0].Containers {
			if alone := c.Claimed.Of(memorymanager.Memory) == 2*claimGi; alone != (i == len(names)-1) {
				t.Errorf("%d containers have left: %s has %v", i, c.Name, c.Claimed)
			}
		}
		l.after(EndContainer{ID: "web-" + name}, EndContainer{ID: "web-" + name}) // once more changes nothing
	}
	if len(l.used) > 0 {
		t.Errorf("%v are left", l.used)
	}
}

// A container that was created without an answer while another pod has its claim gets it when that pod has ended.
func TestAContainerThatRunsGetsItsClaimLater(t *testing.T) {
	l, first, second := newLedger(t, "dra: {enabled: true}"), claimPod("first", ""), claimPod("second", "")
	runs(t, l)
	l.after(PrepareClaim{claimOf("a", []string{"first", "second"}, on(1, claimGi))}, claimed(first, "main", claimGi, claims.Ref{UID: "uid-a"}))
	waits := claimed(second, "main", claimGi, claims.Ref{UID: "uid-a"})
	waits.Container.State = Running
	both := Synchronize{Pods: []Pod{first, second}, Containers: []Container{claimed(first, "main", claimGi, claims.Ref{UID: "uid-a"}).Container, waits.Container}}
	both.Containers[0].State = Running
	const inUse = ": not pinned: the resource claim default/a is in use by pod default/first: containers of one pod can share a claim, pods cannot"
	if got := placed(l, l.after(both), "second", "main"); got != inUse {
		t.Errorf("while the first has the claim: %s", got)
	}
	if got := placed(l, l.after(EndContainer{ID: "first-main"}, EndPod{Pod: first, Gone: true}), "second", "main"); got != "1: pinned by resource claim default/a" {
		t.Errorf("afterwards: %s", got)
	}
}

// A dry run counts a container that would be refused once, however many pods end until it starts, and places it when its claim is prepared.
func TestADryRunCountsARefusedContainerOnce(t *testing.T) {
	l, other := newLedger(t, "dra: {enabled: true}\nprofile: Observe"), claimPod("other", "")
	l.after(claimed(claimPod("web", ""), "main", claimGi, claims.Ref{UID: "uid-a"}), RunPod{Pod: other}, EndPod{Pod: other, Gone: true})
	if count, shown := l.state.Counters.Unpinned[ClaimNotPrepared.String()], l.View().Rejections; count != 1 || len(shown) != 1 {
		t.Errorf("%d are counted, shown: %+v", count, shown)
	}
	effects := l.after(PrepareClaim{claimOf("a", []string{"web"}, on(1, claimGi))})
	if got := placed(l, effects, "web", "main"); got != "1: pinned by resource claim default/a" {
		t.Errorf("with its claim: %s", got)
	}
}

// A container that waits for a claim in use does not get it between two runs of a container that has it: that one would be refused from then on.
func TestAContainerKeepsItsClaimOverARestart(t *testing.T) {
	ref := claims.Ref{UID: "uid-a"}
	first, second := claimPod("first", ""), claimPod("second", "")
	main, again, waits := claimed(first, "main", claimGi, ref), claimed(first, "main", claimGi, ref), claimed(second, "main", claimGi, ref)
	again.Container.ID = "first-again"
	main.Container.State, waits.Container.State = Running, Running
	listed := again.Container
	listed.State = Running
	both := func(c Container) Synchronize {
		return Synchronize{Pods: []Pod{first, second}, Containers: []Container{c, waits.Container}}
	}
	main.Container.Claims = []claims.Ref{ref}
	for name, events := range map[string][]Event{
		"whose end was reported":     {EndContainer{ID: "first-main"}, again},
		"whose end was not reported": {again},
		"whose end was seen":         {Presence{Gone: []CgroupRef{{ID: "first-main"}}}, again},
		"whose creation failed":      {EndContainer{ID: "first-main"}, again, AbandonContainer{ID: "first-again"}, again},
		"beside the old one":         {both(listed)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "dra: {enabled: true}")
			runs(t, l)
			l.after(PrepareClaim{claimOf("a", []string{"first", "second"}, on(1, claimGi))}, claimed(first, "main", claimGi, ref), both(main.Container))
			l.containers["first-main"].Seen = true
			if got := placed(l, l.after(events...), "first", "main"); got != "1: pinned by resource claim default/a" {
				t.Errorf("the restarted container: %s", got)
			}
		})
	}
}

// What containers have of claims costs a view, and a create or the end of another container of their pod, no more for claims of many
// devices. It is not looked up again: the claims are out of the ledger's sight meanwhile.
func TestClaimsAreJudgedOnce(t *testing.T) {
	now, many := time.Unix(1, 0), claimPod("many", "burstable/")
	cost := func(devices int) float64 {
		l, reserved := newLedger(t, "dra: {enabled: true}"), []string{"many"}
		for i := range 50 {
			reserved = append(reserved, fmt.Sprint("other", i))
		}
		var refs []claims.Ref
		for node, name := range []string{"a", "b"} {
			var parts []claims.Part
			for i := range devices {
				parts = append(parts, on(node, 2<<20))
				refs = append(refs, claims.Ref{UID: "uid-" + name, Part: i})
			}
			l.Step(now, PrepareClaim{claimOf(name, reserved, parts...)})
		}
		runs(t, l)
		for i := range 30 {
			if err := l.Step(now, claimed(many, fmt.Sprint("c", i), claimGi, refs...)).Err; err != nil {
				t.Fatal(err)
			}
		}
		before := l.View().Pods[0]
		l.state.Claims = nil
		limit := uint64(0)
		allocations := testing.AllocsPerRun(10, func() {
			limit++
			l.Step(now, UpdatePod{Pod: many, Limit: limit})
			l.Step(now, claimed(many, "plain", claimGi))
			l.Step(now, EndContainer{ID: "many-plain"})
			l.View()
		})
		if diff := cmp.Diff(before.Containers, l.View().Pods[0].Containers); diff != "" {
			t.Error(diff)
		}
		return allocations
	}
	if many, one := cost(32), cost(1); many > 2*one {
		t.Errorf("containers that name claims of 32 devices cost %v allocations, of one device %v", many, one)
	}
}

func TestTheViewShowsClaims(t *testing.T) {
	now := time.Unix(1, 0)
	l := newLedger(t, "dra: {enabled: true}")
	two := claimOf("two", []string{"web"}, on(0, claimGi), on(1, claimGi), on(1, claimGi))
	l.Step(now, PrepareClaim{two})
	refs := []claims.Ref{{UID: "uid-two"}, {UID: "uid-two", Part: 1}, {UID: "uid-two", Part: 2}}
	l.Step(now, claimed(claimPod("web", ""), "main", 3*claimGi, refs...))
	view := l.View()
	c := view.Pods[0].Containers[0]
	block := func(node int, size uint64) memorymanager.Block {
		return memorymanager.Block{Nodes: nodeset.Of(node), Type: memorymanager.Memory, Size: size, PerNode: []memorymanager.NodeAmount{{Node: node, Bytes: size}}}
	}
	if diff := cmp.Diff([]memorymanager.Block{block(0, claimGi), block(1, 2*claimGi)}, c.Blocks); diff != "" {
		t.Error(diff) // what PodResources, status and explain show
	}
	if diff := cmp.Diff([]string{"default/two"}, c.Claims); diff != "" || c.Claimed.Of(memorymanager.Memory) != 3*claimGi || c.Pinning != "pinned by resource claim default/two" {
		t.Errorf("%s, claimed %v, %s", diff, c.Claimed, c.Pinning)
	}
	if diff := cmp.Diff([]claims.Claim{two}, view.Claims); diff != "" {
		t.Error(diff)
	}
	for _, v := range view.Claimable {
		if v.Type == memorymanager.Memory && v.Claimed != uint64(1+v.Node)*claimGi {
			t.Errorf("%+v", v)
		}
	}
}

// Pods that were there before the share have what they have: as much less is published, until they end.
func TestWhatPodsHaveOfTheShareIsNotPublished(t *testing.T) {
	now := time.Unix(1, 0)
	l := newLedger(t, "")
	web := claimPod("web", "")
	l.Step(now, claimed(web, "main", 14*claimGi))
	l.Step(now, Reconfigure{Config: resolve(t, l, "dra: {enabled: true, shares: [{limits: {memory: 100%}}]}")})
	free := func(node int) uint64 {
		for _, v := range l.state.Claims.Capacities(l.claimSupply()) {
			if v.Node == node && v.Type == memorymanager.Memory {
				return v.Capacity
			}
		}
		return 0
	}
	first, _, _ := l.manager.Capacity(0, memorymanager.Memory)
	if first != 0 || free(0) >= 2*claimGi || free(1) < 14*claimGi {
		t.Errorf("pods may have %d on node 0, claims %d and %d", first, free(0), free(1))
	}
	if effects := l.Step(now, PrepareClaim{claimOf("a", nil, on(0, 2*claimGi))}); effects.Err == nil {
		t.Error("a claim got what a pod has")
	}
	l.Step(now, EndPod{Pod: web, Gone: true})
	if free(0) < 14*claimGi {
		t.Errorf("claims may have %d after the pod", free(0))
	}
}

// A node that has less memory than before, or a larger reservation: the claims on it keep what they have, and the plugin starts.
func TestClaimsThatHaveMoreThanTheirNode(t *testing.T) {
	now := time.Unix(1, 0)
	prepared := claimOf("a", nil, on(0, 20*claimGi), claims.Part{Node: 0, Amounts: memorymanager.Request{{Type: "hugepages-1Gi", Bytes: claimGi}}})
	l := newLedger(t, "dra: {enabled: true}")
	half, _, _ := l.manager.Capacity(0, memorymanager.Memory)
	l, err := New(now, Options{Config: l.state.Resolved, Claims: []claims.Claim{prepared}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]claims.Claim{prepared}, l.Claims()); diff != "" {
		t.Error(diff)
	}
	if got := placed(l, l.Step(now, claimed(claimPod("web", ""), "main", claimGi)), "web", "main"); got != "1: pinned under best-effort" {
		t.Errorf("a pod without claims is on %s", got)
	}
	effects := l.Step(now, PrepareClaim{claimOf("b", nil, on(0, claimGi))})
	if got := fmt.Sprint(effects.Err); got != "claim default/b: takes 1Gi of memory on NUMA node 0, where claims have 0 left" {
		t.Error(got)
	}
	l.Step(now, UnprepareClaim{"uid-a"})
	if left, _, _ := l.manager.Capacity(0, memorymanager.Memory); left != half {
		t.Errorf("pods may have %d on node 0 again, want %d", left, half)
	}
}
