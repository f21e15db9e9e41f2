package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// runs steps a ledger that is connected and synchronized through the creation and start of containers.
func runs(t *testing.T, l *Ledger, creates ...CreateContainer) {
	t.Helper()
	now := time.Unix(0, 0)
	l.Step(now, Connected{Runtime: Runtime{Name: "containerd"}})
	l.Step(now, Synchronize{})
	for _, create := range creates {
		if effects := l.Step(now, create); effects.Err != nil {
			t.Fatal(effects.Err)
		}
		l.Step(now, StartContainer{Pod: create.Pod, Container: create.Container})
	}
}

// said are the notes of a step, each with a field.
func said(effects Effects, field string) string {
	var texts []string
	for _, note := range effects.Notes {
		text := note.Text
		if value, set := note.Fields[field]; set {
			text += fmt.Sprintf(" (%s %s)", field, value)
		}
		if note.Err != nil {
			text += ": " + note.Err.Error()
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// mapped is a container that may use both nodes and has so many bytes on them.
func mapped(on0, on1 uint64) Usage {
	return Usage{Mapped: cgroup.Mapped{Nodes: nodeset.Of(0, 1), Bytes: map[int]uint64{0: on0, 1: on1}}}
}

// The cgroups of the tests' containers.
const (
	smallMain = "kubepods/podsmall/small-main"
	smallSide = "kubepods/podsmall/small-side"
)

// consolidates moves containers of up to 4Gi off groups, and to make room.
const consolidates = "rebalance: {consolidate: true, maxBytes: 4Gi}"

// leftAlone has a pod with containers of 2Gi and 1Gi on nodes 0-1, where a larger one had been.
func leftAlone(t *testing.T, yaml string) *Ledger {
	t.Helper()
	l := newLedger(t, "topologyManagerPolicy: best-effort\n"+yaml)
	large := claimed(claimPod("large", ""), "main", 20*claimGi)
	runs(t, l, large, claimed(claimPod("small", ""), "main", 2*claimGi), claimed(claimPod("small", ""), "side", claimGi))
	l.Step(time.Unix(1, 0), EndPod{Pod: large.Pod, Gone: true})
	return l
}

// look is a periodic look at the groups, with what the containers use.
func look(usage map[string]Usage) NodeMemorySampled {
	all := map[string]Usage{"kubepods": {}, smallMain: mapped(0, claimGi), smallSide: mapped(0, 0)}
	for dir, u := range usage {
		all[dir] = u
	}
	return NodeMemorySampled{Groups: true, Usage: all}
}

func TestAContainerOnItsWayToOtherNodes(t *testing.T) {
	const (
		stays  = "not all memory of a container is on its new NUMA nodes (bytes 1Gi)"
		begins = "moving the memory of a container to other NUMA nodes (bytes 1Gi)"
		done   = "the memory of a container is on its new NUMA nodes (bytes 1Mi)"
	)
	arrived := NodeMemorySampled{Usage: map[string]Usage{smallMain: mapped(claimGi, 1<<20)}}
	on1 := NodeMemorySampled{Usage: map[string]Usage{smallMain: mapped(0, claimGi)}}
	type step struct {
		after time.Duration // since the step before
		event Event
		says  string
		want  string // its nodes, the stage of the move (-1: none), and the moves that are counted
	}
	still, moving, stored := "0-1 -1 map[]", "0-1 0 map[]", "0 1 map[]"
	onItsWay := []step{{0, look(nil), begins, moving}, {0, MoveStored{}, "", stored}}
	for name, steps := range map[string][]step{
		"nothing is on its way": {{0, MoveStored{}, "", still}, {0, arrived, "", still}},
		"its memory arrives":    append(onItsWay, step{0, arrived, done, "0 -1 map[done:1]"}),
		"some of it stays": append(onItsWay, step{time.Second, on1, "", stored},
			step{time.Minute, on1, stays, "0 -1 map[incomplete:1]"}),
		"it cannot be counted": append(onItsWay, step{time.Second, NodeMemorySampled{}, "", stored},
			step{time.Minute, NodeMemorySampled{Usage: map[string]Usage{smallMain: {Unread: "why"}}},
				"not all memory of a container is on its new NUMA nodes (bytes 0)", "0 -1 map[incomplete:1]"}),
		"the state file is slow": {{0, look(nil), begins, moving}, {time.Hour, arrived, "", moving}, {0, MoveStored{}, "", stored},
			{0, arrived, done, "0 -1 map[done:1]"}},
		"another one waits": append(onItsWay, step{0, look(nil), "", stored}, step{time.Hour, MoveStored{}, "", stored}, step{0, on1, stays, "0 -1 map[incomplete:1]"}),
		"a dry run":         append(onItsWay, step{time.Hour, dry{true}, "", stored}, step{time.Hour, on1, "", stored}, step{0, dry{false}, "", stored}, step{0, arrived, done, "0 -1 map[done:1]"}),
		"it ends":           append(onItsWay, step{0, EndContainer{ID: "small-main"}, "", stored}, step{0, arrived, "", "0 -1 map[]"}),
	} {
		t.Run(name, func(t *testing.T) {
			l, now := leftAlone(t, consolidates), time.Unix(1, 0)
			if again := l.Step(now, NodeMemorySampled{Groups: true}).Again; again == nil || strings.Join(again.Measure, " ") != smallMain+" "+smallSide+" kubepods" {
				t.Fatalf("it asks for %+v", again)
			}
			for i, step := range steps {
				now = now.Add(step.after)
				effects := l.Step(now, step.event)
				stage := -1
				if l.state.Move != nil {
					stage = int(l.state.Move.Stage)
				}
				got := fmt.Sprint(l.View().Pods[0].Containers[0].Nodes, " ", stage, " ", l.Counters().Moves)
				if says := said(effects, "bytes"); got != step.want || says != step.says {
					t.Errorf("step %d, %T: %s, %q; want %s, %q", i, step.event, got, says, step.want, step.says)
				}
				if _, brings := step.event.(MoveStored); len(effects.Sync) > 0 && !brings {
					t.Errorf("step %d, %T: its cpuset.mems is written", i, step.event)
				}
			}
		})
	}
}

// dry begins a dry run, or ends it.
type dry struct{ run bool }

func (e dry) apply(l *Ledger) {
	l.state.Resolved.Config.Profile = config.ProfileFull
	if e.run {
		l.state.Resolved.Config.Profile = config.ProfileObserve
	}
}

// Both containers of a group have to pass the gates: with one that must not be moved the group stays.
func TestWhatKeepsAGroup(t *testing.T) {
	nodes := func(free0, free1 uint64) []deficit.Node {
		return []deficit.Node{{ID: 0, Free: free0}, {ID: 1, Free: free1}}
	}
	pressed := func(u Usage) Usage { u.Pressure = 10.5; return u }
	for name, test := range map[string]struct {
		yaml  string
		nodes []deficit.Node
		usage map[string]Usage
		want  []string // gate and reason
	}{
		"nothing":           {nodes: nodes(claimGi, claimGi)},
		"an unknown sample": {},
		"too much memory": {usage: map[string]Usage{smallMain: mapped(claimGi, 5*claimGi), smallSide: mapped(0, 6*claimGi)}, want: []string{
			"migration: not moved there: that is 5Gi of memory, more than rebalance.maxBytes (4Gi)",
			"migration: not moved there: that is 6Gi of memory, more than rebalance.maxBytes (4Gi)"}},
		"one may be moved": {usage: map[string]Usage{smallSide: mapped(0, 6*claimGi)}, want: []string{
			"migration: not moved there: that is 6Gi of memory, more than rebalance.maxBytes (4Gi)"}},
		"no room": {nodes: nodes(claimGi-1, 0), want: []string{
			"room: not moved there: its 1Gi would go to node 0, which has no room for them beside its allocations"}},
		"room that is allocated and unused": {nodes: []deficit.Node{{ID: 0, Free: 3 * claimGi, Unused: 2*claimGi + 1}}, want: []string{
			"room: not moved there: its 1Gi would go to node 0, which has no room for them beside its allocations"}},
		"it waits for memory": {usage: map[string]Usage{smallMain: pressed(mapped(0, claimGi))}, want: []string{
			"pressure: full avg10 of its memory.pressure is 10.5, more than 10"}},
		"all pods wait for memory": {usage: map[string]Usage{"kubepods": pressed(Usage{})}, want: []string{
			"pressure: no memory is moved while all pods wait for it: full avg10 of its memory.pressure is 10.5, more than 10",
			"pressure: no memory is moved while all pods wait for it: full avg10 of its memory.pressure is 10.5, more than 10"}},
		"it cannot be counted": {usage: map[string]Usage{smallSide: {Unread: "why"}}, want: []string{"unread: its memory cannot be counted: why"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := leftAlone(t, consolidates+"\n"+test.yaml), time.Unix(1, 0)
			event := look(test.usage)
			event.Nodes = test.nodes
			effects := l.Step(now, event)
			var got []string
			for _, n := range l.View().NotMoved {
				if n.Reason != Consolidation || n.UID != "small" {
					t.Errorf("%+v", n)
				}
				got = append(got, n.Gate+": "+n.Why)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if move, _ := l.Moving(); (move == nil) != (test.want != nil) {
				t.Errorf("the move is %+v", move)
			}
			const warns = "a container is not moved to other NUMA nodes"
			if n := strings.Count(said(effects, ""), warns); n != len(test.want) {
				t.Errorf("%d warnings: %s", n, said(effects, ""))
			}
			if test.want == nil {
				return
			}
			if again := said(l.Step(now, event), ""); again != "" {
				t.Errorf("the second time it says %s", again)
			}
			if l.Step(now, look(nil)); l.View().NotMoved != nil {
				t.Errorf("once it may be moved: %+v", l.View().NotMoved)
			}
		})
	}
}

// TestRoomIsMadeForANewContainer of 6Gi, where node 0 has 2.5Gi free and node 1 5.5Gi.
func TestRoomIsMadeForANewContainer(t *testing.T) {
	const sentence = "it would fit node 0 if default/c main (4Gi) were on node 1"
	const inC, inD = "kubepods/podc/c-main", "kubepods/podd/d-main"
	pod := claimPod("web", "")
	one, both := []string{inC, "kubepods"}, []string{inD, inC, "kubepods"}
	for name, test := range map[string]struct {
		yaml    string
		limit   uint64
		made    int // moves for it before
		before  Event
		measure []string
		want    string // in the error
		counted uint64 // placements that failed
	}{
		"by one move":            {consolidates, 6, 0, nil, one, sentence, 0},
		"by two moves":           {consolidates, 7, 0, nil, both, "node 1: 5.5Gi of 15.5Gi free, 7Gi needed", 0},
		"two, and moves are off": {"", 7, 0, nil, nil, "node 1: 5.5Gi of 15.5Gi free, 7Gi needed", 1},
		"two, after one":         {consolidates, 7, 1, nil, nil, "node 1: 5.5Gi of 15.5Gi free, 7Gi needed", 1},
		"moves are off":          {"", 6, 0, nil, nil, sentence, 1},
		"moved already":          {consolidates, 6, 2, nil, nil, sentence, 1},
		"the runtime is gone":    {consolidates, 6, 0, Disconnected{"gone"}, nil, sentence, 1},
		"no move would do":       {consolidates, 12, 0, nil, nil, "node 1: 5.5Gi of 15.5Gi free, 12Gi needed", 1},
		"not what needs no move": {consolidates, 5, 0, nil, nil, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := crowded(t, test.yaml)
			now := time.Unix(1, 0)
			if test.before != nil {
				l.Step(now, test.before)
			}
			requests := l.Counters().PinningRequests
			create := claimed(pod, "main", test.limit*claimGi)
			create.Relieved = test.made
			effects := l.Step(now, create)
			var measure []string
			if effects.Again != nil {
				measure = effects.Again.Measure
			}
			if diff := cmp.Diff(test.measure, measure); diff != "" {
				t.Error(diff)
			}
			if err := fmt.Sprint(effects.Err); !strings.Contains(err, test.want) || (effects.Err == nil) != (test.want == "") {
				t.Errorf("the error is %s, want %q", err, test.want)
			}
			counters := l.Counters()
			if counters.PinningErrors != test.counted || (measure == nil) != (counters.PinningRequests > requests) || uint64(len(l.View().Rejections)) != test.counted {
				t.Errorf("%d requests, %d errors, %d rejections", counters.PinningRequests-requests, counters.PinningErrors, len(l.View().Rejections))
			}
			if measure == nil {
				return
			}
			for range len(measure) - 1 { // a move each
				create.Usage = map[string]Usage{"kubepods": {}, inC: mapped(claimGi, 0), inD: mapped(claimGi, 0)}
				effects = l.Step(now, create)
				move, dir := l.Moving()
				if again := effects.Again; again == nil || !again.Moved || again.Relieved != create.Relieved+1 || move == nil {
					t.Fatalf("%+v, moving %+v", again, move)
				}
				l.Step(now, MoveStored{})
				create.Usage, create.Relieved = nil, effects.Again.Relieved
				l.Step(now, NodeMemorySampled{Usage: map[string]Usage{dir: mapped(0, claimGi)}})
			}
			if got := placed(l, l.Step(now, create), "web", "main"); got != "0: pinned under single-numa-node" {
				t.Error(got)
			}
			if got, want := placed(l, Effects{}, "c", "main"), "1: pinned under single-numa-node, moved from node 0: to make room for default/web main"; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// crowded has 2.5Gi free on node 0 and 5.5Gi on node 1.
func crowded(t *testing.T, yaml string) *Ledger {
	t.Helper()
	l := newLedger(t, "topologyManagerPolicy: single-numa-node\n"+yaml)
	runs(t, l, claimed(claimPod("a", ""), "main", 8*claimGi), claimed(claimPod("b", ""), "main", 10*claimGi), claimed(claimPod("c", ""), "main", 4*claimGi),
		claimed(claimPod("d", ""), "main", claimGi))
	return l
}

// Memory that is moved for a container, and that must not be: nothing is, and the create is rejected at once.
func TestNoRoomIsMadeBeyondTheGates(t *testing.T) {
	for name, usage := range map[string]Usage{
		"too much memory":      mapped(5*claimGi, 0),
		"it waits for memory":  {Mapped: mapped(claimGi, 0).Mapped, Pressure: 50},
		"it cannot be counted": {Unread: "why"},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := crowded(t, consolidates), time.Unix(1, 0)
			create := claimed(claimPod("web", ""), "main", 6*claimGi)
			create.Usage = map[string]Usage{"kubepods": {}, "kubepods/podc/c-main": usage}
			effects := l.Step(now, create)
			if effects.Again != nil || effects.Err == nil || l.state.Move != nil {
				t.Errorf("%+v, moving %+v", effects.Again, l.state.Move)
			}
			view := l.View()
			if len(view.NotMoved) != 1 || view.NotMoved[0].Reason != Admission || view.NotMoved[0].Pod != "c" || len(view.Rejections) != 1 {
				t.Errorf("%+v, %+v", view.NotMoved, view.Rejections)
			}
		})
	}
}

// try is what becomes of a new container, which is gone then.
func try(l *Ledger, now time.Time, limit uint64) string {
	other := claimed(claimPod(fmt.Sprint("other", l.generation), ""), "main", limit)
	effects := l.Step(now, other)
	defer l.Step(now, EndPod{Pod: other.Pod, Gone: true})
	switch {
	case effects.Again != nil && effects.Again.Moved:
		return "waits"
	case effects.Err != nil:
		return "rejected"
	}
	return l.containers[other.Container.ID].Nodes.String()
}

// A kill while pages move: the container is allocated on node 1, and found on node 0 with its cpuset.mems.
func TestAMoveThatAKillHasInterrupted(t *testing.T) {
	const inC = "kubepods/podc/c-main"
	for name, test := range map[string]struct {
		yaml, mems string
		want       string // of a container that needs the room on node 0
	}{
		"it goes on":          {consolidates, "0", "waits"},
		"it was written":      {consolidates, "1", "0"},
		"it had none":         {consolidates, "", "0"},
		"nothing moves now":   {"", "0", "0"},
		"a dry run has begun": {consolidates + "\nprofile: Observe", "0", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			before, now := crowded(t, consolidates), time.Unix(1, 0)
			create := claimed(claimPod("web", ""), "main", 6*claimGi)
			create.Usage = map[string]Usage{"kubepods": {}, inC: mapped(claimGi, 0)}
			before.Step(now, create)
			before.Step(now, MoveStored{})
			l := newLedger(t, "topologyManagerPolicy: single-numa-node\n"+test.yaml)
			if _, err := l.Restore(before.manager.State()); err != nil {
				t.Fatal(err)
			}
			found := Synchronize{Found: Found{Files: map[string]Files{}}}
			for name, bytes := range map[string]uint64{"a": 8, "b": 10, "c": 4, "d": 1} {
				c := claimed(claimPod(name, ""), "main", bytes*claimGi)
				c.Container.State = Running
				found.Pods, found.Containers = append(found.Pods, c.Pod), append(found.Containers, c.Container)
				mems := before.container(name, "main").Nodes.String()
				if name == "c" {
					mems = test.mems
				}
				found.Found.Files[c.Container.ID] = Files{Mems: &mems, Ours: map[cgroup.Knob]bool{cgroup.CpusetMems: true}}
			}
			l.Step(now, Connected{Runtime: Runtime{Name: "containerd"}})
			l.Step(now, found)
			if got := try(l, now, 6*claimGi); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			l.Step(now, NodeMemorySampled{Usage: map[string]Usage{inC: mapped(0, claimGi)}})
			if got := try(l, now, 6*claimGi); got != "0" {
				t.Errorf("after they have left it is %q", got)
			}
		})
	}
}

// The pages of a container that moves are on its old node until they have left it: nobody is promised what they take.
func TestMemoryThatIsLeavingIsNobodyElses(t *testing.T) {
	const inC = "kubepods/podc/c-main"
	l, now := crowded(t, consolidates), time.Unix(1, 0)
	create := claimed(claimPod("web", ""), "main", 6*claimGi)
	create.Usage = map[string]Usage{"kubepods": {}, inC: mapped(claimGi, 0)}
	l.Step(now, create)
	if l.state.Move == nil {
		t.Fatal("nothing is moved")
	}
	for i, event := range []Event{Settled{}, MoveStored{}, NodeMemorySampled{Usage: map[string]Usage{inC: mapped(5<<20, claimGi)}}} {
		l.Step(now, event)
		// 2.5Gi are free on node 0, and 4Gi more are leaving; 1.5Gi are free on node 1.
		for limit, want := range map[uint64]string{2 * claimGi: "0", 3 * claimGi: "waits", 6 * claimGi: "waits", 7 * claimGi: "rejected"} {
			if got := try(l, now, limit); got != want {
				t.Errorf("step %d: a container of %d is %q, want %q", i, limit>>30, got, want)
			}
		}
		for _, node := range l.View().Nodes {
			if m := node.Memory[0]; m.Free+m.Reserved != m.Allocatable {
				t.Errorf("step %d: %+v", i, node)
			}
		}
	}
	l.Step(now, NodeMemorySampled{Usage: map[string]Usage{inC: mapped(4<<20, claimGi)}})
	if got := try(l, now, 6*claimGi); got != "0" {
		t.Errorf("after they have left it is %q", got)
	}
}
