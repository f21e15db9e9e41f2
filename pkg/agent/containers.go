package agent

import "context"

// StartContainer tells that a container is about to run. A container that was created by values that have changed since
// is brought to the new ones. So is one whose creation was answered too late: runtimes without NRI's failure policy go on
// without the answer.
func (a *Agent) StartContainer(ctx context.Context, told Pod, container Container) error {
	container.State = Running
	a.mu.Lock()
	c := a.containers[container.ID]
	if c == nil {
		if c = a.missed(told, container); c == nil {
			a.mu.Unlock()
			return nil
		}
	}
	check, begins := c.check, c.state != Running
	if begins {
		c.state = Running
		a.touch(c.pod)
		if c.high() != nil {
			a.highSignal()
		}
	}
	a.mu.Unlock()
	a.protect(ctx)
	if begins {
		a.watch(container.ID)
	}
	if check {
		return a.checkFiles(ctx, container.ID)
	}
	return nil
}

// missed takes in a container that runs without this agent's answer, if it is one of ours. The lock is held.
func (a *Agent) missed(told Pod, begun Container) *container {
	p, err := a.podOf(told)
	if err != nil || !p.managed {
		return nil
	}
	c := a.takeIn(p, begun)
	c.state, c.check = Created, true
	a.log.WithFields(c.fields()).Warn("a container starts that was created without an answer of ours")
	return c
}

// StopContainer tells that a container has ended. Its booking stays for its next start as long as the pod lives.
func (a *Agent) StopContainer(ctx context.Context, told Pod, container Container) error {
	a.endContainer(ctx, container.ID)
	return nil
}

// RemoveContainer tells that the runtime forgets a container.
func (a *Agent) RemoveContainer(ctx context.Context, told Pod, container Container) error {
	a.endContainer(ctx, container.ID)
	return nil
}

// endContainer takes a container out of its pod's sums. An id that is not known belongs to an earlier start of a
// container, or to one that has ended before: both are done with.
func (a *Agent) endContainer(ctx context.Context, id string) {
	a.mu.Lock()
	c := a.containers[id]
	if c != nil {
		a.end(c)
		a.sumUp(c.pod)
		a.forget(c)
	}
	a.mu.Unlock()
	if c != nil {
		a.protect(ctx)
	}
}
