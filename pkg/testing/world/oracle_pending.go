package world

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const fits Promise = "a pending resize gets what is free on its NUMA nodes"

// pendingResizes looks for containers that are allocated less than they were resized to, while something is free where they are.
func (n *simulation) pendingResizes(see seer) {
	if !n.settings().places() {
		return
	}
	file := n.stateFile()
	for _, p := range n.kubelet.Pods() {
		if p.PodLevel() || p.Ending {
			continue
		}
		for _, c := range p.Containers {
			has, want := file.memory(p.UID, c.Spec.Name), min(c.Spec.Limit, n.limit(c))
			if has == 0 || has >= want || c.Resizing || c.Spec.Kind == memoryqos.Init || !n.runs(c) || !n.seesPlaced(c.Since) {
				continue
			}
			var free uint64
			for node := range n.scenario.Machine.Nodes {
				if file.nodes(p.UID, c.Spec.Name)&(1<<node) != 0 {
					free += file.MachineState[node].MemoryMap["memory"].Free
				}
			}
			if free > 0 {
				see(fits, p.Name+"/"+c.ID, "is allocated %dMi of %dMi, and %dMi are free there", has/mi, want/mi, free/mi)
			}
		}
	}
}
