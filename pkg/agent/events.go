package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// RunPodSandbox handles a new pod sandbox.
func (s *Session) RunPodSandbox(ctx context.Context, pod ledger.Pod) error {
	a, header := s.agent, s.header()
	effects := a.decide(ctx, ledger.RunPod{Pod: pod, Header: header}, nil)
	defer a.logNotes(effects.Notes)
	if effects.Err != nil {
		return effects.Err
	}
	if _, managed, _ := pod.Path(); managed && a.hasProviders { // the ledger has reported the error
		a.requests.Expect(pod.Ref())
	}
	a.protect(ctx)
	return nil
}

// UpdatePodSandbox handles new resources of a pod (in-place resize). overhead and limit are in bytes and replace those of
// the pod, whose own may be stale.
func (s *Session) UpdatePodSandbox(ctx context.Context, pod ledger.Pod, overhead, limit uint64) error {
	a, header := s.agent, s.header()
	effects := a.decide(ctx, ledger.UpdatePod{Pod: pod, Overhead: overhead, Limit: limit, Header: header}, nil)
	defer a.logNotes(effects.Notes)
	if effects.Err == nil {
		a.protect(ctx)
	}
	return effects.Err
}

// StopPodSandbox ends a pod's containers, and the pod once its cgroup is gone. Stopping it again is harmless.
func (s *Session) StopPodSandbox(ctx context.Context, pod ledger.Pod) error {
	s.agent.endSandbox(ctx, pod)
	return nil
}

// RemovePodSandbox ends what is left of a sandbox.
func (s *Session) RemovePodSandbox(ctx context.Context, pod ledger.Pod) error {
	s.agent.endSandbox(ctx, pod)
	return nil
}

func (a *Agent) endSandbox(ctx context.Context, pod ledger.Pod) {
	path, managed, _ := pod.Path() // one without a path is not the kubelet's
	a.handle(ctx, ledger.EndPod{Pod: pod, Gone: managed && a.tree.Ended(path.Pod)})
	a.poke() // Run looks whether the pod has ended
}

// StopContainer handles the end of a container. Its allocation stays for its next start as long as the pod lives.
func (s *Session) StopContainer(ctx context.Context, _ ledger.Pod, container ledger.Container) error {
	s.agent.handle(ctx, ledger.EndContainer{ID: container.ID, Header: s.header()})
	return nil
}

// RemoveContainer handles a container that the runtime forgets.
func (s *Session) RemoveContainer(ctx context.Context, _ ledger.Pod, container ledger.Container) error {
	s.agent.handle(ctx, ledger.EndContainer{ID: container.ID, Header: s.header()})
	return nil
}

// handle is for events without an answer.
func (a *Agent) handle(ctx context.Context, event ledger.Event) { a.finish(ctx, a.step(event)) }

// finish does what a Step without an answer has left to do.
func (a *Agent) finish(ctx context.Context, effects ledger.Effects) {
	a.protect(ctx)
	a.logNotes(effects.Notes)
}

// CreateContainer places a container and computes its values. The error is for the pod's events: the container must
// not be created.
func (s *Session) CreateContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) (ledger.Adjustment, error) {
	a, header := s.agent, s.header()
	began := a.now()
	managed, err := isManaged(pod)
	if err != nil || !managed {
		return ledger.Adjustment{}, err
	}
	effects := a.decide(ctx, ledger.CreateContainer{Pod: pod, Container: container, Header: header}, nil)
	err = a.prepare(ctx, effects)
	time.AfterFunc(ancestorsDelay, a.poke)
	if err != nil {
		err = fmt.Errorf("container %s of pod %s/%s: %w", container.Name, pod.Namespace, pod.Name, err)
		if !effects.DryRun {
			a.handle(ctx, ledger.AbandonContainer{ID: container.ID}) // its pod stays
			a.poke()                                                 // past the deadline, that is left to Run
		}
	}
	a.logNotes(effects.Notes)
	a.logDecision("container created", effects.Effects, err, a.now().Sub(began))
	if effects.DryRun {
		err = nil
	}
	if err != nil {
		return ledger.Adjustment{}, err
	}
	return effects.Answer, nil
}

// UpdateContainer recomputes a container whose resources the kubelet changes. nil means that nothing of ours has to
// change; the error refuses the change.
func (s *Session) UpdateContainer(ctx context.Context, pod ledger.Pod, container ledger.Container, to ledger.Resources) (*ledger.Adjustment, error) {
	a, header := s.agent, s.header()
	began := a.now()
	managed, err := isManaged(pod)
	if err != nil || !managed {
		return nil, err
	}
	effects := a.decide(ctx, ledger.UpdateContainer{Pod: pod, Container: container, To: to, Header: header}, nil)
	if effects.Err == nil && !effects.DryRun {
		a.protect(ctx) // the runtime writes at once
	}
	err = a.prepare(ctx, effects)
	if err != nil {
		err = fmt.Errorf("container %s of pod %s/%s: %w", container.Name, pod.Namespace, pod.Name, err)
		a.handle(ctx, ledger.FailUpdate{ID: container.ID, Header: header})
		a.poke()
	}
	a.logNotes(effects.Notes)
	a.logDecision("container updated", effects.Effects, err, a.now().Sub(began))
	if effects.DryRun {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	a.noteMigration(container.ID, effects.Answer, effects.facts.Usage)
	if effects.Answer.Empty() {
		return nil, nil
	}
	return &effects.Answer, nil
}

// ancestorsDelay is when Run writes the cgroups above a new container, whose start waits for them: the runtime takes longer to make it, and
// sooner, Run would take the processor from the answer.
const ancestorsDelay = 10 * time.Millisecond

// prepare does what has to be done before the answer goes out. The error refuses the container.
func (a *Agent) prepare(ctx context.Context, effects decided) error {
	if effects.Err != nil {
		return effects.Err
	}
	if err := a.waitStored(ctx, effects.ticket); err != nil || effects.DryRun {
		return err
	}
	a.saveJournal(ctx)
	return ctx.Err() // past the deadline the runtime goes on without our answer
}

// isManaged reports whether a pod is the kubelet's; others are left alone.
func isManaged(pod ledger.Pod) (bool, error) {
	_, managed, err := pod.Path()
	if err != nil {
		err = fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return managed, err
}

// StartContainer handles a container that is about to run: its memory must not be on other nodes from the first page on. It
// never fails: what is wrong with the files is repaired later.
func (s *Session) StartContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) error {
	a, header := s.agent, s.header()
	container.State = ledger.Running
	a.finish(ctx, a.decide(ctx, ledger.StartContainer{Pod: pod, Container: a.lookUpDevices(container), Header: header}, nil).Effects)
	if at, lives := a.place(container.ID); lives {
		_ = a.protector.Start(ctx, at.Cgroup)
	}
	a.readDueLimits(ctx)
	signal(a.restoreDue)
	return nil
}

// PostUpdateContainer handles an update that the runtime has applied: what was lowered may now be lowered above too.
func (s *Session) PostUpdateContainer(ctx context.Context, _ ledger.Pod, container ledger.Container) error {
	a := s.agent
	a.handle(ctx, ledger.FinishUpdate{ID: container.ID, Header: s.header()})
	a.readDueLimits(ctx)
	signal(a.restoreDue)
	return nil
}

// Synchronize takes over what the runtime has. It asks no API and writes the checkpoint once. The order of pods and
// containers does not matter.
func (s *Session) Synchronize(ctx context.Context, sandboxes []ledger.Pod, containers []ledger.Container) ([]ledger.Update, error) {
	a, header := s.agent, s.header()
	containers = slices.Clone(containers)
	for i := range containers {
		containers[i] = a.lookUpDevices(containers[i])
	}
	event := ledger.Synchronize{Pods: sandboxes, Containers: containers, Header: header}
	effects := a.decide(ctx, event, func(d decided) {
		if d.Err == nil {
			a.outbox.seen, a.outbox.sync = a.seen(d.facts.Found), nil // the answer has what is to be updated
			a.outbox.unasked = a.ledger.Refs()
			a.requests.Retain(a.outbox.unasked)
		}
	})
	if effects.Err != nil {
		a.logNotes(effects.Notes)
		return nil, effects.Err
	}

	_ = a.waitStored(ctx, effects.ticket) // the runtime has its containers all the same
	desired := a.protect(ctx)
	a.saveJournal(ctx)
	if desired && !effects.DryRun {
		a.protector.RestoreEnded(ctx)
	}
	a.poke() // Run looks at the files, and for better requests
	a.logNotes(effects.Notes)
	return a.syncContainers(ctx, effects.Sync), nil
}

// seen is what containers were just read to hold, by cgroup.
func (a *Agent) seen(found ledger.Found) map[string]cgroup.Seen {
	seen := make(map[string]cgroup.Seen, len(found.Files))
	for id, files := range found.Files {
		if at, lives := a.ledger.Place(id); lives {
			seen[at.Cgroup] = files.Seen()
		}
	}
	return seen
}
