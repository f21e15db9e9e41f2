package protect

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// kernelTree makes kubepods on a real cgroup v2 mount. CGROUP_TREE names one whose kubepods may be made and removed, such as
// that of a virtual machine; the cgroups of a machine that is in use are not touched.
func kernelTree(t *testing.T) *cgroupfs.Tree {
	t.Helper()
	root := os.Getenv("CGROUP_TREE")
	if root == "" {
		t.Skip("needs a cgroup v2 mount to write to: set CGROUP_TREE")
	}
	if err := cgroupfs.RequireUnified(root); err != nil {
		t.Fatal(err)
	}
	tree, err := cgroupfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	dirs := []string{"kubepods", "kubepods/burstable", "kubepods/burstable/podb", "kubepods/burstable/podb/c"}
	for i, dir := range dirs {
		control := filepath.Join(root, filepath.Dir(dir), "cgroup.subtree_control")
		if err := os.WriteFile(control, []byte("+memory +cpuset"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(filepath.Join(root, dirs[i])) })
	}
	return tree
}

// TestOnARealKernel shows what a folder cannot: the kernel's own files.
func TestOnARealKernel(t *testing.T) {
	tree := kernelTree(t)
	const pod, container = "kubepods/burstable/podb", "kubepods/burstable/podb/c"
	watcher := newWatcher(t, tree)
	j := openJournal(t, t.TempDir())
	p := New(Options{Tree: tree, Watcher: watcher, Journal: j})

	// What is written is read again, rounded to pages, and that is no overwrite.
	if err := p.applyAll(t.Context(), Targets([]Pod{{Path: mustPod(t, pod), Values: low(10_000_001)}})); err != nil {
		t.Fatal(err)
	}
	inside := cgroup.Target{Cgroup: container, Level: cgroup.LevelContainer, Values: memoryqos.Values{High: ptr[uint64](1 << 20)}, Mems: "0"}
	if err := errors.Join(p.applyPart(t.Context(), []cgroup.Target{inside}, nil), p.WriteLate(t.Context())); err != nil {
		t.Fatal(err)
	}
	for dir, knob := range map[string]cgroup.Knob{"kubepods": cgroup.MemoryMin, "kubepods/burstable": cgroup.MemoryLow, pod: cgroup.MemoryLow} {
		if v, err := tree.Get(dir, knob); v != 10_000_001-10_000_001%uint64(os.Getpagesize()) || err != nil {
			t.Errorf("%s of %s: %d, %v", knob, dir, v, err)
		}
	}
	if _, err := p.Reconcile(t.Context()); err != nil || len(p.Overwrites()) > 0 {
		t.Errorf("%v, overwrites %v", err, p.Overwrites())
	}
	if v, err := tree.Get(container, cgroup.MemoryHigh); v != 1<<20 || err != nil {
		t.Errorf("memory.high: %d, %v", v, err)
	}
	if mems, err := tree.Mems(container); mems != "0" || err != nil {
		t.Errorf("cpuset.mems: %q, %v", mems, err)
	}

	// All readers understand this kernel.
	_, err1 := tree.Events(container)
	_, err2 := tree.Stat(container)
	numa, err3 := tree.NUMAStat(container)
	pressure, ok, err4 := tree.Pressure(container)
	_, err5 := tree.Populated(container)
	_, err6 := tree.Current(container)
	limit, err7 := tree.Limit(container)
	effective, err8 := tree.EffectiveMems(container)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8); err != nil || limit != cgroup.Max || effective != "0" {
		t.Errorf("%v; memory.max %d, effective %q", err, limit, effective)
	}
	t.Logf("memory.numa_stat has %d kinds, pressure %v %v", len(numa), ok, pressure)

	// memory.reclaim answers EAGAIN, at once.
	if err := tree.Reclaim(container, 1<<30); !errors.Is(err, cgroupfs.ErrReclaimedLess) {
		t.Errorf("memory.reclaim: %v", err)
	}
	if err := tree.Set(container, cgroup.MemoryHigh, cgroup.Max); err != nil {
		t.Error(err)
	}

	// inotify tells of another writer.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx, time.Hour)
	}()
	if err := os.WriteFile(filepath.Join(tree.Root(), "kubepods/memory.min"), []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { v, err := tree.Get("kubepods", cgroup.MemoryMin); return v > 0 && err == nil })
	cancel()
	<-ended
	if diff := cmp.Diff(map[Overwrite]uint64{{cgroup.LevelKubepods, "memory.min"}: 1}, p.Overwrites()); diff != "" {
		t.Error(diff)
	}

	// Rollback.
	if actions, err := Rollback(t.Context(), j, tree, nil, false); err != nil || len(actions) != 6 {
		t.Errorf("%v, %v", actions, err)
	}
	for _, dir := range []string{"kubepods", "kubepods/burstable", pod, container} {
		min, err1 := tree.Get(dir, cgroup.MemoryMin)
		low, err2 := tree.Get(dir, cgroup.MemoryLow)
		high, err3 := tree.Get(dir, cgroup.MemoryHigh)
		if err := errors.Join(err1, err2, err3); min != 0 || low != 0 || high != cgroup.Max || err != nil {
			t.Errorf("%s: %d, %d, %d, %v", dir, min, low, high, err)
		}
	}
	parents, _ := tree.EffectiveMems(pod)
	if mems, err := tree.Mems(container); mems != parents || err != nil {
		t.Errorf("cpuset.mems is %q, its parent has %q, %v", mems, parents, err)
	}

	// Cgroups that end: files that were open, and watches.
	before := watcher.Watches()
	if err := os.Remove(filepath.Join(tree.Root(), container)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return watcher.Watches() == before-1 })
	if _, err := tree.Get(container, cgroup.MemoryMin); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read after rmdir: %v", err)
	}
}
