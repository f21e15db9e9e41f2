package agent

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// freePages reads the kernel's free huge pages of the sizes that a container asks for, on all NUMA nodes: which of them it gets is
// not decided yet. A size that cannot be read is not verified.
func (a *Agent) freePages(pod ledger.Pod, container ledger.Container) (free []memorymanager.FreePages) {
	if path, _, err := pod.Path(); err != nil || path.Class != memoryqos.Guaranteed || a.sysfs == "" {
		return nil
	}
	a.mu.Lock()
	sizes := a.ledger.PagesToVerify(container)
	a.mu.Unlock()
	hardware := a.hardware()
	for _, size := range sizes {
		pages, err := hardware.FreeHugepages(a.sysfs, size)
		if err != nil {
			a.log.WithField("pod", pod.Name).WithField("namespace", pod.Namespace).WithError(err).
				Warn("the kernel's free huge pages cannot be read: the container is placed without them")
			continue
		}
		for i, node := range hardware.Nodes {
			free = append(free, memorymanager.FreePages{Node: node.ID, Type: memorymanager.Hugepages(size), Bytes: pages[i]})
		}
	}
	return free
}
