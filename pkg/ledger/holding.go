package ledger

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Holding returns the cgroups that have an allocation or are protected. A pod with an allocation of its own is one cgroup.
func (v *View) Holding() (cgroups []deficit.Cgroup) {
	for _, pod := range v.Pods {
		if pod.Blocks != nil {
			cgroups = append(cgroups, deficit.Cgroup{Path: pod.Cgroup, Allocated: allocatedMemory(pod.Blocks)})
			continue
		}
		for i := range pod.Containers {
			c := &pod.Containers[i]
			held := deficit.Cgroup{Path: c.Cgroup, Allocated: allocatedMemory(c.Blocks)}
			if bytes := larger(c.Values.Min, c.Values.Low); bytes != nil {
				held.Protected = *bytes
			}
			if len(held.Allocated) > 0 || c.State.Alive() && held.Protected > 0 {
				cgroups = append(cgroups, held)
			}
		}
	}
	return cgroups
}

// allocatedMemory is what blocks have of ordinary memory on each node: huge pages are in pools of their own.
func allocatedMemory(blocks []memorymanager.Block) (amounts []deficit.Amount) {
	for _, block := range blocks {
		if block.Type != memorymanager.Memory {
			continue
		}
		for _, part := range block.PerNode {
			amounts = append(amounts, deficit.Amount{Node: part.Node, Bytes: part.Bytes})
		}
	}
	return amounts
}
