package cgroup

import "testing"

func BenchmarkGet(b *testing.B) {
	tree := makeTree(b, map[string]string{"kubepods/burstable/pod1/c1/memory.min": "0"})
	get := func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := tree.Get("kubepods/burstable/pod1/c1", MemoryMin); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("openat2", get)
	withoutOpenat2(b, tree)
	b.Run("os.Root", get)
}
