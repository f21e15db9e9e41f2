package world

import (
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const initsReused Promise = "what an init container had is its pod's until all containers of the pod are created"

// heldByInits is what the state file has of a pod once its last init container is created.
type heldByInits struct {
	bytes  uint64
	placed time.Time       // simulation.allPlaced then: later faults may take an allocation
	others map[string]bool // that were created since, perhaps by an OCI runtime that failed
}

// initCreated notes what a pod has with its init containers.
func (n *simulation) initCreated(pod *api.PodSandbox, c *api.Container) {
	if p, kind, first := n.firstCreated(pod, c); first && kind == memoryqos.Init {
		n.inits[p.UID] = heldByInits{n.stateFile().ofPod(p.UID), n.allPlaced(), map[string]bool{}}
	}
}

// takesOver looks in the state file, before another container of a pod is created, for what its init containers had. The other has that memory,
// too, and another pod may take what is given up before.
func (n *simulation) takesOver(pod *api.PodSandbox, c *api.Container) {
	p, kind, first := n.firstCreated(pod, c)
	had, known := n.inits[pod.Uid]
	if again := had.others[c.Name]; !known || again {
		return
	}
	had.others[c.Name] = true
	if !first || kind == memoryqos.Init || !had.placed.Equal(n.allPlaced()) {
		return
	}
	if has := n.stateFile().ofPod(p.UID); has < had.bytes {
		n.broken(initsReused, "%s has %dMi before %s is created, and had %dMi with its init containers", p.Name, has/mi, c.Name, had.bytes/mi)
	}
}

// firstCreated is the pod of a container that is created for the first time, and the container's kind. It is false where something else
// may take the pod's allocation, or the pod has it as a whole.
func (n *simulation) firstCreated(pod *api.PodSandbox, c *api.Container) (p LivePod, kind memoryqos.Kind, first bool) {
	now := time.Now()
	if !n.settings().places() || n.allPlaced().After(now) || n.trouble.calm(beforeAnswer, now).After(now) {
		return p, kind, false
	}
	for _, p = range n.kubelet.Pods() {
		if p.UID == pod.Uid && !p.PodLevel() && len(p.Sandboxes) == 1 && !p.Restarts && !n.hasChange(p, Resize) {
			spec, _ := p.Pod.Container(c.Name)
			return p, spec.Kind, true
		}
	}
	return p, kind, false
}

// ofPod is how many bytes of memory a pod's containers are allocated.
func (f stateFile) ofPod(uid string) (sum uint64) {
	for name := range f.Entries[uid] {
		sum += f.memory(uid, name)
	}
	return sum
}
