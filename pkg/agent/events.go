package agent

import (
	"context"
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// RunPodSandbox handles a new pod sandbox.
func (s *Session) RunPodSandbox(ctx context.Context, pod ledger.Pod) error {
	a, header := s.agent, s.header()
	effects := s.receive(ctx, ledger.RunPod{Pod: a.read(pod), Header: header})
	defer a.logNotes(effects.Notes)
	if effects.Err != nil {
		return effects.Err
	}
	if _, managed, _ := pod.Path(); managed && a.sourced { // the ledger has reported the error
		a.requests.Expect(pod.Ref())
	}
	a.protect(ctx)
	return nil
}

// UpdatePodSandbox handles new resources of a pod (in-place resize). overhead and limit are in bytes and replace those of
// the pod, whose own may be stale.
func (s *Session) UpdatePodSandbox(ctx context.Context, pod ledger.Pod, overhead, limit uint64) error {
	a, header := s.agent, s.header()
	effects := s.receive(ctx, ledger.UpdatePod{Pod: a.read(pod), Overhead: overhead, Limit: limit, Header: header})
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

// read reads what a pod brings, once for each sandbox and outside the lock.
func (a *Agent) read(pod ledger.Pod) ledger.Pod {
	a.mu.Lock()
	read := a.ledger.Reader(pod)
	a.mu.Unlock()
	if read == nil {
		pod.Annotations = nil
		return pod
	}
	return read(pod)
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
	pod = a.read(pod)
	find := a.findDevices(ctx, pod, container)
	limit, managed, err := a.inquire(ctx, pod, container.Name)
	if err != nil || !managed {
		return ledger.Adjustment{}, err
	}
	a.endPods(ctx)
	a.rereadClaims(ctx, pod, container)
	found := find()
	container, others := withDevices(container, found.devices)
	free, mems := a.freePages(pod, container), a.podMems(pod, container)
	a.observeSample(pod, container)
	create := ledger.CreateContainer{Pod: pod, Container: container, PodLimit: limit, PodDevices: others, PodCPUs: found.cpus, FreePages: free, Mems: mems,
		Siblings: a.siblings(pod, container.Name), Header: header}
	effects, ticket := s.decide(ctx, pod, func(known pods.Answer) ledger.Event {
		create.Known = known
		return create
	})
	a.poke() // Run writes the cgroups above while the runtime makes the container, whose start waits for them
	err = a.prepare(ctx, effects, ticket)
	if err != nil {
		err = fmt.Errorf("container %s of pod %s/%s: %w", container.Name, pod.Namespace, pod.Name, err)
		if !effects.DryRun {
			a.handle(ctx, ledger.AbandonContainer{ID: container.ID}) // its pod stays
			a.poke()                                                 // past the deadline, that is left to Run
		}
	}
	a.logNotes(effects.Notes)
	a.logDecision("container created", effects, err, a.now().Sub(began))
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
	pod = a.read(pod)
	limit, managed, err := a.inquire(ctx, pod, container.Name)
	if err != nil || !managed {
		return nil, err
	}
	a.endPods(ctx)
	found := a.find(pod, container)
	container, _ = withDevices(container, nil)
	siblings, usage := a.siblings(pod, container.Name), a.usageOf(ctx, pod, container)
	effects, ticket := s.decide(ctx, pod, func(known pods.Answer) ledger.Event {
		return ledger.UpdateContainer{Pod: pod, Container: container, To: to, PodLimit: limit, Known: known, Siblings: siblings, Found: found,
			Usage: usage, Header: header}
	})
	if effects.Err == nil && !effects.DryRun {
		a.protect(ctx) // the runtime writes at once
	}
	err = a.prepare(ctx, effects, ticket)
	if err != nil {
		err = fmt.Errorf("container %s of pod %s/%s: %w", container.Name, pod.Namespace, pod.Name, err)
		a.handle(ctx, ledger.FailUpdate{ID: container.ID, Header: header})
		a.poke()
	}
	a.logNotes(effects.Notes)
	a.logDecision("container updated", effects, err, a.now().Sub(began))
	if effects.DryRun {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	a.noteMigration(container.ID, effects.Answer, usage)
	if effects.Answer.Empty() {
		return nil, nil
	}
	return &effects.Answer, nil
}

// decide applies an event with the newest that the pod APIs know of its pod. Answers and notifications may overtake one
// another, so that this is asked under the lock.
func (s *Session) decide(ctx context.Context, pod ledger.Pod, event func(pods.Answer) ledger.Event) (ledger.Effects, checkpoint.Ticket) {
	a := s.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	var known pods.Answer
	if a.sourced {
		known, _ = a.requests.Known(pod.Ref())
	}
	effects := s.receiveLocked(ctx, event(known))
	return effects, a.outbox.tickets[pod.Key()]
}

// prepare does what has to be done before the answer goes out. The error refuses the container.
func (a *Agent) prepare(ctx context.Context, effects ledger.Effects, ticket checkpoint.Ticket) error {
	if effects.Err != nil {
		return effects.Err
	}
	if err := a.stored(ctx, ticket); err != nil || effects.DryRun {
		return err
	}
	a.saveJournal(ctx)
	return ctx.Err() // past the deadline the runtime goes on without our answer
}

// writeAhead does what comes before anything that the runtime is told to write: the cgroups above have room for it, and the journal has it.
func (a *Agent) writeAhead(ctx context.Context) {
	a.protect(ctx)
	a.saveJournal(ctx)
}

// inquire asks the pod APIs where they have not described the container yet, and reads the pod's limit. Both may be slow,
// so that no lock is held.
func (a *Agent) inquire(ctx context.Context, pod ledger.Pod, container string) (limit *uint64, managed bool, err error) {
	path, managed, err := pod.Path()
	if err != nil {
		return nil, false, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if !managed {
		return nil, false, nil
	}
	if a.sourced {
		a.mu.Lock()
		ask := !a.ledger.Stopped(pod.ID) && !a.ledger.Describes(pod.Key(), container)
		a.mu.Unlock()
		if ask {
			a.requests.Resolve(ctx, pod.Ref())
		}
	}
	return a.podLimit(pod, path), true, nil
}

// podLimit reads memory.max of a Guaranteed pod's cgroup, less the pod's overhead; nil where there is none.
func (a *Agent) podLimit(pod ledger.Pod, path cgroup.PodPath) *uint64 {
	if path.Class != memoryqos.Guaranteed {
		return nil
	}
	limit, err := a.tree.Limit(path.Pod)
	if err != nil || limit == cgroup.Max {
		return nil
	}
	limit -= min(limit, pod.Overhead)
	return &limit
}

// StartContainer handles a container that is about to run: its memory must not be on other nodes from the first page on. It
// never fails: what is wrong with the files is repaired later.
func (s *Session) StartContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) error {
	a, header := s.agent, s.header()
	container.State = ledger.Running
	pod = a.read(pod)
	a.finish(ctx, s.receive(ctx, ledger.StartContainer{
		Pod: pod, Container: a.lookUpDevices(container), Found: a.find(pod, container), Header: header,
	}))
	if at, lives := a.place(container.ID); lives {
		_ = a.protector.Start(ctx, at.Cgroup)
	}
	a.lookDue(ctx)
	signal(a.undo)
	return nil
}

// PostUpdateContainer handles an update that the runtime has applied: what was lowered may now be lowered above too.
func (s *Session) PostUpdateContainer(ctx context.Context, _ ledger.Pod, container ledger.Container) error {
	a := s.agent
	a.handle(ctx, ledger.Settled{ID: container.ID, Header: s.header()})
	a.lookDue(ctx)
	signal(a.undo)
	return nil
}

// Synchronize takes over what the runtime has. It asks no API and writes the checkpoint once. The order of pods and
// containers does not matter.
func (s *Session) Synchronize(ctx context.Context, sandboxes []ledger.Pod, containers []ledger.Container) ([]ledger.Update, error) {
	a, header := s.agent, s.header()
	sandboxes = slices.Clone(sandboxes)
	for i := range sandboxes {
		sandboxes[i] = a.read(sandboxes[i])
	}
	found, seen := a.observeAll(sandboxes, containers)
	found.Populated = a.unlisted(containers)
	containers = slices.Clone(containers)
	for i := range containers {
		containers[i] = a.lookUpDevices(containers[i])
	}
	event := ledger.Synchronize{Pods: sandboxes, Containers: containers, Found: found, Header: header}
	a.mu.Lock()
	if a.sourced {
		event.Known = make(map[string]pods.Answer, len(sandboxes))
		for i := range sandboxes {
			if answer, ok := a.requests.Known(sandboxes[i].Ref()); ok {
				event.Known[sandboxes[i].Key()] = answer
			}
		}
	}
	effects := s.receiveLocked(ctx, event)
	if effects.Err == nil {
		a.outbox.seen, a.outbox.sync = seen, nil // the answer has what is to be updated
		a.requests.Retain(a.ledger.Refs())
	}
	ticket := a.outbox.newest
	a.mu.Unlock()
	if effects.Err != nil {
		a.logNotes(effects.Notes)
		return nil, effects.Err
	}

	_ = a.stored(ctx, ticket) // the runtime has its containers all the same
	desired := a.protect(ctx)
	a.saveJournal(ctx)
	if desired && !effects.DryRun {
		a.protector.Unclaim(ctx)
	}
	a.poke() // Run looks at the files, and for better requests
	a.logNotes(effects.Notes)
	return a.syncContainers(ctx, effects.Sync), nil
}
