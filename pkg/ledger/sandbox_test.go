package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestWhenAPodEnds looks at what default/web has, 4Gi on node 0, after events of its sandboxes.
func TestWhenAPodEnds(t *testing.T) {
	web := claimPod("web", "")
	in := func(sandbox string) Pod {
		pod := web
		pod.ID = sandbox
		return pod
	}
	place := CgroupRef{UID: "web", ID: "sandbox-web", Cgroup: "kubepods/podweb"}
	other := place
	other.ID = "second"
	c := claimed(web, "main", 4*claimGi).Container
	c.State = Running
	for name, test := range map[string]struct {
		events []Event
		want   string // allocated on node 0, the sandbox that is shown, and the pods without one
	}{
		"its sandbox runs":                {nil, "4Gi sandbox-web 0"},
		"its cgroup is gone":              {[]Event{EndPod{Pod: web, Gone: true}}, "nothing"},
		"its cgroup is there":             {[]Event{EndPod{Pod: web}}, "4Gi sandbox-web 1"},
		"its sandbox is removed":          {[]Event{EndPod{Pod: web}, EndPod{Pod: web}}, "4Gi sandbox-web 1"},
		"its cgroup goes":                 {[]Event{EndPod{Pod: web}, Presence{Gone: []CgroupRef{place}}}, "nothing"},
		"its cgroup stays":                {[]Event{EndPod{Pod: web}, Presence{Present: []CgroupRef{place}}}, "4Gi sandbox-web 1"},
		"it gets another sandbox":         {[]Event{EndPod{Pod: web}, RunPod{Pod: in("second")}}, "4Gi second 0"},
		"the old one is removed":          {[]Event{RunPod{Pod: in("second")}, EndPod{Pod: web}}, "4Gi second 0"},
		"the new one is removed, too":     {[]Event{RunPod{Pod: in("second")}, EndPod{Pod: web}, EndPod{Pod: in("second")}}, "4Gi second 1"},
		"a late look at the old one":      {[]Event{EndPod{Pod: web}, RunPod{Pod: in("second")}, Presence{Gone: []CgroupRef{place}}}, "4Gi second 0"},
		"a look at the new one":           {[]Event{RunPod{Pod: in("second")}, EndPod{Pod: in("second")}, Presence{Gone: []CgroupRef{other}}}, "nothing"},
		"both are listed":                 {[]Event{Synchronize{Pods: []Pod{in("z"), in("a")}}, EndPod{Pod: in("z")}}, "4Gi a 0"},
		"both are listed, and both end":   {[]Event{Synchronize{Pods: []Pod{in("z"), in("a")}}, EndPod{Pod: in("z")}, EndPod{Pod: in("a")}}, "4Gi a 1"},
		"the old one is not listed":       {[]Event{RunPod{Pod: in("second")}, Synchronize{Pods: []Pod{in("second")}}, EndPod{Pod: in("second")}}, "4Gi second 1"},
		"none is listed":                  {[]Event{Synchronize{}}, "nothing"},
		"none is listed, but processes":   {[]Event{Synchronize{Found: Found{Populated: map[string]bool{c.ID: true}}}}, "4Gi sandbox-web 0"},
		"listed without its container":    {[]Event{Synchronize{Pods: []Pod{web}}}, "4Gi sandbox-web 0"},
		"the list has another container":  {[]Event{Synchronize{Pods: []Pod{web}, Containers: []Container{{ID: "x", PodID: "nobody"}}}}, "4Gi sandbox-web 0"},
		"an end without a sandbox's id":   {[]Event{EndPod{Pod: in("")}}, "4Gi sandbox-web 1"},
		"an end of a sandbox of nobody's": {[]Event{EndPod{Pod: in("nobody")}}, "4Gi sandbox-web 0"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "")
			l.Step(time.Unix(0, 0), RunPod{Pod: web})
			l.Step(time.Unix(0, 0), claimed(web, "main", 4*claimGi))
			l.Step(time.Unix(0, 0), StartContainer{Pod: web, Container: c})
			l.after(test.events...)
			got := "nothing"
			if blocks := l.manager.Blocks("web", "main"); blocks != nil {
				got = fmt.Sprintf("%dGi %s %d", blocks[0].Size/claimGi, l.living[0].ID, len(l.ending()))
			} else if views := l.View().Pods; len(views) > 0 || len(l.ending()) > 0 {
				t.Errorf("it is shown without an allocation: %+v, %+v", views, l.ending())
			}
			if got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// TestTheEndOfAPodIsStored even if claims have changed what its node has meanwhile, and pending resizes may get its memory.
func TestTheEndOfAPodIsStored(t *testing.T) {
	web := claimPod("web", "")
	claim := claims.Claim{UID: "uid", Namespace: "default", Name: "big", Pods: []string{"other"}, Parts: []claims.Part{
		{Request: "mem", Node: 0, Amounts: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 9 * claimGi}}}}}
	l := newLedger(t, "dra: {enabled: true, shares: [{limits: {memory: 10%}}]}")
	if err := l.after(RunPod{Pod: web}, claimed(web, "main", 4*claimGi), PrepareClaim{Claim: claim}).Err; err != nil {
		t.Fatal(err)
	}
	if l.living[0].stored.Empty() {
		t.Error("that web has memory is not known any more: no pending resize gets it when web ends")
	}
	effects := l.Step(time.Unix(3, 0), EndPod{Pod: web, Gone: true})
	if len(effects.Allocations) != 1 || !slices.Equal(effects.Allocations[0].Pods, []string{"web"}) || !effects.Allocations[0].Allocations.Empty() {
		t.Errorf("the state file gets %+v, want that web has nothing", effects.Allocations)
	}
}

// TestWhatAPodWithoutASandboxHolds: its containers have ended, and protect nothing.
func TestWhatAPodWithoutASandboxHolds(t *testing.T) {
	web := claimPod("web", "")
	l := newLedger(t, "")
	l.after(RunPod{Pod: web}, claimed(web, "main", 4*claimGi), StartContainer{Pod: web, Container: claimed(web, "main", 4*claimGi).Container})
	effects := l.Step(time.Unix(3, 0), EndPod{Pod: web})
	if len(effects.Ended) != 1 || effects.Ended[0] != "kubepods/podweb/web-main" || l.containers["web-main"] != nil {
		t.Errorf("its container's cgroup is desired: %v", effects.Ended)
	}
	for _, target := range effects.Files {
		if target.Values.Min != nil && *target.Values.Min > 0 {
			t.Errorf("%s: memory.min %d", target.Cgroup, *target.Values.Min)
		}
	}
	if effects := l.Step(time.Unix(4, 0), Presence{Gone: l.ending()}); len(effects.Forget) != 1 || l.Counters().Forgotten != 0 {
		t.Errorf("%+v, %d pods ended without an event", effects.Forget, l.Counters().Forgotten)
	}
}

// TestWhetherContainersShareThePodsLimit, which is 8Gi, looks at default/web main after events that no pod API explains.
func TestWhetherContainersShareThePodsLimit(t *testing.T) {
	const gi = claimGi
	web := claimPod("web", "")
	web.MemoryLimit = 8 * gi
	create := func(name string, limit uint64, there ...string) CreateContainer {
		e := claimed(web, name, limit)
		for _, other := range []string{"main", "side", "init"} {
			at := CgroupRef{ID: "web-" + other}
			e.Siblings.Gone = append(e.Siblings.Gone, at)
		}
		for _, other := range there {
			e.Siblings.Present = append(e.Siblings.Present, CgroupRef{ID: "web-" + other})
		}
		for _, at := range e.Siblings.Present {
			for i, gone := range e.Siblings.Gone {
				if gone.ID == at.ID {
					e.Siblings.Gone = append(e.Siblings.Gone[:i:i], e.Siblings.Gone[i+1:]...)
					break
				}
			}
		}
		return e
	}
	start := func(name string) StartContainer {
		c := claimed(web, name, gi).Container
		c.State = Running
		return StartContainer{Pod: web, Container: c}
	}
	resize := func(name string, to uint64, pod *uint64) UpdateContainer {
		bytes := int64(to)
		return UpdateContainer{Pod: web, Container: claimed(web, name, gi).Container, To: Resources{MemoryLimit: &bytes},
			Facts: Facts{PodLimit: pod, Siblings: Presence{Present: []CgroupRef{{ID: "web-main"}, {ID: "web-side"}}}}}
	}
	podLimit := func(bytes uint64) Observed { return Observed{UID: "web", ID: web.ID, Limit: bytes} }
	const own, shared = "own", "shared"
	for name, test := range map[string]struct {
		events []Event
		want   string
	}{
		"it is alone":                          {[]Event{create("main", 8*gi)}, own},
		"each has its own":                     {[]Event{create("side", 4*gi), start("side"), create("main", 4*gi, "side")}, own},
		"one has all, and is there":            {[]Event{create("side", 8*gi), start("side"), create("main", gi, "side")}, shared},
		"it has all itself":                    {[]Event{create("side", gi), start("side"), create("main", 8*gi, "side")}, shared},
		"one had all, and is gone":             {[]Event{create("init", 8*gi), start("init"), create("main", gi)}, own},
		"one had all, and its end comes later": {[]Event{create("init", 8*gi), start("init"), create("main", gi), start("main"), EndContainer{ID: "web-init"}}, own},
		"one without a limit":                  {[]Event{create("side", 0), start("side"), create("main", 8*gi, "side")}, own},
		"the other one ends":                   {[]Event{create("side", 8*gi), start("side"), create("main", gi, "side"), EndContainer{ID: "web-side"}}, shared},
		"the pod's limit is raised first":      {[]Event{create("side", 8*gi), start("side"), create("main", gi, "side"), start("main"), podLimit(12 * gi)}, shared},
		"the pod's limit is said by the pod":   {[]Event{create("side", 8*gi), start("side"), create("main", gi, "side"), UpdatePod{Pod: web, Limit: 12 * gi}}, shared},
		"resized to the old limit of the pod":  {[]Event{create("side", 4*gi), start("side"), create("main", 4*gi, "side"), start("main"), resize("side", 8*gi, nil)}, own},
		"resized to all of the pod":            {[]Event{create("side", 4*gi), start("side"), create("main", 4*gi, "side"), start("main"), resize("side", 8*gi, of(8*gi))}, shared},
		"what they have is the sum again":      {[]Event{create("side", 8*gi), start("side"), create("main", gi, "side"), start("main"), resize("side", 7*gi, of(8*gi))}, own},
		"the pod API says otherwise": {[]Event{create("init", 8*gi), start("init"), create("main", gi, "init"), EndContainer{ID: "web-init"}, start("main"),
			PodFacts{UID: "web", PodInfo: pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: web.Ref(), Class: memoryqos.Guaranteed,
				Containers: []pods.Container{{Name: "init", Kind: memoryqos.Init, Request: 8 * gi, Limit: 8 * gi}, {Name: "main", Request: gi, Limit: gi}}}}}}, own},
		"the pod's limit is one container's by now": {[]Event{create("side", 4*gi), start("side"), create("main", gi, "side"), start("main"), Presence{Present: []CgroupRef{{ID: "web-main"}}}, podLimit(4 * gi)}, shared},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "")
			l.Step(time.Unix(0, 0), RunPod{Pod: web})
			effects := l.after(test.events...)
			if effects.Err != nil {
				t.Fatal(effects.Err)
			}
			got := own
			if l.pods["web"].Shared {
				got = shared
			}
			if got != test.want || (got == shared) == (l.manager.Blocks("web", "main") != nil) {
				t.Errorf("%s with %v, want %s", got, l.manager.Blocks("web", "main"), test.want)
			}
		})
	}
}

// TestRolesReachAllOfAPod: an init container of 10Gi has ended on node 0 when something makes another memory manager, or tells its role.
// It keeps its allocation until a later container starts.
func TestRolesReachAllOfAPod(t *testing.T) {
	const gi = claimGi
	web := claimPod("web", "")
	again := web
	again.ID = "again"
	known := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: web.Ref(), Class: memoryqos.Guaranteed, Containers: []pods.Container{
		{Name: "init", Kind: memoryqos.Init, Request: 10 * gi, Limit: 10 * gi, Guaranteed: true},
		{Name: "main", Kind: memoryqos.App, Request: 10 * gi, Limit: 10 * gi, Guaranteed: true},
	}}}
	create := func(name string, known pods.Answer) CreateContainer {
		e := claimed(web, name, 10*gi)
		e.PodInfo = known
		return e
	}
	start := func(name string) Event {
		return StartContainer{Pod: web, Container: claimed(web, name, 10*gi).Container}
	}
	rerun := claimed(again, "init", 10*gi)
	rerun.Container.ID = "web-init-2"
	ended := EndContainer{ID: "web-init"}
	connected := Synchronize{Pods: []Pod{web}}
	claim := PrepareClaim{claimOf("a", []string{"p"}, on(1, gi))}
	facts := PodFacts{UID: "web", PodInfo: known}
	unknown := []Event{create("init", pods.Answer{}), start("init"), ended, create("main", pods.Answer{}), start("main")}
	for name, test := range map[string]struct {
		events []Event
		want   string // allocated for init and main
	}{
		"known from the start": {[]Event{create("init", known), ended, create("main", known)}, "0Gi on 0, 10Gi on 0"},
		"a claim comes":        {[]Event{create("init", known), ended, claim, create("main", known)}, "0Gi on 0, 10Gi on 0"},
		"known before main":    {[]Event{create("init", pods.Answer{}), ended, facts, create("main", known)}, "0Gi on 0, 10Gi on 0"},
		"known with main":      {[]Event{create("init", pods.Answer{}), ended, create("main", known)}, "0Gi on 0, 10Gi on 0"},
		"known after main":     {[]Event{create("init", pods.Answer{}), ended, create("main", pods.Answer{}), facts}, "10Gi on 0, 10Gi on 1"},
		"main starts":          {[]Event{create("init", pods.Answer{}), ended, create("main", pods.Answer{}), facts, start("main")}, "none, 10Gi on 1"},
		"known after a start":  {append(unknown, facts), "none, 10Gi on 1"},
		"its end comes later":  {[]Event{create("init", known), start("init"), create("main", known), start("main")}, "0Gi on 0, 10Gi on 0"},
		"its end has come":     {[]Event{create("init", known), start("init"), create("main", known), start("main"), ended}, "none, 10Gi on 0"},
		"it runs again when its role comes": {append(unknown, EndPod{Pod: web}, RunPod{Pod: again}, rerun,
			StartContainer{Pod: again, Container: rerun.Container}, facts), "10Gi on 0, 10Gi on 1"},
		"never known": {unknown, "10Gi on 0, 10Gi on 1"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "topologyManagerPolicy: single-numa-node\ndra: {enabled: true, shares: [{limits: {memory: 10%}}]}")
			l.Step(time.Unix(0, 0), RunPod{Pod: web})
			l.Step(time.Unix(0, 0), connected)
			if effects := l.after(test.events...); effects.Err != nil {
				t.Fatal(effects.Err)
			}
			said := func(blocks []memorymanager.Block) string {
				if blocks == nil {
					return "none"
				}
				return fmt.Sprintf("%dGi on %s", blocks[0].Size/gi, blocks[0].Nodes)
			}
			if got := said(l.manager.Blocks("web", "init")) + ", " + said(l.manager.Blocks("web", "main")); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
