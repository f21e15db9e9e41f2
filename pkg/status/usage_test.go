package status

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// containersOf is a tree of running containers, and what sets the memory.current of all of them.
func containersOf(t *testing.T, names ...string) (view *ledger.View, tree *cgroup.Tree, set func(bytes int)) {
	t.Helper()
	root := t.TempDir()
	view = &ledger.View{}
	for _, name := range names {
		name = "kubepods/" + name // nothing else is read
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
		view.Pods = append(view.Pods, &ledger.PodView{Containers: []ledger.ContainerView{{State: ledger.Running, Cgroup: name}}})
	}
	tree, err := cgroup.Open(root, cgroup.Plain())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return view, tree, func(bytes int) {
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(root, "kubepods", name, "memory.current"), fmt.Appendln(nil, bytes), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestUsagesAreReadOnceASecondAndForABoundedTime(t *testing.T) {
	view, tree, set := containersOf(t, "a", "b", "c", "d")
	u := NewUsages(tree)
	var now time.Time
	var tick time.Duration // that a look at the clock takes: one before all, one for each container
	u.now = func() time.Time { now = now.Add(tick); return now }
	now = now.Add(time.Hour)
	want := func(what string, of map[string]uint64) {
		t.Helper()
		got := map[string]uint64{}
		for name, usage := range u.read(view) {
			if usage != nil {
				got[path.Base(name)] = usage.Current
			}
		}
		if difference := cmp.Diff(of, got); difference != "" {
			t.Errorf("%s:\n%s", what, difference)
		}
	}
	set(1)
	tick = readingTime * 2 / 5 // time for two containers
	want("a first reading that is cut short", map[string]uint64{"a": 1, "b": 1})
	tick = 0
	set(2)
	want("the others have their turn", map[string]uint64{"a": 1, "b": 1, "c": 2, "d": 2})
	now = now.Add(freshTime - time.Millisecond)
	set(3)
	want("what is fresh is not read again", map[string]uint64{"a": 3, "b": 3, "c": 2, "d": 2})
	now = now.Add(freshTime)
	tick = readingTime * 3 / 10 // for three
	set(4)
	want("those not reached are as before", map[string]uint64{"a": 4, "b": 4, "c": 4, "d": 2})
	now = now.Add(freshTime)
	set(5)
	want("it goes on where it stopped", map[string]uint64{"d": 5, "a": 5, "b": 5, "c": 4})
	view.Pods = view.Pods[:1]
	now = now.Add(freshTime)
	want("who has ended is forgotten", map[string]uint64{"a": 5})
	if len(u.last) != 1 {
		t.Errorf("%d readings are kept of 1 container", len(u.last))
	}
}
