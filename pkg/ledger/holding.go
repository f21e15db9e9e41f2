package ledger

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Holding are the cgroups that have an allocation, are protected, or are kept off nodes, and with movable those whose memory may be
// moved off overcommitted nodes. Those of a pod with an allocation of its own are one.
func (v *View) Holding(movable bool) (cgroups []deficit.Cgroup) {
	movable = movable && v.Config.Config.Rebalance.Deficits != config.DeficitsOff
	for _, pod := range v.Pods {
		if pod.Blocks != nil {
			cgroups = append(cgroups, deficit.Cgroup{Path: pod.Cgroup, Allocated: allocatedMemory(pod.Blocks)})
			continue
		}
		for i := range pod.Containers {
			c := &pod.Containers[i]
			held := deficit.Cgroup{Path: c.Cgroup, Allocated: allocatedMemory(c.Blocks), Protected: protectedBytes(c), Order: order(pod.Class, c)}
			if c.KeptOff != nil {
				held.Off, held.Moved = c.KeptOff.Nodes, c.KeptOff.Moved
			}
			if len(held.Allocated) > 0 || c.State.Alive() && (held.Protected > 0 || !held.Off.Empty() || movable && held.Order != deficit.Stays) {
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

// order is when a container's memory may be moved: never that of Guaranteed pods, of containers with nodes or resource claims of their
// own, and of pods that say by annotation where they want to be.
func order(class memoryqos.QOSClass, c *ContainerView) deficit.Order {
	switch {
	case c.State != Running || c.Cgroup == "" || c.Stays || !c.Nodes.Empty() || len(c.Claims) > 0:
		return deficit.Stays
	case class == memoryqos.BestEffort:
		return deficit.BestEffortFirst
	case class == memoryqos.Burstable:
		return deficit.BurstableNext
	}
	return deficit.Stays
}

func protectedBytes(c *ContainerView) uint64 {
	if bytes := larger(c.Values.Min, c.Values.Low); bytes != nil {
		return *bytes
	}
	return 0
}

// Plan is what would be moved to relieve deficits, where that is planned and not made.
func (v *View) Plan(nodes []deficit.Node, cgroups []deficit.Cgroup) []deficit.Move {
	c := v.Config.Config
	if c.Rebalance.Deficits == config.DeficitsOff || c.Rebalance.Deficits == config.DeficitsOn && !c.DryRun() {
		return nil
	}
	return deficit.Plan(nodes, cgroups)
}
