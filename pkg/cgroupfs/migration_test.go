package cgroupfs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

func TestMappedIsWhatTheKernelCanMove(t *testing.T) {
	tree := makeTree(t, map[string]string{
		"kubepods/pod1/memory.numa_stat":      "anon N0=4096 N1=0\nfile N0=1048576 N1=1048576\nfile_mapped N0=8192 N1=4096\nslab N0=0 N1=65536\n",
		"kubepods/pod1/cpuset.mems.effective": "0-1\n",
		"kubepods/pod2/memory.numa_stat":      "anon N0=0 N1=0\n",
		"kubepods/pod3/cpuset.mems":           "\n", // no memory.numa_stat: a kernel without NUMA
		"kubepods/pod4/memory.numa_stat":      "anon 1\n",
		"kubepods/pod5/memory.numa_stat":      "anon N0=1\n",
		"kubepods/pod5/cpuset.mems.effective": "x\n",
	})
	for name, want := range map[string]cgroup.Mapped{
		"kubepods/pod1": {Nodes: nodeset.Of(0, 1), Bytes: map[int]uint64{0: 12288, 1: 4096}},
		"kubepods/pod2": {Bytes: map[int]uint64{}},
		"kubepods/pod3": {Bytes: map[int]uint64{}},
	} {
		got, err := tree.Mapped(name)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	for _, name := range []string{"kubepods/pod4", "kubepods/pod5", "kubepods/gone"} {
		if got, err := tree.Mapped(name); err == nil {
			t.Errorf("%s: %v, want an error", name, got)
		}
	}
}

// TestCountIsTheLargerOfTwoReads: what is decided by what a cgroup has mapped errs on the safe side, whichever read was old.
func TestCountIsTheLargerOfTwoReads(t *testing.T) {
	const dir = "kubepods/pod/c"
	for name, test := range map[string]struct {
		first, second string
		want          map[int]uint64
		err           string
	}{
		"the first is old":     {"anon N0=4096 N1=58720256\n", "anon N0=4096 N1=268435456\n", map[int]uint64{0: 4096, 1: 268435456}, ""},
		"memory is freed":      {"anon N0=8192 N1=0\n", "anon N0=4096 N1=0\n", map[int]uint64{0: 8192}, ""},
		"each of another node": {"anon N0=8192 N1=1\n", "anon N0=4096 N1=2\n", map[int]uint64{0: 8192, 1: 2}, ""},
		"the second is bad":    {"anon N0=8192 N1=1\n", "anon 1\n", nil, `line "anon 1"`},
		"the first is bad":     {"anon 1\n", "anon N0=4096 N1=2\n", nil, `line "anon 1"`},
	} {
		t.Run(name, func(t *testing.T) {
			tree := makeTree(t, map[string]string{dir + "/cpuset.mems.effective": "0-1", dir + "/memory.numa_stat": test.first})
			tree.flush = func(context.Context) {
				if err := os.WriteFile(filepath.Join(tree.root, dir, "memory.numa_stat"), []byte(test.second), 0o644); err != nil {
					t.Error(err)
				}
			}
			got := tree.Count(t.Context(), dir)[dir]
			if diff := cmp.Diff(test.want, got.Bytes); test.err == "" && (diff != "" || got.Err != nil) {
				t.Errorf("%s, error %v", diff, got.Err)
			}
			if test.err != "" && (got.Err == nil || !strings.Contains(got.Err.Error(), test.err)) {
				t.Errorf("error %v, want %s", got.Err, test.err)
			}
		})
	}
}
