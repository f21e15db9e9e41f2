package cgroupfs

import (
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

func BenchmarkGet(b *testing.B) {
	tree := makeTree(b, map[string]string{"kubepods/burstable/pod1/c1/memory.min": "0"})
	get := func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := tree.Get("kubepods/burstable/pod1/c1", cgroup.MemoryMin); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("openat2", get)
	withoutOpenat2(b, tree)
	b.Run("os.Root", get)
}

func BenchmarkValues(b *testing.B) {
	const dir = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-1.scope"
	tree := makeTree(b, map[string]string{
		dir + "/memory.min": "0\n", dir + "/memory.low": "0\n", dir + "/memory.high": "max\n", dir + "/memory.max": "max\n", dir + "/cpuset.mems": "0\n",
	})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tree.Values(dir); err != nil {
			b.Fatal(err)
		}
	}
}
