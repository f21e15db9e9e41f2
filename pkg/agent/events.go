package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// Session is one connection of a runtime; its methods handle the runtime's events. Late events are ignored: those of a connection that has
// ended, those that the runtime has given up, and those overtaken by a newer event about the same container or pod. Only the end of a
// container or pod counts whenever it arrives.
type Session struct {
	agent *Agent
	epoch uint64
	apply func(context.Context, []ledger.Update) error // nil if the runtime takes no unsolicited updates

	sending bool // updates are being sent to the runtime; guarded by agent.mu
}

// Connected is called when a runtime has accepted the plugin. The session receives its events until Disconnected. apply sends unsolicited
// updates of running containers to the runtime; if it is nil, the agent only writes the containers' cgroup files.
func (a *Agent) Connected(runtime ledger.Runtime, apply func(context.Context, []ledger.Update) error) *Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch++
	a.session = &Session{agent: a, epoch: a.epoch, apply: apply}
	a.stepLocked(ledger.Connected{Runtime: runtime, Epoch: a.epoch})
	return a.session
}

// Disconnected is called with the reason when the connection has ended.
func (a *Agent) Disconnected(reason error) {
	text := "the runtime has closed the connection"
	if reason != nil {
		text = reason.Error()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session = nil
	a.stepLocked(ledger.Disconnected{Reason: text})
}

// header returns the header of an event that is received now.
func (s *Session) header() ledger.Header {
	return ledger.Header{Epoch: s.epoch, Seq: s.agent.received.Add(1)}
}

// RunPodSandbox handles a new pod sandbox.
func (s *Session) RunPodSandbox(ctx context.Context, pod ledger.Pod) error {
	a, header := s.agent, s.header()
	effects := a.gatherAndStep(ctx, ledger.RunPod{Pod: pod, Header: header}, nil)
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

// UpdatePodSandbox handles new resources of a pod (in-place resize). overhead and limit, in bytes, replace those in pod, which may be stale.
func (s *Session) UpdatePodSandbox(ctx context.Context, pod ledger.Pod, overhead, limit uint64) error {
	a, header := s.agent, s.header()
	effects := a.gatherAndStep(ctx, ledger.UpdatePod{Pod: pod, Overhead: overhead, Limit: limit, Header: header}, nil)
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

// RemovePodSandbox ends a sandbox that was not stopped before.
func (s *Session) RemovePodSandbox(ctx context.Context, pod ledger.Pod) error {
	s.agent.endSandbox(ctx, pod)
	return nil
}

func (a *Agent) endSandbox(ctx context.Context, pod ledger.Pod) {
	path, managed, _ := pod.Path() // a pod without a path is not the kubelet's
	a.handle(ctx, ledger.EndPod{Pod: pod, Gone: managed && a.tree.Ended(path.Pod)})
	a.poke() // Run checks whether the pod has ended
}

// StopContainer handles the end of a container. Its allocation is kept for its next start while the pod lives.
func (s *Session) StopContainer(ctx context.Context, _ ledger.Pod, container ledger.Container) error {
	s.agent.handle(ctx, ledger.EndContainer{ID: container.ID, Header: s.header()})
	return nil
}

// RemoveContainer handles a container that the runtime removes.
func (s *Session) RemoveContainer(ctx context.Context, _ ledger.Pod, container ledger.Container) error {
	s.agent.handle(ctx, ledger.EndContainer{ID: container.ID, Header: s.header()})
	return nil
}

// handle applies an event without an answer.
func (a *Agent) handle(ctx context.Context, event ledger.Event) { a.finish(ctx, a.step(event)) }

// finish carries out the effects of a Step without an answer.
func (a *Agent) finish(ctx context.Context, effects ledger.Effects) {
	a.protect(ctx)
	a.logNotes(effects.Notes)
}

// CreateContainer places a container and computes its values. An error means that the container must not be created; it is meant for the
// pod's events.
func (s *Session) CreateContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) (ledger.Adjustment, error) {
	a, header := s.agent, s.header()
	began := a.now()
	managed, err := isManaged(pod)
	if err != nil || !managed {
		return ledger.Adjustment{}, err
	}
	effects := a.gatherAndStep(ctx, ledger.CreateContainer{Pod: pod, Container: container, Header: header}, nil)
	err = a.waitForFiles(ctx, effects)
	time.AfterFunc(ancestorsDelay, a.poke)
	if err != nil {
		err = fmt.Errorf("container %s of pod %s/%s: %w", container.Name, pod.Namespace, pod.Name, err)
		if !effects.DryRun {
			a.handle(ctx, ledger.AbandonContainer{ID: container.ID})
			a.poke() // past the deadline Run writes the parent cgroups
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

// UpdateContainer recomputes a container whose resources the kubelet changes. It returns nil if there is nothing to adjust, and an error to
// refuse the change.
func (s *Session) UpdateContainer(ctx context.Context, pod ledger.Pod, container ledger.Container, to ledger.Resources) (*ledger.Adjustment, error) {
	a, header := s.agent, s.header()
	began := a.now()
	managed, err := isManaged(pod)
	if err != nil || !managed {
		return nil, err
	}
	effects := a.gatherAndStep(ctx, ledger.UpdateContainer{Pod: pod, Container: container, To: to, Header: header}, nil)
	if effects.Err == nil && !effects.DryRun {
		a.protect(ctx) // the runtime writes at once
	}
	err = a.waitForFiles(ctx, effects)
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

// ancestorsDelay is how long Run waits before it writes the parent cgroups of a new container. Earlier, the writes would take CPU time from
// the answer; and the runtime needs longer to create the container, whose start waits for the writes.
const ancestorsDelay = 10 * time.Millisecond

// waitForFiles waits for everything that an answer needs. An error refuses the container.
func (a *Agent) waitForFiles(ctx context.Context, effects stepped) error {
	if effects.Err != nil {
		return effects.Err
	}
	if err := a.waitStored(ctx, effects.ticket); err != nil || effects.DryRun {
		return err
	}
	a.saveJournal(ctx)
	return ctx.Err() // past the deadline the runtime ignores the answer
}

// isManaged reports whether a pod is the kubelet's; others are ignored.
func isManaged(pod ledger.Pod) (bool, error) {
	_, managed, err := pod.Path()
	if err != nil {
		err = fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return managed, err
}

// StartContainer handles a container that is about to run: it writes its files, so that its first page is on its NUMA nodes. It never fails:
// wrong files are repaired later.
func (s *Session) StartContainer(ctx context.Context, pod ledger.Pod, container ledger.Container) error {
	a, header := s.agent, s.header()
	container.State = ledger.Running
	a.finish(ctx, a.gatherAndStep(ctx, ledger.StartContainer{Pod: pod, Container: a.lookUpDevices(container), Header: header}, nil).Effects)
	if ref, lives := a.cgroupOf(container.ID); lives {
		_ = a.protector.Start(ctx, ref.Cgroup)
	}
	a.readDueLimits(ctx)
	signal(a.restoreDue)
	return nil
}

// PostUpdateContainer handles an update that the runtime has applied: lowered values may now be lowered in the parent cgroups too.
func (s *Session) PostUpdateContainer(ctx context.Context, _ ledger.Pod, container ledger.Container) error {
	a := s.agent
	a.handle(ctx, ledger.FinishUpdate{ID: container.ID, Header: s.header()})
	a.readDueLimits(ctx)
	signal(a.restoreDue)
	return nil
}

// Synchronize takes over all pods and containers of the runtime, in any order. It asks no API and writes the checkpoint once.
func (s *Session) Synchronize(ctx context.Context, sandboxes []ledger.Pod, containers []ledger.Container) ([]ledger.Update, error) {
	a, header := s.agent, s.header()
	containers = slices.Clone(containers)
	for i := range containers {
		containers[i] = a.lookUpDevices(containers[i])
	}
	event := ledger.Synchronize{Pods: sandboxes, Containers: containers, Header: header}
	effects := a.gatherAndStep(ctx, event, func(d stepped) {
		if d.Err == nil {
			a.outbox.seen, a.outbox.sync = a.seen(d.facts.Found), nil // the answer has all updates
			a.outbox.unasked = a.ledger.Refs()
			a.requests.Retain(a.outbox.unasked)
		}
	})
	if effects.Err != nil {
		a.logNotes(effects.Notes)
		return nil, effects.Err
	}

	_ = a.waitStored(ctx, effects.ticket) // the containers run in any case
	desired := a.protect(ctx)
	a.saveJournal(ctx)
	if desired && !effects.DryRun {
		a.protector.RestoreEnded(ctx)
	}
	a.poke() // Run checks the files and asks for exact requests
	a.logNotes(effects.Notes)
	return a.syncContainers(ctx, effects.Sync), nil
}

// seen returns the values just read from containers' files, by cgroup.
func (a *Agent) seen(found ledger.Found) map[string]cgroup.Seen {
	seen := make(map[string]cgroup.Seen, len(found.Files))
	for id, files := range found.Files {
		if ref, lives := a.ledger.CgroupOf(id); lives {
			seen[ref.Cgroup] = files.Seen()
		}
	}
	return seen
}
