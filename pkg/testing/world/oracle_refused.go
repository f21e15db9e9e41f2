package world

import (
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const granted Promise = "no container is refused that fits"

// refused looks for a reason in the state file. Of the Guaranteed containers those are judged that need nothing but memory, whose pods have no other:
// they fit where one NUMA node has as much left that no container spans together with others.
func (n *simulation) refused(pod *api.PodSandbox, c *api.Container, reason error) {
	now, s := time.Now(), n.settings()
	if n.trouble.calm(granted, now).After(now) || strings.Contains(reason.Error(), "claim") {
		return
	}
	file := n.stateFile()
	for _, p := range n.kubelet.Pods() {
		if p.UID != pod.Uid || p.PodLevel() {
			continue
		}
		for _, spec := range n.spec(p).Containers {
			fits := p.Class != "Guaranteed" || !s.places()
			for _, node := range file.MachineState {
				plain := spec.CPUs == 0 && spec.Hugepages == 0 && len(spec.Claims) == 0 && len(p.Pod.Containers) == 1 && p.Pod.Containers[0].Kind == memoryqos.App
				fits = fits || plain && len(node.Cells) == 1 && node.MemoryMap["memory"].Free >= p.Pod.Containers[0].Limit && file.Data == ""
			}
			if spec.Name == c.Name && fits {
				n.broken(granted, "%s/%s of class %s: %v", p.Name, c.Name, p.Class, reason)
			}
		}
	}
}
