package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// TestAContainerOnItsWayToOtherNodes has a pod with containers of 2Gi and 1Gi on nodes 0-1, where a larger one had been.
func TestAContainerOnItsWayToOtherNodes(t *testing.T) {
	const (
		stays  = "not all memory of a container is on its new NUMA nodes (bytes 1Gi)"
		begins = "moving the memory of a container to other NUMA nodes (bytes 1Gi)"
		done   = "the memory of a container is on its new NUMA nodes (bytes 1Mi)"
	)
	bytes := func(n uint64) *uint64 { return &n }
	small, side := claimed(claimPod("small", ""), "main", 2*claimGi), claimed(claimPod("small", ""), "side", claimGi)
	move := func(to int) MoveContainer {
		return MoveContainer{Move: Move{UID: "small", Container: "main", From: nodeset.Of(0, 1), To: nodeset.Of(to), Why: "for a test"}, Bytes: claimGi}
	}
	type step struct {
		after time.Duration // since the step before
		event Event
		says  string
		want  string // its nodes, whether it is on its way, and the moves that are counted
	}
	still, moving, stored := "0-1 false map[]", "0-1 true map[]", "0 true map[]"
	onItsWay := []step{{0, move(0), begins, moving}, {0, MoveStored{}, "", stored}}
	for name, steps := range map[string][]step{
		"nothing is on its way": {{0, MoveStored{}, "", still}, {0, MoveObserved{bytes(0)}, "", still}},
		"it is no more where it was": {{0, MoveContainer{Move: Move{UID: "small", Container: "main", From: nodeset.Of(1), To: nodeset.Of(0)}}, "", still},
			{0, MoveContainer{Move: Move{UID: "small", Container: "nobody", To: nodeset.Of(0)}}, "", still}},
		"the node is not there": {{0, move(7), "", still}},
		"its memory arrives":    append(onItsWay, step{0, MoveObserved{bytes(1 << 20)}, done, "0 false map[done:1]"}),
		"some of it stays": append(onItsWay, step{time.Second, MoveObserved{bytes(claimGi)}, "", stored},
			step{time.Minute, MoveObserved{bytes(claimGi)}, stays, "0 false map[incomplete:1]"}),
		"it cannot be counted": append(onItsWay, step{time.Second, MoveObserved{}, "", stored},
			step{time.Minute, MoveObserved{}, "not all memory of a container is on its new NUMA nodes (bytes 0)", "0 false map[incomplete:1]"}),
		"the state file is slow": {{0, move(0), begins, moving}, {time.Hour, MoveObserved{bytes(0)}, "", moving}, {0, MoveStored{}, "", stored},
			{0, MoveObserved{bytes(1 << 20)}, done, "0 false map[done:1]"}},
		"another one waits": append(onItsWay,
			step{0, MoveContainer{Move: Move{UID: "small", Container: "side", From: nodeset.Of(0, 1), To: nodeset.Of(0)}}, "", stored},
			step{time.Hour, MoveStored{}, "", stored}, step{0, MoveObserved{bytes(claimGi)}, stays, "0 false map[incomplete:1]"}),
		"it ends": append(onItsWay, step{0, EndContainer{ID: "small-main"}, "", stored}, step{0, MoveObserved{bytes(0)}, "", "0 false map[]"}),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "topologyManagerPolicy: best-effort\ndissolveGroups: true")
			large := claimed(claimPod("large", ""), "main", 20*claimGi)
			runs(t, l, large, small, side)
			now := time.Unix(1, 0)
			l.Step(now, EndPod{Pod: large.Pod, Gone: true})
			const why = "its group of nodes is not needed any more"
			want := [][]Move{{
				{UID: "small", Container: "main", Cgroup: "kubepods/podsmall/small-main", From: nodeset.Of(0, 1), To: nodeset.Of(0), Why: why},
				{UID: "small", Container: "side", Cgroup: "kubepods/podsmall/small-side", From: nodeset.Of(0, 1), To: nodeset.Of(0), Why: why},
			}}
			if diff := cmp.Diff(want, l.GroupMoves(now)); diff != "" {
				t.Fatal(diff)
			}
			for i, step := range steps {
				now = now.Add(step.after)
				effects := l.Step(now, step.event)
				_, _, _, moving := l.Moving()
				got := fmt.Sprint(l.View().Pods[0].Containers[0].Nodes, " ", moving, " ", l.Counters().Moves)
				if says := said(effects, "bytes"); got != step.want || says != step.says {
					t.Errorf("step %d, %T: %s, %q; want %s, %q", i, step.event, got, says, step.want, step.says)
				}
				if _, brings := step.event.(MoveStored); len(effects.Bring) > 0 && !brings {
					t.Errorf("step %d, %T: its cpuset.mems is written", i, step.event)
				}
				if moving && l.GroupMoves(now) != nil {
					t.Errorf("step %d, %T: another one is to be moved", i, step.event)
				}
			}
		})
	}
}

// TestRoomIsMadeForANewContainer of 6Gi, where node 0 has 2.5Gi free and node 1 5.5Gi.
func TestRoomIsMadeForANewContainer(t *testing.T) {
	const sentence = "it would fit node 0 if default/c main (4Gi) were on node 1"
	pod := claimPod("web", "")
	relief := []Move{{UID: "c", Container: "main", Cgroup: "kubepods/podc/c-main", From: nodeset.Of(0), To: nodeset.Of(1), Why: "to make room for default/web main"}}
	both := append([]Move{{UID: "d", Container: "main", Cgroup: "kubepods/podd/d-main", From: nodeset.Of(0), To: nodeset.Of(1), Why: relief[0].Why}}, relief...)
	for name, test := range map[string]struct {
		yaml     string
		limit    uint64
		relieved bool
		before   Event
		moves    []Move
		want     string // in the error
		counted  uint64 // placements that failed
	}{
		"by one move":            {"dissolveGroups: true", 6, false, nil, relief, sentence, 0},
		"by two moves":           {"dissolveGroups: true", 7, false, nil, both, "node 1: 5.5Gi of 15.5Gi free, 7Gi needed", 0},
		"two, and moves are off": {"", 7, false, nil, nil, "node 1: 5.5Gi of 15.5Gi free, 7Gi needed", 1},
		"moves are off":          {"", 6, false, nil, nil, sentence, 1},
		"moved already":          {"dissolveGroups: true", 6, true, nil, nil, sentence, 1},
		"another is on its way":  {"dissolveGroups: true", 6, false, MoveContainer{Move: Move{UID: "d", Container: "main", From: nodeset.Of(0), To: nodeset.Of(1)}}, nil, sentence, 1},
		"the runtime is gone":    {"dissolveGroups: true", 6, false, Disconnected{"gone"}, nil, sentence, 1},
		"no move would do":       {"dissolveGroups: true", 12, false, nil, nil, "node 1: 5.5Gi of 15.5Gi free, 12Gi needed", 1},
		"not what needs no move": {"dissolveGroups: true", 5, false, nil, nil, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "topologyManagerPolicy: single-numa-node\n"+test.yaml)
			runs(t, l, claimed(claimPod("a", ""), "main", 8*claimGi), claimed(claimPod("b", ""), "main", 10*claimGi), claimed(claimPod("c", ""), "main", 4*claimGi),
				claimed(claimPod("d", ""), "main", claimGi))
			now := time.Unix(1, 0)
			if test.before != nil {
				l.Step(now, test.before)
			}
			if _, moves := test.before.(MoveContainer); moves != (l.moving != nil) {
				t.Fatal("nothing is on its way")
			}
			requests := l.Counters().PinningRequests
			create := claimed(pod, "main", test.limit*claimGi)
			create.Relieved = test.relieved
			effects := l.Step(now, create)
			if diff := cmp.Diff(test.moves, effects.Relief); diff != "" {
				t.Error(diff)
			}
			if err := fmt.Sprint(effects.Err); !strings.Contains(err, test.want) || (effects.Err == nil) != (test.want == "") {
				t.Errorf("the error is %s, want %q", err, test.want)
			}
			counters := l.Counters()
			if counters.PinningErrors != test.counted || (test.moves == nil) != (counters.PinningRequests > requests) || uint64(len(l.View().Rejections)) != test.counted {
				t.Errorf("%d requests, %d errors, %d rejections", counters.PinningRequests-requests, counters.PinningErrors, len(l.View().Rejections))
			}
			if test.moves == nil {
				return
			}
			for _, move := range effects.Relief {
				for _, event := range []Event{MoveContainer{Move: move}, MoveStored{}, MoveObserved{new(uint64)}} {
					l.Step(now, event)
				}
			}
			create.Relieved = true
			if got := placed(l, l.Step(now, create), "web", "main"); got != "0: pinned under single-numa-node" {
				t.Error(got)
			}
			if got, want := placed(l, Effects{}, "c", "main"), "1: pinned under single-numa-node, moved from node 0: to make room for default/web main"; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}
