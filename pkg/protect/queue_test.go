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
	p := New(Options{Tree: makeTree(t, map[string]string{dir + "/memory.min": "0\n"})})
	r := p.add(dir, cgroup.LevelPod)
	p.systemd.waiting, p.systemd.changed = map[*row]*queued{r: {}}, make(chan struct{}) // between two tries: nothing is sent
	flushed := make(chan error, 1)
	go func() { flushed <- p.Flush(t.Context()) }()
	waitFor(t, func() bool { return p.systemd.flushing.Load() > 0 })
	if err := os.RemoveAll(filepath.Join(p.tree.Root(), dir)); err != nil {
		t.Fatal(err)
	}
	if pause := p.pause(); pause != 0 {
		t.Errorf("the next try is in %s, and nothing waits", pause)
	}
	select {
	case err := <-flushed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the flush waits for a unit that does not wait any more")
	}
}
