package memorymanager

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// InsufficientHugepages is the reason of an AllocationError: the kernel has fewer huge pages free on the chosen nodes than are asked
// for. Pods that are not Guaranteed, and processes of the host, take huge pages that no node map has.
var InsufficientHugepages = NewReason("InsufficientHugepages")

// FreePages are the huge pages of one type that the kernel has free on one NUMA node.
type FreePages struct {
	Node  int
	Type  MemoryType
	Bytes uint64
}

// freePages are the kernel's free bytes of a type on the nodes; false where they were not read on all of them.
func (c *Container) freePages(name MemoryType, nodes nodeset.Set) (bytes uint64, known bool) {
	for id := range nodes.All() {
		at := slices.IndexFunc(c.FreePages, func(p FreePages) bool { return p.Node == id && p.Type == name })
		if at < 0 {
			return 0, false
		}
		bytes = plus(bytes, c.FreePages[at].Bytes)
	}
	return bytes, true
}

// verifyPages compares a new container's huge pages with what the kernel has free on the nodes that were chosen (KEP-5759);
// no other nodes are tried. What the pod's init containers leave to it counts as free: they may still have it in a volume.
// https://github.com/kubernetes/enhancements/issues/5759
func (m *Manager) verifyPages(c Container, nodes nodeset.Set) *AllocationError {
	for _, amount := range c.Request {
		free, known := c.freePages(amount.Type, nodes)
		if available := plus(free, m.reusable(c.Pod, nodes, amount.Type)); known && available < amount.Bytes {
			return m.reject(c, InsufficientHugepages, fmt.Sprintf("insufficient %s on NUMA node(s) %s: requested %s, available %s",
				amount.Type, strings.ReplaceAll(fmt.Sprint(nodes.IDs()), " ", ","), quantity.Format(amount.Bytes), quantity.Format(available)))
		}
	}
	return nil
}
