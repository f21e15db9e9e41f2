package ledger

import (
	"reflect"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestTheSameFactsInAnotherCopy change nothing: what an event says decides, not where it is in memory.
func TestTheSameFactsInAnotherCopy(t *testing.T) {
	l := newLedger(t, "")
	now := time.Unix(1000, 0)
	limit := int64(1) << 30
	pod := Pod{ID: "sandbox", UID: "uid", Namespace: "default", Name: "web", CgroupParent: "/kubepods/burstable/poduid"}
	container := Container{ID: "id", PodID: pod.ID, Name: "main", CgroupsPath: pod.CgroupParent + "/id", Resources: Resources{MemoryLimit: &limit}}
	facts := func(request uint64, source memoryqos.Source) PodFacts {
		return PodFacts{UID: "uid", PodInfo: pods.Answer{Source: source, Pod: &pods.Pod{
			Ref: pod.Ref(), Class: memoryqos.Burstable,
			Containers: []pods.Container{{Name: "main", Kind: memoryqos.App, Request: request, Limit: uint64(limit)}},
		}}}
	}
	l.Step(now, CreateContainer{Pod: pod, Container: container})
	l.Step(now, StartContainer{Pod: pod, Container: container})
	for _, test := range []struct {
		name  string
		event PodFacts
		bring int
		news  bool // a view shows something else
	}{
		{"first", facts(1<<29, memoryqos.SourceKubelet), 1, true},
		{"a copy", facts(1<<29, memoryqos.SourceKubelet), 0, false},
		{"another source", facts(1<<29, memoryqos.SourceAPIServer), 0, true},
		{"another request", facts(1<<28, memoryqos.SourceAPIServer), 1, true},
	} {
		before := l.View()
		effects := l.Step(now, test.event)
		if len(effects.Sync) != test.bring || reflect.DeepEqual(l.View(), before) == test.news {
			t.Errorf("%s: %q are to be brought, want %d; news: %t, want %t", test.name, effects.Sync, test.bring, !test.news, test.news)
		}
	}
}
