package ledger

import (
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// keepOff keeps a container off nodes, as a deficit does.
type keepOff struct {
	id    string
	nodes nodeset.Set
}

func (e keepOff) apply(l *Ledger) {
	if c := l.containers[e.id]; c != nil {
		l.exclude(c, e.nodes, 1<<20)
	}
}

// What a container's cpuset.mems should be after events, and that its runtime is asked for it.
func TestAContainerIsKeptOffNodes(t *testing.T) {
	const relieves, forbids = "rebalance: {deficits: On, maxBytes: 4Gi}", "rebalance: {deficits: Off}"
	off := func(nodes ...int) func(*Ledger, Pod, Container) Event {
		return func(*Ledger, Pod, Container) Event {
			return keepOff{"id", nodeset.Of(nodes...)}
		}
	}
	reload := func(yaml string) func(*Ledger, Pod, Container) Event {
		return func(l *Ledger, _ Pod, _ Container) Event { return Reconfigure{Config: resolve(t, l, yaml)} }
	}
	update := func(to Resources) func(*Ledger, Pod, Container) Event {
		return func(_ *Ledger, p Pod, c Container) Event { return UpdateContainer{Pod: p, Container: c, To: to} }
	}
	found := func(mems string, ours bool) func(*Ledger, Pod, Container) Event {
		return func(_ *Ledger, p Pod, c Container) Event {
			c.Resources.Mems, c.State = mems, Running
			files := Files{Mems: &mems, Ours: map[cgroup.Knob]bool{cgroup.CpusetMems: ours}}
			return Synchronize{Pods: []Pod{p}, Containers: []Container{c}, Found: Found{Files: map[string]Files{"id": files}}}
		}
	}
	bytes := int64(1 << 30)
	for name, test := range map[string]struct {
		yaml, class string
		annotation  string
		resources   Resources
		events      []func(*Ledger, Pod, Container) Event
		want        string
		moved       uint64
	}{
		"Burstable":                 {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0)}, want: "1", moved: 1 << 20},
		"BestEffort":                {yaml: relieves, class: "besteffort/", events: []func(*Ledger, Pod, Container) Event{off(1)}, want: "0", moved: 1 << 20},
		"Guaranteed":                {yaml: relieves, resources: Resources{MemoryLimit: &bytes}, events: []func(*Ledger, Pod, Container) Event{off(0)}, want: "0"},
		"off":                       {yaml: forbids, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0)}},
		"DryRun":                    {class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0)}},
		"a dry run":                 {yaml: relieves + "\nprofile: Observe", class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0)}},
		"the annotation none":       {yaml: relieves, class: "burstable/", annotation: "none", events: []func(*Ledger, Pod, Container) Event{off(0)}},
		"the annotation preferred":  {yaml: relieves, class: "burstable/", annotation: "preferred", events: []func(*Ledger, Pod, Container) Event{off(0)}},
		"the annotation spread":     {yaml: relieves, class: "burstable/", annotation: "spread", events: []func(*Ledger, Pod, Container) Event{off(0)}},
		"nodes by the kubelet":      {yaml: relieves, class: "burstable/", resources: Resources{Mems: "0"}, events: []func(*Ledger, Pod, Container) Event{off(0)}},
		"all nodes":                 {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0, 1)}},
		"back":                      {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0), off()}, want: "0-1"},
		"a resize":                  {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0), update(Resources{MemoryLimit: &bytes})}, want: "1", moved: 1 << 20},
		"nodes by an update":        {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0), update(Resources{Mems: "0"})}},
		"the configuration forbids": {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0), reload(forbids)}, want: "0-1"},
		"and allows it again":       {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0), reload(forbids), reload(relieves)}, want: "0-1"},
		"another configuration":     {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0), reload(relieves + "\nguaranteedHeadroom: 0")}, want: "1", moved: 1 << 20},
		"found":                     {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{found("1", true)}, want: "1"},
		"found, and now forbidden":  {yaml: forbids, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{found("1", true)}, want: "0-1"},
		"found by another writer":   {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{found("1", false)}},
		"found and back":            {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{found("1", true), off()}, want: "0-1"},
		"found with all":            {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{found("0-1", true)}, want: "0-1"},
		"the runtime connects":      {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0), found("1", true)}, want: "1", moved: 1 << 20},
		"the runtime has lost it":   {yaml: relieves, class: "burstable/", events: []func(*Ledger, Pod, Container) Event{off(0), found("", true)}, want: "1", moved: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.yaml)
			now := time.Unix(1, 0)
			pod := annotated(Pod{ID: "sandbox", UID: "uid", Namespace: "default", Name: "pod", CgroupParent: "/kubepods/" + test.class + "poduid"},
				"numa", test.annotation)
			c := Container{ID: "id", PodID: pod.ID, Name: "main", CgroupsPath: pod.CgroupParent + "/id", Resources: test.resources}
			if _, known := test.events[0](l, pod, c).(Synchronize); !known {
				l.Step(now, CreateContainer{Pod: pod, Container: c})
				l.Step(now, StartContainer{Pod: pod, Container: c})
			}
			var asked string
			for _, event := range test.events {
				effects := l.Step(now, event(l, pod, c))
				for _, update := range l.updates(effects.Sync...) {
					asked = update.CpusetMems
				}
			}
			given := l.containers["id"]
			if got := given.file().Mems; got != test.want {
				t.Errorf("cpuset.mems should be %q, want %q", got, test.want)
			}
			if test.want != "" && test.class != "" && given.Record.Mems != test.want && asked != test.want {
				t.Errorf("the runtime has %q and is asked for %q, want %q", given.Record.Mems, asked, test.want)
			}
			view := l.View().Pods[0].Containers[0]
			stays := test.want == "0" || test.want == "1"
			if got := view.KeptOff; (got != nil) != (stays && test.class != "") || got != nil && (got.Moved != test.moved || got.Mems.String() != test.want) {
				t.Errorf("the view has %+v", got)
			}
			if kept := view.KeptOff; kept != nil {
				does := "kept off"
				if test.moved > 0 {
					does = "1Mi of it were moved off"
				}
				off := map[string]string{"0": "1", "1": "0"}[test.want]
				want := does + " node " + off + " at 1970-01-01 00:00:01 UTC, for what is allocated there to pinned containers"
				if got := kept.String(); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
}
