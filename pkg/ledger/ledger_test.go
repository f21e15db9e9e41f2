package ledger

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// events makes random events of a node's life. Two with the same seed make the same.
type events struct {
	*rand.Rand
	pods map[string]map[string]Container // by the pod's number, by name
	next int
}

func (r *events) pod(name string) Pod {
	class := []string{"", "burstable/", "besteffort/"}[len(name)%3]
	return Pod{ID: "sandbox-" + name, UID: "uid-" + name, Namespace: "default", Name: name, CgroupParent: "/kubepods/" + class + "poduid-" + name}
}

func (r *events) limit() *int64 {
	limit := int64(1+r.IntN(6)) << 30
	return &limit
}

func (r *events) event() Event {
	names := make([]string, 0, len(r.pods))
	for name := range r.pods {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) < 2 || r.IntN(8) == 0 {
		r.next++
		name := strings.Repeat("p", 1+r.IntN(3)) + fmt.Sprint(r.next)
		r.pods[name] = map[string]Container{}
		return RunPod{Pod: r.pod(name)}
	}
	name := names[r.IntN(len(names))]
	pod, containers := r.pod(name), r.pods[name]
	which := string(rune('a' + r.IntN(3)))
	c, lives := containers[which]
	switch roll := r.IntN(20); {
	case roll == 0:
		delete(r.pods, name)
		return EndPod{Pod: pod, Gone: true}
	case roll == 1:
		return FinishUpdate{ID: c.ID}
	case roll == 2:
		return PodFacts{UID: pod.UID, PodInfo: pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{
			Ref: pod.Ref(), Containers: []pods.Container{{Name: "a", Kind: memoryqos.Kind(r.IntN(3)), Request: 1 << 30, Limit: 2 << 30}},
		}}}
	case !lives || roll < 5:
		r.next++
		c = Container{ID: fmt.Sprint(name, which, r.next), PodID: pod.ID, Name: which, Resources: Resources{MemoryLimit: r.limit()}}
		c.CgroupsPath = pod.CgroupParent + "/" + c.ID
		containers[which] = c
		return CreateContainer{Pod: pod, Container: c}
	case roll < 8:
		return StartContainer{Pod: pod, Container: c}
	case roll < 11:
		return UpdateContainer{Pod: pod, Container: c, To: Resources{MemoryLimit: r.limit()}}
	case roll < 13:
		bytes := uint64(1+r.IntN(6)) << 30
		return Observed{ID: c.ID, Revision: uint64(1 + r.IntN(3)), Limit: bytes}
	case roll < 15:
		return SyncContainers{IDs: []string{c.ID}}
	case roll < 16:
		return Presence{Gone: []CgroupRef{{ID: c.ID, Revision: uint64(1 + r.IntN(3))}}, Present: []CgroupRef{{UID: pod.UID, ID: pod.ID}}}
	case roll < 17:
		return Raise{ID: c.ID, Bytes: 5 << 30}
	}
	delete(containers, which)
	return EndContainer{ID: c.ID}
}

// The machines of newLedger and newLedgerOn; every node has 16Gi.
const (
	twoNodes = `
nodes:
  - {id: 0, memory: 16Gi, cpus: 0-7, distances: [10, 21]}
  - {id: 1, memory: 16Gi, cpus: 8-15, distances: [21, 10]}
`
	threeNodes = `
nodes:
  - {id: 0, memory: 16Gi, cpus: 0-7, distances: [10, 21, 21]}
  - {id: 1, memory: 16Gi, cpus: 8-15, distances: [21, 10, 21]}
  - {id: 2, memory: 16Gi, cpus: 16-23, distances: [21, 21, 10]}
`
)

func newLedger(t *testing.T, yaml string) *Ledger {
	t.Helper()
	return newLedgerOn(t, twoNodes, yaml)
}

func newLedgerOn(t *testing.T, on, yaml string) *Ledger {
	t.Helper()
	_, resolved := resolvedOn(t, on, yaml)
	l, err := New(time.Unix(0, 0), Options{Config: resolved, Raises: map[string]uint64{}})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// after are the effects of the last of these events, which come a second after one another.
func (l *Ledger) after(events ...Event) (effects Effects) {
	for i, event := range events {
		effects = l.Step(time.Unix(int64(i), 0), l.asOfNow(event))
	}
	return effects
}

// asOfNow is an observation of this moment, unless it has a revision.
func (l *Ledger) asOfNow(event Event) Event {
	switch e := event.(type) {
	case Observed:
		if p := l.pods[e.UID]; p != nil && e.Revision == 0 {
			e.Revision = p.Revision
		}
		return e
	case Presence:
		e.Gone = slices.Clone(e.Gone)
		for i, at := range e.Gone {
			if c := l.containers[at.ID]; c != nil && at.Revision == 0 {
				e.Gone[i].Revision = c.Revision
			}
		}
		return e
	}
	return event
}

// checkDerived derives all pods again: what the last Steps have left alone must not have changed.
func checkDerived(t *testing.T, l *Ledger, event Event) {
	t.Helper()
	for _, p := range l.living {
		again := l.derive(p)
		for i := range again.runs {
			again.runs[i].written = p.derived.runs[i].written
		}
		if !reflect.DeepEqual(p.derived, again) {
			t.Fatalf("after %T pod %s has\n%+v\nand it follows\n%+v", event, p.Name, p.derived, again)
		}
		if l.manager != nil && !l.manager.Allocations(p.Key()).Equal(p.stored) {
			t.Fatalf("after %T pod %s has\n%+v\nand the state file\n%+v", event, p.Name, l.manager.Allocations(p.Key()), p.stored)
		}
	}
}

// reopened goes on from the JSON of a snapshot, and forgets the ledger itself.
func reopened(t *testing.T, l *Ledger) *Ledger {
	t.Helper()
	text, err := json.Marshal(l.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	var s State
	in := json.NewDecoder(bytes.NewReader(text))
	if in.DisallowUnknownFields(); in.Decode(&s) != nil {
		t.Fatal(in.Decode(&s))
	}
	again, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// updates are what the runtime is asked for containers, none of which has memory that moves.
func (l *Ledger) updates(ids ...string) []Update {
	event := SyncContainers{IDs: ids, Usage: map[string]Usage{}}
	for _, dir := range l.Needs(event, &Gathered{}).Usage {
		event.Usage[dir] = Usage{}
	}
	return l.Step(time.Unix(1000, 0), event).Updates
}

// resolvedOn is a configuration on a machine.
func resolvedOn(t *testing.T, on, yaml string) (machine.Machine, config.Resolved) {
	t.Helper()
	described, err := machine.Describe("machine", []byte(on))
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Files(nil).Parse("config", []byte("reservedMemory: 0:memory=512Mi;1:memory=512Mi\nkubeReserved: {memory: 924Mi}\n"+yaml))
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := c.Resolve(described.Machine)
	if err != nil {
		t.Fatal(err)
	}
	return described.Machine, resolved
}

var eventSeed = flag.Uint64("seed", 1, "seed of the random events")

// The same events give the same effects, and at any moment all values follow from what lives: a whole look gives what the
// single steps gave.
func TestTheSameEventsGiveTheSameEffects(t *testing.T) {
	steps := 1500
	if testing.Short() {
		steps = 500
	}
	for _, yaml := range []string{"", "topologyManagerPolicy: restricted", "topologyManagerScope: pod\ntopologyManagerPolicy: restricted\npodLevelResourceManagers: true", "memoryReservationPolicy: HardReservation\nonUnsatisfiable: Unpinned\nmaxMigrationBytes: 4Gi"} {
		one, other, opened := newLedger(t, yaml), newLedger(t, yaml), newLedger(t, yaml)
		first := &events{rand.New(rand.NewPCG(*eventSeed, 0)), map[string]map[string]Container{}, 0}
		second := &events{rand.New(rand.NewPCG(*eventSeed, 0)), map[string]map[string]Container{}, 0}
		files := map[string]cgroup.Target{}
		var shown View
		var err error
		for i := range steps {
			now := time.Unix(int64(i), 0)
			event := first.event()
			if i%50 == 0 { // JSON takes its time
				opened = reopened(t, opened)
			} else if opened, err = Open(opened.Snapshot()); err != nil {
				t.Fatal(err)
			}
			after := opened.Step(now, event)
			effects, again := one.Step(now, event), other.Step(now, second.event())
			if !reflect.DeepEqual(effects, after) {
				t.Fatalf("%s: step %d, %T: the effects are\n%+v\nand from a snapshot\n%+v", yaml, i, event, effects, after)
			}
			checkDerived(t, one, event)
			before := shown
			if shown = one.View(); effects.ViewStays && !reflect.DeepEqual(before, shown) {
				t.Fatalf("%s: step %d, %T: the View was\n%+v\nand is\n%+v", yaml, i, event, before, shown)
			}
			if !reflect.DeepEqual(effects, again) {
				t.Fatalf("%s: step %d, %T: the effects are\n%+v\nand\n%+v", yaml, i, event, effects, again)
			}
			for _, ended := range effects.Ended {
				delete(files, ended)
			}
			for _, target := range effects.Files {
				files[target.Cgroup] = target
			}
			if i%50 == 0 {
				inside := 0
				for _, target := range one.Targets() {
					got, given := files[target.Cgroup]
					if !given && target.Level != cgroup.LevelContainer { // the first sums are of nothing
						got = target
						got.Values = memoryqos.Values{}
					}
					if !sameTarget(got, target) {
						t.Fatalf("%s: step %d, %T: %s should hold %+v, the steps gave %+v", yaml, i, event, target.Cgroup, target, got)
					}
					if target.Level == cgroup.LevelContainer {
						inside++
					}
				}
				for _, got := range files {
					if got.Level == cgroup.LevelContainer {
						inside--
					}
				}
				if inside != 0 {
					t.Fatalf("%s: step %d, %T: the steps gave %d containers that have ended", yaml, i, event, -inside)
				}
			}
		}
	}
}

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
