package agent

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestAStormLeavesNothing has many pods come, change and go at once, beside all that reads and repairs.
func TestAStormLeavesNothing(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "", func(n *node) {
		n.check, n.timeout, n.providers = time.Second, 10*time.Millisecond, []podinfo.Provider{api}
	})
	n.log.discard()
	stop := n.background()
	api.listening(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	reading, stopReading := context.WithCancel(ctx)
	var readers, writers sync.WaitGroup
	for _, read := range []func(){
		func() { n.View() },
		func() { n.Counters() },
		func() { n.HighContainers() },
		func() {
			explanations, err := n.Explain("pod1-0", "")
			if err != nil { // it is not there
				return
			}
			for range explanations {
			}
		},
		func() { n.reconcile(ctx) },
		func() {
			for _, c := range n.HighContainers() {
				_ = n.SetHigh(ctx, c.ID, c.High+mi)
			}
		},
	} {
		readers.Go(func() {
			for reading.Err() == nil {
				read()
				time.Sleep(time.Millisecond)
			}
		})
	}
	for worker := range 8 {
		writers.Go(func() {
			for round := range 5 {
				class := []memoryqos.QOSClass{memoryqos.Guaranteed, memoryqos.Burstable}[(worker+round)%2]
				pod := n.pod(fmt.Sprintf("pod%d-%d", worker, round), class)
				if err := n.RunPodSandbox(ctx, pod); err != nil {
					t.Error(err)
				}
				api.say(spec(pod, class, pods.Container{Name: "main", Request: 64 * mi, Limit: 128 * mi}))
				for _, name := range []string{"main", "second"} {
					c := ofPod(pod, name, 128*mi)
					adjustment, err := n.CreateContainer(ctx, pod, c)
					if err != nil {
						t.Error(err)
						continue
					}
					c = n.run(pod, c, adjustment)
					if _, err := n.UpdateContainer(ctx, pod, c, Resources{MemoryLimit: limit(int64(256 * mi))}); err != nil {
						t.Error(err)
					}
					if err := n.PostUpdateContainer(ctx, pod, c); err != nil {
						t.Error(err)
					}
					if err := n.StopContainer(ctx, pod, c); err != nil {
						t.Error(err)
					}
				}
				if err := n.endPod(ctx, pod); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	stopReading()
	readers.Wait()
	stop()
	n.want("allocations after the storm", n.allocated(), "0 0")
	for _, file := range []string{"memory.min", "memory.low"} {
		if held := n.file("kubepods", file); held != "" && held != "0" {
			t.Errorf("kubepods' %s is %s after the storm", file, held)
		}
	}
	if pods := n.View().Pods; len(pods) > 0 {
		t.Errorf("%d pods are left", len(pods))
	}
	if errs := n.Counters().ProtectErrors; errs > 0 {
		t.Errorf("%d writes to the cgroups above failed", errs)
	}
}

// A driver reads what a pod brings without its lock, while a configuration or a machine is put in force under it: see go test -race.
func TestAPodIsReadWhileTheConfigurationChanges(t *testing.T) {
	resolved, err := parseConfig(t, "").Resolve(parseMachine(t, twoNodes))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.New(time.Unix(0, 0), ledger.Options{Config: resolved, Raises: map[string]uint64{}})
	if err != nil {
		t.Fatal(err)
	}
	pod := ledger.Pod{UID: "p", ID: "s", Annotations: map[string]string{"noderesource.dev/resources": `{"containers":{"a":{"requests":{"memory":"1Gi"}}}}`}}
	needs := l.Needs(ledger.RunPod{Pod: pod}, &ledger.Gathered{})
	var group sync.WaitGroup
	group.Go(func() {
		for range 200 {
			var facts ledger.Gathered
			facts.Ask(needs)
			if got := ledger.With(ledger.RunPod{Pod: pod}, facts).(ledger.RunPod).Pod; got.Annotated == nil || got.Annotations != nil {
				t.Errorf("%+v", got)
			}
		}
	})
	for range 50 {
		l.Step(time.Unix(1, 0), ledger.Reconfigure{Config: resolved})
	}
	group.Wait()
	known := ledger.RunPod{Pod: ledger.Pod{ID: "sandbox-known", UID: "known", Namespace: "default", Name: "known", CgroupParent: "/kubepods/podknown"}}
	l.Step(time.Unix(1, 0), known)
	if needs := l.Needs(known, &ledger.Gathered{}); !needs.None() {
		t.Error("a sandbox that is known is read again")
	}
}
