package ledger

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// NodeMemorySampled is the memory of the NUMA nodes that is allocated and unused, and available. Nodes is empty if it is unknown.
type NodeMemorySampled struct{ Nodes []deficit.NodeMemory }

func (e NodeMemorySampled) apply(l *Ledger) {
	if l.state.NodeMemory = e.Nodes; l.manager != nil {
		l.manager.SetNodeMemory(e.Nodes)
	}
}

// SampledCgroups returns the cgroups that have an allocation or are protected. A pod that is allocated as a whole is one cgroup.
func (v *View) SampledCgroups() (cgroups []deficit.Cgroup) {
	for _, pod := range v.Pods {
		if pod.Blocks != nil {
			cgroups = append(cgroups, deficit.Cgroup{Path: pod.Cgroup, Allocated: allocatedMemory(pod.Blocks)})
			continue
		}
		for i := range pod.Containers {
			c := &pod.Containers[i]
			held := deficit.Cgroup{Path: c.Cgroup, Allocated: allocatedMemory(c.Blocks)}
			if bytes := largerValue(c.Values.Min, c.Values.Low); bytes != nil {
				held.Protected = *bytes
			}
			if len(held.Allocated) > 0 || c.State.Alive() && held.Protected > 0 {
				cgroups = append(cgroups, held)
			}
		}
	}
	return cgroups
}

// allocatedMemory returns the ordinary memory of blocks on each node. Huge pages come from pools of their own.
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
