package world

import (
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const (
	fits     Promise = "a pending resize gets what is free on its NUMA nodes"
	upToThen Promise = "a resize keeps what it was granted until the runtime has applied it"
)

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

// updateAnswered notes what a container is allocated with the answer to an update. What it returns compares that once the runtime applies the update.
func (n *simulation) updateAnswered(pod *api.PodSandbox, c *api.Container) (applies func()) {
	began, before := time.Now(), uint64(0)
	n.judge(func() { before = n.stateFile().memory(pod.Uid, c.Name) })
	return func() {
		n.judge(func() {
			has := n.stateFile().memory(pod.Uid, c.Name)
			if has < before && n.settings().places() && !n.trouble.calm(upToThen, time.Now()).After(began) {
				n.broken(upToThen, "%s/%s has %dMi allocated, and had %dMi with the answer", pod.Name, c.Name, has/mi, before/mi)
			}
		})
	}
}
