package machine

import (
	"math"
	"slices"
)

// driftGrace is what the memory of a NUMA node may move by beyond the kernel's image: what the kernel allocates at boot
// depends on where its image lies (KEP-6232).
const driftGrace = 64 << 20

// Drift is how far the memory of a NUMA node may move between two boots without being another machine's, in bytes: the
// kernel's image lies on another node each time, and 64 MiB beside it. It is 0 where the size of the image is not known.
// https://github.com/kubernetes/enhancements/issues/6232
func (m Machine) Drift() uint64 {
	if m.KernelImage == 0 || m.KernelImage > math.MaxInt64-driftGrace {
		return 0
	}
	return m.KernelImage + driftGrace
}

// SameMemory reports whether the NUMA nodes of both have the same huge page pools, and the same memory but for so many bytes on each.
func (m Machine) SameMemory(other Machine, tolerance uint64) bool {
	return slices.EqualFunc(m.Nodes, other.Nodes, func(a, b Node) bool {
		return a.ID == b.ID && max(a.Memory, b.Memory)-min(a.Memory, b.Memory) <= tolerance && slices.Equal(a.Hugepages, b.Hugepages)
	})
}
