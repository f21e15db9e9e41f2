package cgroupfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// makeTree makes a folder with cgroups and files ("kubepods/memory.min": "0\n") and opens it.
func makeTree(t testing.TB, files map[string]string, options ...Option) *Tree {
	t.Helper()
	root := t.TempDir()
	cgroups.Fill(t, root, files)
	tree, err := Open(root, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

func content(t testing.TB, tree *Tree, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(tree.Root(), file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func mountOf(tree *Tree) *mounted {
	if p, ok := tree.kernel.(plain); ok {
		return p.mounted
	}
	return tree.kernel.(*mounted)
}

// withoutOpenat2 is how a tree works on kernels that lack it.
func withoutOpenat2(t testing.TB, tree *Tree) *Tree {
	t.Helper()
	if m := mountOf(tree); m.fd != nil {
		m.fd.Close()
		m.fd = nil
	}
	return tree
}

// bothWays runs a test with openat2 and without.
func bothWays(t *testing.T, f func(t *testing.T, open func(t *testing.T, files map[string]string, options ...Option) *Tree)) {
	t.Run("openat2", func(t *testing.T) {
		f(t, func(t *testing.T, files map[string]string, options ...Option) *Tree {
			tree := makeTree(t, files, options...)
			if mountOf(tree).fd == nil {
				t.Skip("this kernel has no openat2")
			}
			return tree
		})
	})
	t.Run("os.Root", func(t *testing.T) {
		f(t, func(t *testing.T, files map[string]string, options ...Option) *Tree {
			return withoutOpenat2(t, makeTree(t, files, options...))
		})
	})
}

func TestTreeReadsAndWritesKnobs(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(*testing.T, map[string]string, ...Option) *Tree) {
		var writes []Write
		tree := open(t, map[string]string{
			"kubepods/pod1/memory.min": "12345678\n", "kubepods/pod1/memory.high": "max\n", "kubepods/pod1/memory.max": "max\n",
			"kubepods/pod1/memory.current": "4096\n", "kubepods/pod1/cpuset.mems": "\n", "kubepods/pod1/cpuset.mems.effective": "0-1,252-255\n",
		}, OnWrite(func(w Write) { writes = append(writes, w) }))
		check := func(name string, got any, err error, want any) {
			t.Helper()
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s: %v %s", name, err, diff)
			}
		}
		min, err := tree.Get("kubepods/pod1", cgroup.MemoryMin)
		check("memory.min", min, err, uint64(12345678))
		high, err := tree.Get("kubepods/pod1", cgroup.MemoryHigh)
		check("memory.high", high, err, uint64(cgroup.Max))
		limit, err := tree.Limit("kubepods/pod1")
		check("memory.max", limit, err, uint64(cgroup.Max))
		current, err := tree.Current("kubepods/pod1")
		check("memory.current", current, err, uint64(4096))
		mems, err := tree.Mems("kubepods/pod1")
		check("cpuset.mems", mems, err, "")
		effective, err := tree.EffectiveMems("kubepods/pod1")
		check("cpuset.mems.effective", effective, err, "0-1,252-255")
		nodes, err := tree.EffectiveNodes("kubepods/pod1")
		check("cpuset.mems.effective as a set", nodes, err, nodeset.Of(0, 1)) // which holds no more
		names, err := tree.List("kubepods")
		check("the cgroups below", names, err, []string{"pod1"})
		if _, err := tree.List("kubepods/pod2"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the list of a cgroup that is not there: %v", err)
		}

		for _, err := range []error{
			tree.Set("kubepods/pod1", cgroup.MemoryMin, 7),
			tree.Set("kubepods/pod1", cgroup.MemoryHigh, cgroup.Max),
			tree.Set("kubepods/pod1", cgroup.CpusetMems, 0b1011),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		if got := content(t, tree, "kubepods/pod1/memory.min"); got != "7" {
			t.Errorf("memory.min holds %q", got)
		}
		if got := content(t, tree, "kubepods/pod1/cpuset.mems"); got != "0-1,3" {
			t.Errorf("cpuset.mems holds %q", got)
		}
		if err := tree.Set("kubepods/pod1", cgroup.CpusetMems, 0); err != nil || content(t, tree, "kubepods/pod1/cpuset.mems") != "" {
			t.Errorf("cpuset.mems cannot be emptied: %v", err)
		}
		check("writes", writes, nil, []Write{
			{"kubepods/pod1", cgroup.MemoryMin, "7"}, {"kubepods/pod1", cgroup.MemoryHigh, "max"},
			{"kubepods/pod1", cgroup.CpusetMems, "0-1,3"}, {"kubepods/pod1", cgroup.CpusetMems, ""},
		})
	})
}

func TestTreeCannotBeLeft(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(*testing.T, map[string]string, ...Option) *Tree) {
		tree := open(t, map[string]string{
			"system.slice/memory.min": "0", "kubepods/memory.min": "0", "memory.min": "0", "real/memory.min": "0",
		}, Plain())
		outside := t.TempDir()
		for link, target := range map[string]string{
			"kubepods/podlink": outside, "kubepods/podup": "../system.slice", "kubepods.slice": "real",
		} {
			if err := os.Symlink(target, filepath.Join(tree.Root(), link)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("../../system.slice/memory.min", filepath.Join(tree.Root(), "kubepods/memory.low")); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{
			"", ".", "/", "..", "system.slice", "/kubepods", "kubepods/..", "kubepods/../system.slice", "../kubepods", "kubepods/",
			"kubepods//pod1", "kubepods/./pod1", "kubepods\x00", "xkubepods", "kubepods.slices", "kubepods/podlink",
		} {
			if err := tree.Set(dir, cgroup.MemoryMin, 1); err == nil {
				t.Errorf("wrote to %q", dir)
			}
			if _, err := tree.Get(dir, cgroup.MemoryMin); err == nil {
				t.Errorf("read from %q", dir)
			}
			if there, _ := tree.Exists(dir); there {
				t.Errorf("%q exists", dir)
			}
		}
		if err := tree.Set("kubepods/podlink", cgroup.MemoryMin, 1); err == nil {
			t.Error("wrote through a link out of the tree")
		}
		if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
			t.Errorf("something was written outside: %v %v", entries, err)
		}
		for _, knob := range []cgroup.Knob{"memory.max", "cpuset.cpus", "../memory.min", "cgroup.procs", ""} {
			if err := tree.Set("kubepods", knob, 1); err == nil || !strings.Contains(err.Error(), "want one of memory.min") {
				t.Errorf("%q: %v", knob, err)
			}
		}
	})
}

func TestLinksInsideTheTreeAreNotFollowed(t *testing.T) {
	tree := makeTree(t, map[string]string{"system.slice/memory.min": "0", "kubepods/pod1/": ""})
	if mountOf(tree).fd == nil {
		t.Skip("this kernel has no openat2")
	}
	if err := os.Symlink("../../system.slice/memory.min", filepath.Join(tree.Root(), "kubepods/pod1/memory.min")); err != nil {
		t.Fatal(err)
	}
	if err := tree.Set("kubepods/pod1", cgroup.MemoryMin, 1); err == nil || content(t, tree, "system.slice/memory.min") != "0" {
		t.Errorf("wrote outside kubepods: %v", err)
	}
}

func TestTreeErrorsNameFileAndData(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(*testing.T, map[string]string, ...Option) *Tree) {
		tree := open(t, map[string]string{"kubepods/memory.low": "lots\n", "kubepods/memory.high/": ""})
		_, err := tree.Get("kubepods", cgroup.MemoryMin)
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "read "+tree.Root()+"/kubepods/memory.min: ") {
			t.Errorf("missing: %v", err)
		}
		_, err = tree.Get("kubepods", cgroup.MemoryLow)
		if want := "parse " + tree.Root() + `/kubepods/memory.low: "lots" is not a number of bytes or max`; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		_, err = tree.Get("kubepods", cgroup.MemoryHigh)
		if err == nil || !strings.Contains(err.Error(), "memory.high: is a directory") {
			t.Errorf("a folder: %v", err)
		}
		err = tree.Set("kubepods", cgroup.MemoryMin, 42)
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), `write "42" to `+tree.Root()+"/kubepods/memory.min: ") {
			t.Errorf("write: %v", err)
		}
	})
}

func TestPlainTreeHasTheKernelsDefaults(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(*testing.T, map[string]string, ...Option) *Tree) {
		tree := open(t, map[string]string{"kubepods/pod1/": ""}, Plain())
		for file, want := range map[cgroup.Knob]uint64{cgroup.MemoryMin: 0, cgroup.MemoryLow: 0, cgroup.MemoryHigh: cgroup.Max} {
			if got, err := tree.Get("kubepods/pod1", file); got != want || err != nil {
				t.Errorf("%s: %d, %v", file, got, err)
			}
		}
		if mems, err := tree.Mems("kubepods/pod1"); mems != "" || err != nil {
			t.Errorf("cpuset.mems: %q, %v", mems, err)
		}
		if err := tree.Set("kubepods/pod1", cgroup.MemoryMin, 123456); err != nil {
			t.Error(err)
		}
		if err := tree.Set("kubepods/pod1", cgroup.MemoryMin, 1); err != nil || content(t, tree, "kubepods/pod1/memory.min") != "1" {
			t.Errorf("a shorter value leaves a rest: %v", err)
		}
		if _, err := tree.Get("kubepods/pod2", cgroup.MemoryMin); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a cgroup that is not there: %v", err)
		}
		if err := tree.Set("kubepods/pod2", cgroup.MemoryMin, 1); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a cgroup that is not there: %v", err)
		}
	})
}

func TestLongFilesAreReadWhole(t *testing.T) {
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, "counter%d %d\n", i, i)
	}
	tree := makeTree(t, map[string]string{"kubepods/memory.stat": text.String()})
	stat, err := tree.Stat("kubepods")
	if err != nil || len(stat) != 5000 || stat["counter4999"] != 4999 {
		t.Errorf("%d counters, %v", len(stat), err)
	}
}

func TestLeavesKnowCrunsInnerCgroup(t *testing.T) {
	tree := makeTree(t, map[string]string{"kubepods.slice/kubepods-pod1.slice/crio-a.scope/container/": "", "kubepods.slice/kubepods-pod1.slice/crio-b.scope/": ""})
	const a, b = "kubepods.slice/kubepods-pod1.slice/crio-a.scope", "kubepods.slice/kubepods-pod1.slice/crio-b.scope"
	leaves := func(dir string) []string {
		found, err := tree.Leaves(dir)
		if err != nil {
			t.Error(err)
		}
		return found
	}
	if diff := cmp.Diff([]string{a, a + "/container"}, leaves(a)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{b}, leaves(b)); diff != "" {
		t.Error(diff)
	}
}

// TestAPlainFileIsNotTruncated reads a file while it is written again and again: a writer that is killed leaves a value.
func TestAPlainFileIsNotTruncated(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(*testing.T, map[string]string, ...Option) *Tree) {
		tree := open(t, map[string]string{"kubepods/pod1/cpuset.mems": "0-1\n"}, Plain())
		done := make(chan error, 1)
		go func() {
			var failed error
			for i := range 20_000 {
				failed = errors.Join(failed, tree.Write("kubepods/pod1", cgroup.CpusetMems, []string{"1", "0-1"}[i%2]))
			}
			done <- failed
		}()
		for {
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
				return
			default:
			}
			if got, err := tree.Mems("kubepods/pod1"); err != nil || got != "1" && got != "0-1" {
				t.Fatalf("cpuset.mems %q, %v", got, err)
			}
		}
	})
}

func TestOpenNeedsAFolder(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestWhatCannotBeOpenedIsNotGone has the open fail as in a process that has no descriptors left.
func TestWhatCannotBeOpenedIsNotGone(t *testing.T) {
	bothWays(t, func(t *testing.T, open func(*testing.T, map[string]string, ...Option) *Tree) {
		var asked []string
		tree := open(t, map[string]string{"kubepods/memory.min": "7"}, Plain(), OnOpen(func(cgroup, file string) error {
			asked = append(asked, cgroup+"/"+file)
			return unix.EMFILE
		}))
		_, notRead := tree.Get("kubepods", cgroup.MemoryMin)
		_, notFound := tree.Exists("kubepods")
		for _, err := range []error{notRead, notFound, tree.Set("kubepods", cgroup.MemoryMin, 1)} {
			if !errors.Is(err, unix.EMFILE) {
				t.Errorf("the error is %v, want %v", err, unix.EMFILE)
			}
		}
		if tree.Ended("kubepods") {
			t.Error("the cgroup counts as gone")
		}
		if want := []string{"kubepods/memory.min", "kubepods/.", "kubepods/memory.min", "kubepods/."}; !slices.Equal(asked, want) {
			t.Errorf("asked about %v, want %v", asked, want)
		}
	})
}
