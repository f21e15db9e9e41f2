package protect

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// A flush that waits for a unit whose cgroup is gone meanwhile has nothing to wait for.
func TestAFlushEndsWithTheLastCgroup(t *testing.T) {
	const dir = "kubepods.slice/kubepods-podg.slice"
	tree := makeTree(t, map[string]string{dir + "/memory.min": "0\n"})
	q := &queue{ // between two tries: nothing is sent
		tree: tree, confirmed: func(string, map[cgroup.Knob]uint64) {}, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		waiting: map[string]*queued{dir: {}}, changed: make(chan struct{}),
	}
	flushed := make(chan error, 1)
	go func() { flushed <- q.flush(t.Context()) }()
	waitFor(t, func() bool { // it waits with the lock released
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.flushing > 0
	})
	if err := os.RemoveAll(filepath.Join(tree.Root(), dir)); err != nil {
		t.Fatal(err)
	}
	q.prune()
	select {
	case err := <-flushed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the flush waits for a unit that does not wait any more")
	}
}
