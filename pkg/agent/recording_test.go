package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/recording"
)

// recorded records what a node's agents do; replayed ends that and wants the same decisions again.
func recorded(t *testing.T) (option func(*node), replayed func() recording.Summary) {
	dir := t.TempDir()
	recorder, err := recording.New(recording.Options{Dir: dir, Size: 4 << 20, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return func(n *node) { n.recorder = recorder }, func() recording.Summary {
		t.Helper()
		if err := recorder.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		summary, err := recording.Replay(dir, func(d recording.Decision) error {
			if d.Differs() {
				t.Errorf("%s, event %d, %s %s %s:\nrecorded %s\nreplayed %s", d.File, d.Event, d.Kind, d.Pod, d.Container, d.Outcome, d.Replayed)
				return errors.New("it differs")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return summary
	}
}

// TestReplayOfARandomWalk has segments so small that many begin in the middle of it.
func TestReplayOfARandomWalk(t *testing.T) {
	steps := uint64(1000)
	if testing.Short() {
		steps = 300
	}
	for name, yaml := range map[string]string{
		"best-effort": "",
		"pod scope":   "topologyManagerScope: pod\ntopologyManagerPolicy: restricted",
		"crowded":     "topologyManagerPolicy: restricted\nreservedMemory: 0:memory=12Gi;1:memory=11Gi",
		"None":        "memoryManagerPolicy: None\nreservedMemory: []",
	} {
		t.Run(name, func(t *testing.T) {
			record, replayed := recorded(t)
			w := newWalker(t, *walkSeed, yaml, 10, record)
			for range steps {
				w.step()
				w.work(context.Background())
			}
			if summary := replayed(); summary.Events < steps || summary.Decisions < steps/10 {
				t.Errorf("replayed: %+v", summary)
			} else {
				t.Logf("replayed: %+v", summary)
			}
		})
	}
}
