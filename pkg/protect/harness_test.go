package protect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// makeTree makes a folder with cgroups and files ("kubepods/memory.min": "0\n") and opens it.
func makeTree(t testing.TB, files map[string]string, options ...cgroupfs.Option) *cgroupfs.Tree {
	t.Helper()
	root := t.TempDir()
	put(t, root, files)
	tree, err := cgroupfs.Open(root, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

func put(t testing.TB, root string, files map[string]string) {
	t.Helper()
	cgroups.Fill(t, root, files)
}

func content(t testing.TB, tree *cgroupfs.Tree, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(tree.Root(), file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func mustPod(t testing.TB, parent string) cgroup.PodPath {
	t.Helper()
	p, err := cgroup.ParsePod(parent)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newWatcher(t *testing.T, tree *cgroupfs.Tree) *cgroupfs.Watcher {
	t.Helper()
	w, err := cgroupfs.NewWatcher(tree)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}
