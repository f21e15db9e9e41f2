package agent

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
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
		pages, err := sysfs.FreePages(a.sysfs, hardware, size)
		if err != nil {
			a.log.WithField("pod", pod.Name).WithField("namespace", pod.Namespace).WithError(err).
				Warn("the kernel's free huge pages cannot be read: the container is placed without them")
			continue
		}
		free = append(free, pages...)
	}
	return free
}
