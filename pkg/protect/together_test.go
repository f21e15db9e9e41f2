package protect

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
)

// While the read of one pod's file hangs in a pass, another pass writes what it is about.
func TestAReadThatHangsHoldsNoOtherPass(t *testing.T) {
	n := newNode(t, nil)
	hangs, answers := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n.onOpen = func(dir, file string) {
		if dir == podB && file == "memory.min" {
			once.Do(func() { close(hangs) })
			<-answers
		}
	}
	target := func(pod string) []cgroup.Target {
		return []cgroup.Target{{Cgroup: pod, Level: cgroup.LevelPod, Values: minimum(100)}}
	}
	var passes sync.WaitGroup
	defer passes.Wait()
	defer close(answers)
	passes.Go(func() { _ = n.applyPart(context.Background(), target(podB), nil) })
	<-hangs
	written := make(chan error, 1)
	passes.Go(func() { written <- n.applyPart(context.Background(), target(podG), nil) })
	select {
	case err := <-written:
		if err != nil {
			t.Error(err)
		}
		wantWrites(t, n.allWrites(), podG+"/min=100")
	case <-time.After(3 * time.Second):
		t.Error("the other pass waits")
	}
}

// One pass counts a container whose file cannot be read once, also if it waits for the journal.
func TestAPassCountsAFailureOnce(t *testing.T) {
	n := newNode(t, nil, runcA)
	n.unopened = "memory.min"
	err := n.applyPart(t.Context(), []cgroup.Target{{Cgroup: runcA, Level: cgroup.LevelContainer, Values: minimum(100)}}, nil)
	if err != nil {
		t.Error(err)
	}
	if got := n.Repairs().Failures; got != 2 { // of a read and a write
		t.Errorf("%d failures", got)
	}
}

// A pass is written while creations note entries all the time, however slow the disk is.
func TestAPassIsWrittenWhileOthersNote(t *testing.T) {
	n := newNode(t, nil, runcA)
	ctx, cancel := context.WithCancel(t.Context())
	var noting sync.WaitGroup
	defer noting.Wait()
	defer cancel()
	delay(n.journal, 50*time.Millisecond)
	noting.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = n.Desire([]cgroup.Target{{Cgroup: fmt.Sprintf("kubepods/podg/c%d", i), Level: cgroup.LevelContainer, Values: minimum(10), ByRuntime: true}}, nil)
			time.Sleep(20 * time.Millisecond)
		}
	})
	time.Sleep(60 * time.Millisecond)
	written := make(chan error, 1)
	go func() {
		written <- n.applyPart(context.Background(), []cgroup.Target{{Cgroup: podB, Level: cgroup.LevelPod, Values: minimum(100)}}, nil)
	}()
	began := time.Now()
	select {
	case err := <-written:
		if took := time.Since(began); err != nil || took > 2*WriteLimit {
			t.Errorf("after %v: %v", took, err)
		}
	case <-time.After(3 * time.Second):
		t.Error("it waits for the notes of others")
		cancel()
		<-written
	}
}

// A pass that waited after its note must not drop it: another one has written the file meanwhile.
func TestAFailedWriteDropsNoNoteOfAWrittenFile(t *testing.T) {
	n := newNode(t, nil)
	desire := func(value uint64) {
		t.Helper()
		if err := n.Desire([]cgroup.Target{{Cgroup: podG, Level: cgroup.LevelPod, Values: minimum(value)}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	desire(100)
	first := n.compare(applying, func() []*row { return []*row{n.rows[podG]} })
	if _, _, waits := n.plan(first); !waits {
		t.Fatal("it does not wait for its note")
	}
	first.stored = first.noted
	if err := n.Apply(t.Context()); err != nil { // another pass
		t.Fatal(err)
	}
	desire(200)
	n.unopened = "memory.min"
	n.writeAll(t.Context(), first)
	n.unopened = ""
	if got := n.journal.Written(podG); !got[cgroup.MemoryMin] || content(t, n.Tree, podG+"/memory.min") != "100" {
		t.Errorf("the journal has %v", got)
	}
	if err := n.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.reconcile(t)
	if restore, _ := n.journal.before(podG, cgroup.MemoryMin); restore != "" {
		t.Errorf("rollback restores %q", restore)
	}
}

// delay has each write of the journal's file take a while.
func delay(j *Journal, takes time.Duration) {
	j.file = durable.NewWriter(durable.Options{Path: j.path, Interval: writeInterval, Write: func(data []byte) error {
		time.Sleep(takes)
		return j.write(data)
	}})
}
