package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestASpreadPodStaysEven: an init container and then the app container of a pod that is spread, a resize that finds no room
// before another pod has ended, and another configuration.
func TestASpreadPodStaysEven(t *testing.T) {
	const gi = 1 << 30
	l := newLedger(t, "topologyManagerPolicy: restricted")
	pod := func(name string) Pod {
		return l.reader()(Pod{ID: "sandbox-" + name, UID: name, Namespace: "default", Name: name, CgroupParent: "/kubepods/pod" + name,
			Annotations: map[string]string{"numa.memory-manager.noderesource.dev": "spread"}})
	}
	known := func(p Pod, containers ...pods.Container) pods.Answer {
		return pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{Ref: p.Ref(), Containers: containers}}
	}
	create := func(p Pod, name string, limit int64, answer pods.Answer) CreateContainer {
		return CreateContainer{Pod: p, Known: answer, Container: Container{ID: p.Name + name, PodID: p.ID, Name: name,
			CgroupsPath: p.CgroupParent + "/" + p.Name + name, Resources: Resources{MemoryLimit: &limit}}}
	}
	web, other := pod("web"), pod("other")
	facts := known(web, pods.Container{Name: "init", Kind: memoryqos.Init, Request: 8 * gi, Limit: 8 * gi},
		pods.Container{Name: "app", Kind: memoryqos.App, Request: 6 * gi, Limit: 6 * gi})
	app := create(web, "app", 6*gi, facts)
	large := int64(24 * gi)
	for i, step := range []struct {
		event Event
		want  string // of each container its parts on both nodes in whole Gi, and what it is short of
	}{
		{create(web, "init", 8*gi, facts), "init 4+4"},
		{EndContainer{ID: "webinit"}, "init 4+4"},
		{app, "init 1+1, app 3+3"},
		{create(other, "app", 14*gi, pods.Answer{}), "init 1+1, app 3+3"},
		{UpdateContainer{Pod: web, Container: app.Container, To: Resources{MemoryLimit: &large}}, "init 1+1, app 7+7 short of 9Gi of memory"},
		{EndPod{Pod: other, Gone: true}, "init 1+1, app 12+12"},
		{Reconfigure{Config: resolve(t, l, "topologyManagerPolicy: restricted\nannotationRules: [{namespaces: ['*'], allowedAnnotations: []}]")}, "init 1+1, app 12+12"},
		{Reconfigure{Config: resolve(t, l, "topologyManagerPolicy: restricted\ndra: {enabled: true, shares: [{limits: {memory: 5%}}]}")}, "init 1+1, app 12+12"},
	} {
		if effects := l.Step(time.Unix(int64(i), 0), step.event); effects.Err != nil {
			t.Fatalf("step %d: %v", i, effects.Err)
		}
		got := ""
		for _, view := range l.View().Pods {
			for _, c := range view.Containers {
				if view.Name != "web" || len(c.Blocks) == 0 {
					continue
				}
				if got != "" {
					got += ", "
				}
				got += c.Name + " "
				for j, part := range c.Blocks[0].PerNode {
					if j > 0 {
						got += "+"
					}
					got += fmt.Sprint(part.Bytes / gi)
				}
				if len(c.PendingResize) > 0 {
					got += " short of " + c.PendingResize.String()
				}
			}
		}
		if got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

// TestASmallPodClosesNoNodes: the nodes of a container that is spread are closed to containers on one of them. A node has 15.5Gi for
// pods, of which a pod must ask for a sixteenth on each of its nodes to be spread.
func TestASmallPodClosesNoNodes(t *testing.T) {
	const mi, gi = uint64(1 << 20), uint64(1 << 30)
	const small = "0: pinned under restricted, not spread: its pod asks for less than 1/16 of each of two nodes"
	spreads := func(name string, whole uint64) Pod {
		pod := claimPod(name, "")
		pod.MemoryLimit, pod.Annotations = whole, map[string]string{"numa.memory-manager.noderesource.dev": "spread"}
		return pod
	}
	pages := func(create CreateContainer, size string, bytes uint64) CreateContainer {
		create.Container.Resources.Hugepages = []HugepageLimit{{PageSize: size, Limit: bytes}}
		return create
	}
	resize := func(create CreateContainer, to uint64) UpdateContainer {
		bytes := int64(to)
		return UpdateContainer{Pod: create.Pod, Container: create.Container, To: Resources{MemoryLimit: &bytes}}
	}
	var many []Event
	for i := range 100 {
		many = append(many, claimed(spreads(fmt.Sprint("small-", i), 0), "app", 8*mi))
	}
	const withPages = `
nodes:
  - {id: 0, memory: 16Gi, cpus: 0-7, distances: [10, 21], hugepages: {2Mi: 4}}
  - {id: 1, memory: 16Gi, cpus: 8-15, distances: [21, 10], hugepages: {2Mi: 4}}
`
	const manyPages = `
nodes:
  - {id: 0, memory: 16Gi, cpus: 0-7, distances: [10, 21], hugepages: {1Gi: 4}}
  - {id: 1, memory: 16Gi, cpus: 8-15, distances: [21, 10], hugepages: {1Gi: 4}}
`
	web := claimed(spreads("web", 0), "app", 8*gi)
	for name, test := range map[string]struct {
		machine string
		events  []Event
		want    string // where the last of its containers is
		other   string // where a container of 2Gi of another pod is then
	}{
		"some pages":             {twoNodes, []Event{claimed(spreads("web", 0), "app", 8*mi)}, small, "0"},
		"just too small":         {twoNodes, []Event{claimed(spreads("web", 0), "app", 1984*mi-4096)}, small, "0"},
		"as large as it must be": {twoNodes, []Event{claimed(spreads("web", 0), "app", 1984*mi)}, "0-1: pinned under restricted, spread evenly", "refused"},
		"fewer nodes":            {threeNodes, []Event{claimed(spreads("web", 0), "app", 2*gi)}, "0-1: pinned under restricted, spread evenly", "2"},
		"many":                   {twoNodes, append(many, claimed(spreads("web", 0), "app", 8*mi)), small, "0"},
		"several containers":     {twoNodes, []Event{claimed(spreads("web", 24*mi), "a", 8*mi), claimed(spreads("web", 24*mi), "app", 16*mi)}, small, "0"},
		"huge pages of both nodes, as without the annotation": {withPages, []Event{pages(claimed(spreads("web", 0), "app", 8*mi), "2MB", 16*mi)},
			"0-1: pinned under restricted, not spread: its pod asks for less than 1/16 of each of two nodes", "refused"},
		"half of a few huge pages": {withPages, []Event{pages(claimed(spreads("web", 0), "app", 8*mi), "2MB", 8*mi)}, small, "0"},
		"many huge pages":          {manyPages, []Event{pages(claimed(spreads("web", 0), "app", 64*mi), "1GB", 4*gi)}, "0-1: pinned under restricted, spread evenly", "refused"},
		"a small container of a large pod": {twoNodes, []Event{claimed(spreads("web", 8*gi), "init", 64*mi), claimed(spreads("web", 8*gi), "app", 8*gi-64*mi)},
			"0-1: pinned under restricted, spread evenly", "refused"},
		"beside a large one of its pod": {twoNodes, []Event{web, claimed(spreads("web", 0), "side", 8*mi)}, "0-1: pinned under restricted, spread evenly", "refused"},
		"resized, and still large":      {twoNodes, []Event{web, resize(web, 4*gi)}, "0-1: pinned under restricted, spread evenly", "refused"},
		"resized to some pages":         {twoNodes, []Event{web, resize(web, 8*mi)}, "0-1: pinned under restricted", "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedgerOn(t, test.machine, "topologyManagerPolicy: restricted\nonUnsatisfiable: Reject")
			runs(t, l)
			var effects Effects
			last := "app"
			for _, event := range test.events {
				if effects = l.Step(time.Unix(1, 0), event); effects.Err != nil {
					break
				}
				if create, ok := event.(CreateContainer); ok {
					last = create.Container.Name
				}
			}
			got := "rejected"
			if effects.Err == nil {
				got = placed(l, effects, "web", last)
			}
			if got != test.want {
				t.Errorf("it is placed on %s, want %s", got, test.want)
			}
			other := "refused"
			if effects := l.Step(time.Unix(2, 0), claimed(claimPod("db", ""), "main", 2*gi)); effects.Err == nil {
				other, _, _ = strings.Cut(placed(l, effects, "db", "main"), ":")
			}
			if other != test.other {
				t.Errorf("the other pod is placed on %s, want %s", other, test.other)
			}
		})
	}
}
