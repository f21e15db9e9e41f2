package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// StartContainer is sent before a container's process runs.
type StartContainer struct {
	Pod       Pod
	Container Container
	Facts
	Header
}

// apply updates a container whose values have changed since its creation. It also adds a container whose creation was answered too late:
// without NRI's failure policy the runtime goes on without the answer.
func (e StartContainer) apply(l *Ledger) {
	if c := l.containers[e.Container.ID]; c != nil && c.Phase == Running {
		return
	}
	c := l.changeContainer(e.Container.ID)
	if c == nil {
		if c = l.startMissed(e.Pod, e.Container, e.Files); c == nil {
			return
		}
	}
	c.Phase, c.Seq, c.Revision = Running, max(c.Seq, l.step.seq), c.Revision+1
	l.readLimit(c)
	l.journalRecord(c)
}

// startMissed adds a container that starts although its creation was not answered. It returns nil if the container is not managed.
func (l *Ledger) startMissed(received Pod, started Container, found *Files) *container {
	p, err := l.podOf(received)
	if err != nil || !p.managed || p.check(started) != nil || l.overtaken(p.container(started.Name), started.ID) != nil {
		return nil
	}
	c := l.addMissed(p, started, found)
	c.Phase = Created
	l.note(Warn, "a container starts that was created without an answer of ours", l.fields(c), nil)
	return c
}

// EndContainer is a container that has ended. It keeps its allocation for its next start as long as the pod lives. An unknown ID is a
// container that has ended before.
type EndContainer struct {
	ID string
	Header
}

func (e EndContainer) apply(l *Ledger) {
	l.state.EndedContainers.add(e.ID, e.Seq)
	if c := l.changeContainer(e.ID); c != nil {
		l.end(c)
		l.dropSlot(c)
	}
}

// releaseInits releases the allocations of ended init containers once a later container of the pod has started. The kubelet does the same
// in AddContainer, just before a container starts (pkg/kubelet/cm/memorymanager/memory_manager.go), but it has allocated all containers of
// the pod by then. The ledger allocates each container at its creation, and later containers reuse the memory of init containers. So init
// containers keep their allocation until all containers are created. A sidecar, and an init container that runs again, keep theirs until
// they end.
func (l *Ledger) releaseInits(p *pod) {
	if l.manager == nil || p.Info == nil {
		return
	}
	for i, spec := range p.Info.Containers {
		if spec.Kind != memoryqos.Init || l.manager.Blocks(p.Key(), spec.Name) == nil {
			continue
		}
		later := p.Info.Containers[i+1:]
		if !slices.ContainsFunc(later, p.hasStarted) || slices.ContainsFunc(later, func(spec pods.Container) bool { return l.isToCome(p, spec) }) {
			return
		}
		c := p.container(spec.Name)
		if c != nil && c.alive() {
			continue
		}
		l.manager.Release(p.Key(), spec.Name)
		if c != nil {
			l.dropSlot(c)
		}
	}
}

// hasStarted reports whether a container of the pod's spec runs. Ephemeral containers do not count: they start at any time, even beside
// init containers.
func (p *pod) hasStarted(spec pods.Container) bool {
	c := p.container(spec.Name)
	return c != nil && c.ran() && spec.Kind != memoryqos.Ephemeral
}

// isToCome reports whether a sidecar or app container of the pod's spec has not been created yet, or was refused, so that the kubelet tries again.
func (l *Ledger) isToCome(p *pod, spec pods.Container) bool {
	c := p.container(spec.Name)
	missing := c == nil || !c.alive() && c.Unplaced != nil && c.Unplaced.Refused
	return missing && (spec.Kind == memoryqos.Sidecar || spec.Kind == memoryqos.App) && l.manager.Blocks(p.Key(), spec.Name) == nil
}
