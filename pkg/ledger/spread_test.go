package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// TestASpreadPodStaysEven: an init container and then the app container of a pod that is spread, a resize that finds no room
// before another pod has ended, and another configuration.
func TestASpreadPodStaysEven(t *testing.T) {
	const gi = 1 << 30
	l := newLedger(t, "topologyManagerPolicy: restricted")
	pod := func(name string) Pod {
		return l.Read(Pod{ID: "sandbox-" + name, UID: name, Namespace: "default", Name: name, CgroupParent: "/kubepods/pod" + name,
			Annotations: map[string]string{"numa.memory-manager.noderesource.dev": "spread"}})
	}
	known := func(p Pod, containers ...podinfo.Container) podinfo.Answer {
		return podinfo.Answer{Source: memoryqos.SourceKubelet, Pod: &podinfo.Pod{Ref: p.Ref(), Containers: containers}}
	}
	create := func(p Pod, name string, limit int64, answer podinfo.Answer) CreateContainer {
		return CreateContainer{Pod: p, Known: answer, Container: Container{ID: p.Name + name, PodID: p.ID, Name: name,
			CgroupsPath: p.CgroupParent + "/" + p.Name + name, Resources: Resources{MemoryLimit: &limit}}}
	}
	web, other := pod("web"), pod("other")
	facts := known(web, podinfo.Container{Name: "init", Kind: memoryqos.Init, Request: 8 * gi, Limit: 8 * gi},
		podinfo.Container{Name: "app", Kind: memoryqos.App, Request: 6 * gi, Limit: 6 * gi})
	app := create(web, "app", 6*gi, facts)
	large := int64(24 * gi)
	for i, step := range []struct {
		event Event
		want  string // of each container its parts on both nodes in whole Gi, and what it is short of
	}{
		{create(web, "init", 8*gi, facts), "init 4+4"},
		{EndContainer{ID: "webinit"}, "init 4+4"},
		{app, "init 1+1, app 3+3"},
		{create(other, "app", 14*gi, podinfo.Answer{}), "init 1+1, app 3+3"},
		{UpdateContainer{Pod: web, Container: app.Container, To: Resources{MemoryLimit: &large}}, "init 1+1, app 7+7 short of 9Gi of memory"},
		{EndPod{other}, "init 1+1, app 12+12"},
		{Reconfigure{Config: resolve(t, l, "topologyManagerPolicy: restricted\nallowedAnnotations: []")}, "init 1+1, app 12+12"},
		{Reconfigure{Config: resolve(t, l, "topologyManagerPolicy: restricted\ndra: {enabled: true, share: 5%}")}, "init 1+1, app 12+12"},
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
				if len(c.Short) > 0 {
					got += " short of " + c.Short.String()
				}
			}
		}
		if got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}
