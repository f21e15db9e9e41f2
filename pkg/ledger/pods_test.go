package ledger

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// A late event of a pod that has ended brings nothing back.
func TestAContainerOfAPodThatHasEnded(t *testing.T) {
	l, now := newLedger(t, ""), time.Unix(1, 0)
	web := claimPod("web", "")
	l.Step(now, RunPod{Pod: web})
	l.Step(now, EndPod{Pod: web, Gone: true})
	astray := claimPod("astray", "")
	astray.CgroupParent = "/kubepods/../etc"
	for want, event := range map[string]Event{
		"pod default/web: the pod sandbox has been stopped":                                             claimed(web, "main", claimGi),
		"pod default/astray: cgroup parent \"/kubepods/../etc\": must not contain the component \"..\"": claimed(astray, "main", claimGi),
	} {
		if effects := l.Step(now, event); fmt.Sprint(effects.Err) != want || !effects.Answer.Empty() {
			t.Errorf("%v, %v; want %s", effects.Answer, effects.Err, want)
		}
	}
	if len(l.View().Pods) > 0 || l.containers["web-main"] != nil {
		t.Errorf("%+v", l.View().Pods)
	}
}

// A pod outside kubepods is not the kubelet's.
func TestAPodThatIsNotTheKubelets(t *testing.T) {
	l, now := newLedger(t, ""), time.Unix(1, 0)
	pod := claimPod("web", "")
	pod.CgroupParent = "/system.slice"
	effects := l.Step(now, claimed(pod, "main", claimGi))
	if !effects.Answer.Empty() || effects.Err != nil || effects.Decision != nil || len(effects.Files) > 0 || l.containers["web-main"] != nil {
		t.Errorf("%+v", effects)
	}
	if shown := l.View().Pods; len(shown) != 1 || shown[0].Cgroup != "" || len(shown[0].Containers) > 0 {
		t.Errorf("%+v", shown)
	}
}

// A pod may count on what it requests while a container of it is restarted, too.
func TestAPodsShareWhileAContainerIsRestarted(t *testing.T) {
	l, now := newLedger(t, "memoryReservationPolicy: None"), time.Unix(1, 0)
	web := claimPod("web", "burstable/")
	info := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: web.Ref(), Class: memoryqos.Burstable, Containers: []pods.Container{
		{Name: "main", Request: 2 * claimGi}, {Name: "side", Request: claimGi},
	}}}
	l.after(RunPod{Pod: web}, claimed(web, "main", 4*claimGi), claimed(web, "side", 4*claimGi), PodFacts{UID: "web", PodInfo: info})
	for _, when := range []string{"while both run", "while one is restarted"} {
		if share := l.View().Pods[0].Share(); share != 3*claimGi {
			t.Errorf("%s: %d bytes", when, share)
		}
		l.Step(now, EndContainer{ID: "web-main"})
	}
}

// What an init container had is kept for a container that is refused: the kubelet tries again.
func TestInitContainersMemoryIsKeptForARefusedContainer(t *testing.T) {
	l := newLedger(t, "topologyManagerPolicy: single-numa-node")
	web := claimPod("web", "")
	info := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: web.Ref(), Class: memoryqos.Guaranteed, Containers: []pods.Container{
		{Name: "init", Kind: memoryqos.Init, Request: 6 * claimGi, Limit: 6 * claimGi, Guaranteed: true},
		{Name: "side", Request: claimGi, Limit: claimGi, Guaranteed: true}, {Name: "main", Request: 40 * claimGi, Limit: 40 * claimGi, Guaranteed: true},
	}}}
	start := func(e CreateContainer) StartContainer { return StartContainer{Pod: web, Container: e.Container} }
	first, side := claimed(web, "init", 6*claimGi), claimed(web, "side", claimGi)
	first.PodInfo = info
	l.after(first, start(first), EndContainer{ID: "web-init"}, side, start(side))
	for range 2 {
		if effects := l.after(claimed(web, "main", 40*claimGi)); effects.Err == nil {
			t.Fatal("it was not refused")
		}
		if l.manager.Blocks("web", "init") == nil {
			t.Error("nothing is kept")
		}
	}
}

// What the stall guard had raised when the plugin ended is kept for the containers that still run.
func TestRaisesOfAnEarlierRun(t *testing.T) {
	first := newLedger(t, "")
	raises := map[string]uint64{"web-main": 5 * claimGi, "gone": 6 * claimGi}
	l, err := New(time.Unix(0, 0), Options{Config: first.state.Resolved, Raises: maps.Clone(raises)})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Raises(); !maps.Equal(got, raises) {
		t.Errorf("before anything is seen: %v", got)
	}
	web := claimPod("web", "burstable/")
	c := claimed(web, "main", 4*claimGi).Container
	c.State = Running
	l.Step(time.Unix(1, 0), Synchronize{Pods: []Pod{web}, Containers: []Container{c}})
	if got := l.Raises(); !maps.Equal(got, map[string]uint64{"web-main": 5 * claimGi}) {
		t.Errorf("after the runtime has said what runs: %v", got)
	}
}

// Claimed memory that is a part of a pod's request is a part of its share while the container with the claim is restarted, too.
func TestAPodsShareOfClaimsWhileAContainerIsRestarted(t *testing.T) {
	l, now := newLedger(t, "memoryReservationPolicy: None\ndra: {enabled: true}"), time.Unix(1, 0)
	web := claimPod("web", "burstable/")
	info := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{
		Ref: web.Ref(), Class: memoryqos.Burstable, Containers: []pods.Container{{Name: "main", Request: 2 * claimGi}},
		Claimed: claimGi, Mapped: map[string]uint64{"a": claimGi},
	}}
	l.after(RunPod{Pod: web}, PodFacts{UID: "web", PodInfo: info}, PrepareClaim{claimOf("a", []string{"web"}, on(0, claimGi))},
		claimed(web, "main", 4*claimGi, claims.Ref{UID: "uid-a"}))
	for _, when := range []string{"while it runs", "while it is restarted"} {
		if share := l.View().Pods[0].Share(); share != 3*claimGi {
			t.Errorf("%s: %d bytes", when, share)
		}
		l.Step(now, EndContainer{ID: "web-main"})
	}
}
