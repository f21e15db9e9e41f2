package protect

import (
	"context"
	"errors"
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

// applyAll makes the targets the desired state and has the files hold it.
func (p *Protector) applyAll(ctx context.Context, targets []cgroup.Target) error {
	return errors.Join(p.DesireAll(targets), p.Apply(ctx))
}

// applyPart is Apply for a part.
func (p *Protector) applyPart(ctx context.Context, targets []cgroup.Target, gone []string) error {
	return errors.Join(p.Desire(targets, gone), p.Apply(ctx))
}

// containerRows is how many rows are of containers.
func (p *Protector) containerRows() (count int) {
	for _, r := range p.rows {
		if r.level == cgroup.LevelContainer {
			count++
		}
	}
	return count
}

// done reports whether there is nothing to do for any file.
func (r *row) done() bool { return !r.any(func(f *file) bool { return !f.done() }) }
