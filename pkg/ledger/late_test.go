package ledger

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

// TestLateEventsDecideNothing has, for each kind of event, one that arrives after what made it late: the end of its connection, a newer
// event about the same container or pod, or the container's end.
func TestLateEventsDecideNothing(t *testing.T) {
	const gi = 1 << 30
	web := claimPod("web", "")
	older := web
	older.ID = "sandbox-before"
	with := func(id string, limit uint64, epoch, seq uint64) CreateContainer {
		create := claimed(web, "main", limit)
		create.Container.ID, create.Container.CgroupsPath = id, web.CgroupParent+"/"+id
		create.Header = Header{Epoch: epoch, Seq: seq}
		return create
	}
	container := with("one", gi, 0, 0).Container
	start := func(id string, epoch, seq uint64) StartContainer {
		return StartContainer{Pod: web, Container: with(id, gi, 0, 0).Container, Header: Header{Epoch: epoch, Seq: seq}}
	}
	resize := func(limit uint64, epoch, seq uint64) UpdateContainer {
		return UpdateContainer{Pod: web, Container: container, To: with("one", limit, 0, 0).Container.Resources, Header: Header{Epoch: epoch, Seq: seq}}
	}
	connected := func(epoch uint64) Connected { return Connected{Epoch: epoch} }
	running := []Event{connected(1), Synchronize{Header: Header{Epoch: 1, Seq: 1}}, with("one", gi, 1, 5), start("one", 1, 6)}
	second := claimed(web, "second", gi)
	second.Header = Header{Epoch: 1, Seq: 9}
	// Two containers whose limits are the pod's share it.
	shares := append(running, UpdatePod{Pod: web, Limit: gi, Header: Header{Epoch: 1, Seq: 8}}, second)
	for name, test := range map[string]struct {
		before []Event
		late   Event
		err    error // nil for an event that nobody waits for
	}{
		"a list of a connection that has ended":        {append(running, Disconnected{}), Synchronize{Header: Header{Epoch: 1, Seq: 2}}, errConnectionEnded},
		"a list of the connection before":              {append(running, connected(2)), Synchronize{Header: Header{Epoch: 1, Seq: 7}}, errConnectionEnded},
		"a create of the connection before":            {append(running, connected(2)), with("two", gi, 1, 7), errConnectionEnded},
		"a start of the connection before":             {append(running, connected(2)), start("two", 1, 7), errConnectionEnded},
		"a resize of the connection before":            {append(running, connected(2)), resize(2*gi, 1, 7), errConnectionEnded},
		"a sandbox of the connection before":           {append(running, connected(2)), RunPod{Pod: claimPod("new", ""), Header: Header{Epoch: 1, Seq: 7}}, errConnectionEnded},
		"a pod's resize of the connection before":      {append(running, connected(2)), UpdatePod{Pod: web, Limit: 9 * gi, Header: Header{Epoch: 1, Seq: 7}}, errConnectionEnded},
		"an end of a resize of the connection before":  {append(running, resize(2*gi, 1, 7), connected(2)), FinishUpdate{ID: "one", Header: Header{Epoch: 1, Seq: 8}}, errConnectionEnded},
		"a failed resize of the connection before":     {append(running, resize(2*gi, 1, 7), connected(2)), FailUpdate{ID: "one", Header: Header{Epoch: 1, Seq: 7}}, errConnectionEnded},
		"a create after the next one":                  {append(running, with("two", gi, 1, 8)), with("one", 2*gi, 1, 7), errOvertaken},
		"a create after the next one has started":      {append(running, with("two", gi, 1, 8), start("two", 1, 9)), with("late", 2*gi, 1, 7), errOvertaken},
		"a create after its own end":                   {append(running, EndContainer{ID: "two", Header: Header{Epoch: 1, Seq: 8}}), with("two", 2*gi, 1, 7), errOvertaken},
		"a start after the next container's create":    {append(running, with("two", gi, 1, 8)), start("one", 1, 7), nil},
		"a start after its own end":                    {append(running, EndContainer{ID: "one", Header: Header{Epoch: 1, Seq: 8}}), start("one", 1, 7), nil},
		"a resize after the next one":                  {append(running, resize(2*gi, 1, 8)), resize(3*gi, 1, 7), errOvertaken},
		"a resize after the next container's create":   {append(running, with("two", gi, 1, 8)), resize(3*gi, 1, 7), errOvertaken},
		"a resize after its container's end":           {append(running, EndContainer{ID: "one", Header: Header{Epoch: 1, Seq: 8}}), resize(3*gi, 1, 7), errOvertaken},
		"an end of a resize after the next resize":     {append(running, resize(2*gi, 1, 7), resize(3*gi, 1, 9)), FinishUpdate{ID: "one", Header: Header{Epoch: 1, Seq: 8}}, nil},
		"a failed resize after the next resize":        {append(running, resize(2*gi, 1, 7), resize(3*gi, 1, 9)), FailUpdate{ID: "one", Header: Header{Epoch: 1, Seq: 7}}, nil},
		"a sandbox after the next one":                 {running, RunPod{Pod: older, Header: Header{Epoch: 1, Seq: 3}}, errOvertaken},
		"a pod's resize after the next one":            {shares, UpdatePod{Pod: web, Limit: 9 * gi, Header: Header{Epoch: 1, Seq: 7}}, nil},
		"a look at the pod's limit before its resize":  {shares, Observed{UID: web.UID, ID: web.ID, Revision: 1, Limit: 9 * gi}, nil},
		"a look at a container before its start":       {append(running, Presence{Present: []CgroupRef{{ID: "one"}}}), Presence{Gone: []CgroupRef{{ID: "one", Revision: 1}}}, nil},
		"a start after its container's cgroup is gone": {append(running, Presence{Present: []CgroupRef{{ID: "one"}}}, RunPod{Pod: claimPod("other", ""), Header: Header{Epoch: 1, Seq: 9}}, Presence{Gone: []CgroupRef{{ID: "one", Revision: 2}}}), start("one", 1, 7), nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "topologyManagerPolicy: single-numa-node")
			for _, event := range test.before {
				if err := l.Step(time.Unix(1, 0), event).Err; err != nil {
					t.Fatal(err)
				}
			}
			before, _ := l.Allocations()
			pods := l.View().Pods
			effects := l.Step(time.Unix(2, 0), test.late)
			if !errors.Is(effects.Err, test.err) {
				t.Errorf("the error is %v, want %v", effects.Err, test.err)
			}
			if after, _ := l.Allocations(); !reflect.DeepEqual(after, before) {
				t.Errorf("the allocations are\n%+v, they were\n%+v", after, before)
			}
			if after := l.View().Pods; !reflect.DeepEqual(after, pods) {
				t.Errorf("the pods are\n%+v, they were\n%+v", after, pods)
			}
			if len(effects.Files)+len(effects.Ended)+len(effects.Removed)+len(effects.Updates)+len(effects.Journal) > 0 || !effects.Answer.Empty() {
				t.Errorf("it has effects: %+v", effects)
			}
		})
	}
}

// An end names an id that is never used again, so that it is true in every connection.
func TestAnEndIsNeverLate(t *testing.T) {
	l := newLedger(t, "topologyManagerPolicy: single-numa-node")
	web := claimPod("web", "")
	create := claimed(web, "main", 1<<30)
	create.Header = Header{Epoch: 1, Seq: 2}
	l.after(Connected{Epoch: 1}, create, Connected{Epoch: 2}, EndContainer{ID: create.Container.ID, Header: Header{Epoch: 1, Seq: 3}})
	if c := l.View().Pods[0].Containers[0]; c.State != Stopped {
		t.Errorf("the container is %s", c.State)
	}
	l.after(EndPod{Pod: web, Gone: true})
	if pods := l.View().Pods; len(pods) > 0 {
		t.Errorf("the pod lives: %+v", pods[0])
	}
}

// Two containers of 4Gi share a pod's limit of 8Gi. The pod's limit is read, and before the result arrives one of them is resized to 8Gi.
func TestALookAtAPodsLimitBeforeAResize(t *testing.T) {
	l, now := newLedger(t, "topologyManagerPolicy: single-numa-node"), time.Unix(1, 0)
	web, before, after := claimPod("web", ""), 8*claimGi, 12*claimGi
	l.after(Connected{Epoch: 1}, Synchronize{Header: Header{1, 1}}, RunPod{Pod: web, Header: Header{1, 2}})
	one, two := claimed(web, "one", 4*claimGi), claimed(web, "two", 4*claimGi)
	for i, create := range []CreateContainer{one, two} {
		create.PodLimit, create.Header, create.Siblings = &before, Header{1, uint64(3 + 2*i)}, Presence{Present: l.pods["web"].siblings(create.Container.Name)}
		l.after(create, StartContainer{Pod: web, Container: create.Container, Header: Header{1, uint64(4 + 2*i)}})
	}
	looked := l.CgroupsOf(map[string]bool{l.pods[web.UID].path.Pod: true})[2:] // the pod
	to := int64(before)
	l.after(UpdateContainer{Pod: web, Container: one.Container, To: Resources{MemoryLimit: &to}, Header: Header{1, 7},
		Facts: Facts{PodLimit: &after, Siblings: Presence{Present: l.pods["web"].siblings("one")}}}, FinishUpdate{ID: one.Container.ID, Header: Header{1, 8}})
	l.Step(now, Observed{UID: web.UID, ID: web.ID, Revision: looked[0].Revision, Limit: before})
	for _, name := range []string{"one", "two"} {
		if l.manager.Blocks(web.UID, name) == nil {
			t.Errorf("%s has lost its allocation: %s", name, l.pods[web.UID].container(name).Pinning)
		}
	}
}

// Whatever came of an update, the runtime may have written its record: the limit is read again.
func TestTheLimitIsReadAfterAnUpdate(t *testing.T) {
	for name, ended := range map[string]Event{
		"applied":        FinishUpdate{ID: "web-main"},
		"failed":         FailUpdate{ID: "web-main"},
		"never reported": FinishUpdate{},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := newLedger(t, "topologyManagerPolicy: single-numa-node"), time.Unix(1, 0)
			create, to := claimed(claimPod("web", ""), "main", claimGi), int64(2*claimGi)
			for _, event := range []Event{create, StartContainer{Pod: create.Pod, Container: create.Container},
				UpdateContainer{Pod: create.Pod, Container: create.Container, To: Resources{MemoryLimit: &to}}} {
				if err := l.Step(now, event).Err; err != nil {
					t.Fatal(err)
				}
			}
			later := now.Add(2 * updateTakes)
			read := l.Step(later, ended).ReadLimits
			if len(read) != 1 || read[0].ID != "web-main" {
				t.Fatalf("to read: %+v", read)
			}
			l.Step(later, Observed{ID: read[0].ID, Revision: read[0].Revision, Limit: claimGi})
			if got := l.containers["web-main"].Limit; got != claimGi {
				t.Errorf("the limit is %d", got)
			}
		})
	}
}

// Where this process is does not depend on what the runtime has changed since.
func TestTheDaemonsContainerIsFoundWhileItChanges(t *testing.T) {
	l := newLedger(t, "topologyManagerPolicy: single-numa-node")
	create, to := claimed(claimPod("web", "burstable/"), "main", claimGi), int64(2*claimGi)
	create.Container.Resources.OOMScoreAdj = new(int64(999))
	l.after(create, StartContainer{Pod: create.Pod, Container: create.Container})
	place, _ := l.CgroupOf("web-main")
	if len(l.High()) != 1 {
		t.Fatal("it has no memory.high")
	}
	l.after(UpdateContainer{Pod: create.Pod, Container: create.Container, To: Resources{MemoryLimit: &to}},
		Observed{ID: place.ID, Revision: place.Revision, Limit: claimGi, Own: true})
	if c := l.containers["web-main"]; !c.Own || c.Limit != 2*claimGi || len(l.High()) > 0 {
		t.Errorf("own: %v, the limit is %d, and these have a memory.high: %v", c.Own, c.Limit, l.High())
	}
}
