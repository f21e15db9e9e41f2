package cgroupfs

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
	for name, want := range map[string]Mapped{
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

// The comments are the kernel's: do_migrate_pages in mm/mempolicy.c.
func TestMigrationFollowsTheKernel(t *testing.T) {
	for name, test := range map[string]struct {
		from, to string
		want     string
	}{
		"narrower":                          {"0-1", "0", "2 from node 1 to node 0"},
		"wider":                             {"0", "0-1", "nothing"},
		"to another node":                   {"0", "1", "1 from node 0 to node 1"},
		"the same":                          {"0-1", "0-1", "nothing"},
		"as many, and one stays in its set": {"0-1", "1-2", "3 from nodes 0-1 to nodes 1-2"}, // each keeps its relative place
		"from four to two":                  {"0-3", "2-3", "3 from nodes 0-1 to nodes 2-3"},
		"from one to two others":            {"3", "0-1", "8 from node 3 to node 0"},
		"outside of what it may use":        {"0", "1-2", "1 from node 0 to node 1"},
		"no nodes":                          {"0", "", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			from, _ := nodeset.Parse(test.from)
			to, _ := nodeset.Parse(test.to)
			moves := Mapped{Nodes: from, Bytes: map[int]uint64{0: 1, 1: 2, 2: 4, 3: 8}}.Migration(to)
			got := moves.String()
			if moves.Bytes == 0 {
				got = "nothing"
			}
			if got != test.want {
				t.Errorf("%s is moved, want %s", got, test.want)
			}
		})
	}
}
