package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// StartContainer is a container that is about to run.
type StartContainer struct {
	Pod       Pod
	Container Container
	Facts
	Header
}

// apply brings a container that was created by values that have changed since to the new ones, and one whose creation was
// answered too late: runtimes without NRI's failure policy go on without the answer.
func (e StartContainer) apply(l *Ledger) {
	if c := l.containers[e.Container.ID]; c != nil && c.Phase == Running {
		return
	}
	c := l.changeContainer(e.Container.ID)
	if c == nil {
		if c = l.missed(e.Pod, e.Container, e.Files); c == nil {
			return
		}
	}
	c.Phase, c.Seq, c.Revision = Running, max(c.Seq, l.step.seq), c.Revision+1
	l.look(c)
	l.journalRecord(c)
}

// missed takes in a container that runs without our answer, if it is one of ours.
func (l *Ledger) missed(received Pod, started Container, found *Files) *container {
	p, err := l.podOf(received)
	if err != nil || !p.managed || p.check(started) != nil || l.overtaken(p.named(started.Name), started.ID) != nil {
		return nil
	}
	c := l.takeIn(p, started, found)
	c.Phase = Created
	l.note(Warn, "a container starts that was created without an answer of ours", l.fields(c), nil)
	return c
}

// EndContainer is a container that has ended. Its allocation stays for its next start as long as the pod lives. An ID that
// is not known belongs to a container that has ended before.
type EndContainer struct {
	ID string
	Header
}

func (e EndContainer) apply(l *Ledger) {
	l.state.EndedContainers.add(e.ID, e.Seq)
	if c := l.changeContainer(e.ID); c != nil {
		l.end(c)
		l.forget(c)
	}
}

// releaseInits frees what the init containers of a pod have that have ended, once a later container of the pod has started. So does the
// kubelet, whose AddContainer is told of a container that is about to start (pkg/kubelet/cm/memorymanager/memory_manager.go). The kubelet
// has allocated all containers of the pod by then. Here a container is allocated when it is created, and reuses the memory of the init
// containers, so that they keep it until all are created. A sidecar keeps its allocation, and so does an init container that runs again, until it ends.
func (l *Ledger) releaseInits(p *pod) {
	if l.manager == nil || p.Info == nil {
		return
	}
	for i, spec := range p.Info.Containers {
		if spec.Kind != memoryqos.Init || l.manager.Blocks(p.key(), spec.Name) == nil {
			continue
		}
		later := p.Info.Containers[i+1:]
		if !slices.ContainsFunc(later, p.hasStarted) || slices.ContainsFunc(later, func(spec pods.Container) bool { return l.isToCome(p, spec) }) {
			return
		}
		c := p.named(spec.Name)
		if c != nil && c.alive() {
			continue
		}
		l.manager.Release(p.key(), spec.Name)
		if c != nil {
			l.forget(c)
		}
	}
}

// hasStarted reports whether a container of the pod's spec runs. Ephemeral containers are started at any time, beside init containers, too.
func (p *pod) hasStarted(spec pods.Container) bool {
	c := p.named(spec.Name)
	return c != nil && c.ran() && spec.Kind != memoryqos.Ephemeral
}

// isToCome reports whether a sidecar or an app container of the pod's spec has not been created yet.
func (l *Ledger) isToCome(p *pod, spec pods.Container) bool {
	return (spec.Kind == memoryqos.Sidecar || spec.Kind == memoryqos.App) && p.named(spec.Name) == nil && l.manager.Blocks(p.key(), spec.Name) == nil
}
