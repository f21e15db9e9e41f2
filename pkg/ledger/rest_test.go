package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// resolve reads a configuration for the machine of newLedger.
func resolve(t *testing.T, l *Ledger, yaml string) config.Resolved {
	t.Helper()
	c, err := config.Files(nil).Parse("config", []byte("reservedMemory: 0:memory=512Mi;1:memory=512Mi\nkubeReserved: {memory: 924Mi}\n"+yaml))
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := c.Resolve(l.state.Resolved.Machine)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// TestWhatRandomSequencesHaveFound has defects that random sequences of what happens to a node have found in this package.
func TestWhatRandomSequencesHaveFound(t *testing.T) {
	const gi = 1 << 30
	pod := Pod{ID: "sandbox", UID: "uid", Namespace: "default", Name: "pod", CgroupParent: "/kubepods/burstable/poduid"}
	container := func(bytes int64) Container {
		return Container{
			ID: "id", PodID: pod.ID, Name: "main", CgroupsPath: pod.CgroupParent + "/id", State: Running,
			Resources: Resources{MemoryLimit: &bytes, Unified: map[string]string{"memory.low": "1073741824"}},
		}
	}
	of := func(n uint64) *uint64 { return &n }
	// pinnedBefore finds a running container whose cpuset.mems is 1, from an earlier run of ours.
	pinnedBefore := func(l *Ledger, parent string) Effects {
		pod, c, mems := pod, container(gi), "1"
		pod.CgroupParent = parent
		c.CgroupsPath, c.State = pod.CgroupParent+"/id", Running
		c.Resources = Resources{Mems: mems}
		files := Files{Mems: &mems, Journaled: map[cgroup.Knob]bool{cgroup.CpusetMems: true}}
		return l.Step(time.Unix(1, 0), Synchronize{Pods: []Pod{pod}, Containers: []Container{c}, Found: Found{Files: map[string]Files{"id": files}}})
	}
	tests := map[string]struct {
		yaml string
		do   func(l *Ledger) Effects
		look func(l *Ledger, effects Effects) string
		want string
	}{
		"a pod that changes after a dry run has its files written": {
			yaml: "profile: Observe",
			do: func(l *Ledger) Effects {
				now := time.Unix(1, 0)
				l.Step(now, CreateContainer{Pod: pod, Container: container(2 * gi)})
				l.Step(now, Reconfigure{Config: resolve(t, l, "")})
				return l.Step(now, EndContainer{ID: "id"})
			},
			look: func(_ *Ledger, effects Effects) string { return fmt.Sprint(len(effects.Files)) },
			want: "3", // the pod, the level burstable and kubepods
		},
		"a pod that ends in a dry run leaves the journal": {
			do: func(l *Ledger) Effects {
				now := time.Unix(1, 0)
				l.Step(now, CreateContainer{Pod: pod, Container: container(2 * gi)})
				l.Step(now, Reconfigure{Config: resolve(t, l, "profile: Observe")})
				return l.Step(now, EndPod{Pod: pod, Gone: true})
			},
			look: func(_ *Ledger, effects Effects) string { return fmt.Sprint(effects.Removed) },
			want: "[kubepods/burstable/poduid/id kubepods/burstable/poduid]",
		},
		"the runtime has the exact bytes of a limit that the file shows rounded": {
			do: func(l *Ledger) Effects {
				now := time.Unix(1, 0)
				l.Step(now, CreateContainer{Pod: pod, Container: container(2 * gi)})
				l.Step(now, StartContainer{Pod: pod, Container: container(2 * gi)})
				place, _ := l.CgroupOf("id")
				l.Step(now, Observed{ID: "id", Revision: place.Revision, Limit: gi}) // a resize that no event reported
				return l.Step(now, Synchronize{
					Pods: []Pod{pod}, Containers: []Container{container(gi + 1000)},
					Found: Found{Files: map[string]Files{"id": {Limit: of(gi)}}},
				})
			},
			look: func(l *Ledger, _ Effects) string { return fmt.Sprint(l.View().Pods[0].Containers[0].Limit) },
			want: "1073742824",
		},
		"of two resizes that failed one after the other nothing is left but the exact bytes before them": {
			do: func(l *Ledger) Effects {
				now := time.Unix(1, 0)
				l.Step(now, CreateContainer{Pod: pod, Container: container(gi + 1000)})
				l.Step(now, StartContainer{Pod: pod, Container: container(gi + 1000)})
				for _, larger := range []int64{2 * gi, 3 * gi, 3 * gi} {
					l.Step(now, UpdateContainer{Pod: pod, Container: container(gi + 1000), To: Resources{MemoryLimit: &larger}})
				}
				place, _ := l.CgroupOf("id")
				return l.Step(now.Add(time.Minute), Observed{ID: "id", Revision: place.Revision, Limit: gi})
			},
			look: func(l *Ledger, _ Effects) string { return fmt.Sprint(l.View().Pods[0].Containers[0].Limit) },
			want: "1073742824",
		},
		"a resize that succeeded before one that failed leaves its exact bytes": {
			do: func(l *Ledger) Effects {
				now := time.Unix(1, 0)
				l.Step(now, CreateContainer{Pod: pod, Container: container(gi)})
				l.Step(now, StartContainer{Pod: pod, Container: container(gi)})
				for _, larger := range []int64{2*gi + 1000, 3 * gi} {
					l.Step(now, UpdateContainer{Pod: pod, Container: container(gi), To: Resources{MemoryLimit: &larger}})
				}
				place, _ := l.CgroupOf("id")
				return l.Step(now.Add(time.Minute), Observed{ID: "id", Revision: place.Revision, Limit: 2 * gi})
			},
			look: func(l *Ledger, _ Effects) string { return fmt.Sprint(l.View().Pods[0].Containers[0].Limit) },
			want: "2147484648",
		},
		"an update of ours has what a failed resize may have left in the runtime's record": {
			do: func(l *Ledger) Effects {
				now, score, small := time.Unix(1, 0), int64(800), int64(gi)
				c := container(20 * gi)
				c.Resources.OOMScoreAdj, c.Resources.Unified = &score, nil
				l.Step(now, CreateContainer{Pod: pod, Container: c})
				l.Step(now, StartContainer{Pod: pod, Container: c})
				l.Step(now, UpdateContainer{Pod: pod, Container: c, To: Resources{MemoryLimit: &small}})
				l.Step(now, Reconfigure{Config: resolve(t, l, "memoryReservationPolicy: HardReservation\nmemoryThrottlingFactor: null")})
				place, _ := l.CgroupOf("id")
				l.Step(now.Add(time.Minute), Observed{ID: "id", Revision: place.Revision, Limit: 20 * gi})
				return l.Step(now.Add(time.Minute), SyncContainers{IDs: []string{"id"}})
			},
			look: func(_ *Ledger, effects Effects) string { return spokenOf(effects.Updates) },
			want: "id: memory.min=6.4Gi memory.low=0 memory.high=max",
		},
		"a pod that is allocated where its container runs may have more than the node has": {
			yaml: "podLevelResourceManagers: true",
			do: func(l *Ledger) Effects {
				now, budget := time.Unix(1, 0), of(16*gi)
				pod := pod
				pod.CgroupParent = "/kubepods/poduid"
				known := pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{
					Ref: pod.Ref(), Class: memoryqos.Guaranteed, PodRequest: budget, PodLimit: budget,
					Containers: []pods.Container{{Name: "main", Request: gi, Limit: gi, Guaranteed: true}, {Name: "beside"}},
				}}
				a, b := container(gi), container(16*gi)
				a.CgroupsPath, a.Resources.Unified = pod.CgroupParent+"/id", nil
				b.ID, b.Name, b.CgroupsPath, b.Resources.Unified = "id2", "beside", pod.CgroupParent+"/id2", nil
				l.Step(now, CreateContainer{Pod: pod, Container: a, Facts: Facts{PodInfo: known}})
				l.Step(now, StartContainer{Pod: pod, Container: a})
				l.Step(now, Reconfigure{Config: resolve(t, l, "podLevelResourceManagers: true\ntopologyManagerScope: pod\ntopologyManagerPolicy: restricted")})
				return l.Step(now, CreateContainer{Pod: pod, Container: b, Facts: Facts{PodInfo: known}})
			},
			look: func(_ *Ledger, effects Effects) string {
				texts := ""
				for _, note := range effects.Notes {
					texts += note.Text + "; "
				}
				return fmt.Sprint(texts, "whole ", effects.Allocations[0].State != nil)
			},
			want: "a node has more allocated than it has; whole true",
		},
		"a failed resize beyond the pod's limit is no sign that its containers share it": {
			do: func(l *Ledger) Effects {
				now, limit := time.Unix(1, 0), of(2*gi)
				pod := pod
				pod.CgroupParent = "/kubepods/poduid"
				a, b := container(gi), container(gi)
				a.Resources.Unified, b.Resources.Unified = nil, nil
				b.ID, b.Name, b.CgroupsPath = "id2", "beside", pod.CgroupParent+"/id2"
				a.CgroupsPath = pod.CgroupParent + "/id"
				l.Step(now, CreateContainer{Pod: pod, Container: a, Facts: Facts{PodLimit: limit}})
				l.Step(now, CreateContainer{Pod: pod, Container: b, Facts: Facts{PodLimit: limit}})
				l.Step(now, StartContainer{Pod: pod, Container: a})
				larger := int64(2 * gi)
				l.Step(now, UpdateContainer{Pod: pod, Container: a, To: Resources{MemoryLimit: &larger}, Facts: Facts{PodLimit: limit}})
				place, _ := l.CgroupOf("id")
				return l.Step(now.Add(time.Minute), Observed{ID: "id", Revision: place.Revision, Limit: gi})
			},
			look: func(l *Ledger, _ Effects) string {
				p := l.View().Pods[0]
				return fmt.Sprint(p.Containers[0].Nodes, " ", p.Containers[1].Nodes)
			},
			want: "0 0",
		},
		"values of an earlier run that are wanted no more are taken away": {
			yaml: "memoryReservationPolicy: None\nmemoryThrottlingFactor: null",
			do: func(l *Ledger) Effects {
				files := Files{
					Min: of(0), Low: of(gi), High: of(cgroup.Max), Limit: of(2 * gi), Mems: new(string),
					Journaled: map[cgroup.Knob]bool{cgroup.MemoryLow: true},
				}
				return l.Step(time.Unix(1, 0), Synchronize{
					Pods: []Pod{pod}, Containers: []Container{container(2 * gi)}, Found: Found{Files: map[string]Files{"id": files}},
				})
			},
			look: func(l *Ledger, effects Effects) string { return spokenOf(l.updates(effects.Sync...)) },
			want: "id: memory.min=0 memory.low=0 memory.high=max",
		},
		"nodes of an earlier run of a container that asks for no memory any more are taken away": {
			yaml: "memoryThrottlingFactor: null",
			do:   func(l *Ledger) Effects { return pinnedBefore(l, "/kubepods/poduid") },
			look: func(l *Ledger, effects Effects) string {
				return fmt.Sprint(l.View().Pods[0].Containers[0].Pinning, "; ", spokenOf(l.updates(effects.Sync...)))
			},
			want: "not pinned: the container asks for no memory; id: cpuset.mems=0-1 memory.min=0 memory.low=0 memory.high=max",
		},
		"a container that an earlier version moved off a node may use all again": {
			yaml: "memoryThrottlingFactor: null",
			do:   func(l *Ledger) Effects { return pinnedBefore(l, "/kubepods/burstable/poduid") },
			look: func(l *Ledger, effects Effects) string {
				return fmt.Sprint(said(effects, "nodes"), "; ", spokenOf(l.updates(effects.Sync...)))
			},
			want: "a container may use all NUMA nodes again (nodes 1); synchronized with the runtime; id: cpuset.mems=0-1 memory.min=0 memory.low=0 memory.high=max",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.yaml)
			effects := test.do(l)
			if got := test.look(l, effects); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestResendAsksTheRuntimeAgain(t *testing.T) {
	l := newLedger(t, "memoryReservationPolicy: TieredReservation")
	limit, now := int64(1<<30), time.Unix(1, 0)
	pod := Pod{ID: "sandbox", UID: "uid", CgroupParent: "/kubepods/poduid"}
	c := Container{ID: "id", PodID: pod.ID, Name: "main", CgroupsPath: pod.CgroupParent + "/id", Resources: Resources{MemoryLimit: &limit}}
	answer := l.Step(now, CreateContainer{Pod: pod, Container: c}).Answer
	l.Step(now, StartContainer{Pod: pod, Container: c})
	if effects := l.Step(now, SyncContainers{IDs: []string{"id"}}); len(effects.Updates) > 0 {
		t.Errorf("updates before: %v", effects.Updates)
	}
	l.Step(now, Resend{Cgroup: "kubepods/poduid/id"})
	if updates := l.updates("id"); fmt.Sprint(updates) != fmt.Sprint([]Update{{"id", answer}}) {
		t.Errorf("updates %v, want %v", updates, answer)
	}
}

func TestResendAsksAgainForWhatWasTakenAway(t *testing.T) {
	l := newLedger(t, "")
	limit, score, now := int64(20<<30), int64(800), time.Unix(1, 0)
	pod := Pod{ID: "sandbox", UID: "uid", CgroupParent: "/kubepods/burstable/poduid"}
	c := Container{
		ID: "id", PodID: pod.ID, Name: "main", CgroupsPath: pod.CgroupParent + "/id", Resources: Resources{MemoryLimit: &limit, OOMScoreAdj: &score},
	}
	l.Step(now, CreateContainer{Pod: pod, Container: c})
	l.Step(now, StartContainer{Pod: pod, Container: c})
	l.Step(now, Reconfigure{Config: resolve(t, l, "memoryReservationPolicy: None\nmemoryThrottlingFactor: null")})
	for _, when := range []string{"after the reload", "again"} {
		got := spokenOf(l.Step(now, SyncContainers{IDs: []string{"id"}}).Updates)
		if want := "id: memory.low=0 memory.high=max"; got != want {
			t.Errorf("%s: updates %s, want %s", when, got, want)
		}
		if more := l.Step(now, SyncContainers{IDs: []string{"id"}}).Updates; len(more) > 0 {
			t.Errorf("%s: then updates %v", when, more)
		}
		l.Step(now, Resend{Cgroup: "kubepods/burstable/poduid/id"})
	}
}
