package cgroupfs

import (
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
