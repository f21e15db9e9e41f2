package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// decision is what one event came to, taken along out of the lock.
type decision struct {
	container  string // cgroup of the container
	about      *facts // nil when there is nothing to tell
	adjustment Adjustment
	ticket     checkpoint.Ticket
	moved      bool // an update changed the limit or the nodes
	dryRun     bool
	err        error
}

// CreateContainer places a container and computes its values. The error is for the pod's events: the container must
// not be created.
func (a *Agent) CreateContainer(ctx context.Context, told Pod, container Container) (Adjustment, error) {
	began := a.now()
	managed, err := a.inquire(ctx, told, container.Name)
	if err != nil || !managed {
		return Adjustment{}, err
	}
	d := a.decideCreate(told, container)
	if d.err == nil {
		d.err = a.durable(ctx, d.ticket)
	}
	if d.err == nil && !d.dryRun {
		a.note(d.container, d.adjustment, container.Resources.Unified)
		a.protect(ctx)
		d.err = ctx.Err() // past the deadline the runtime goes on without our answer
	}
	if d.err != nil {
		d.err = fmt.Errorf("container %s of pod %s/%s: %w", container.Name, told.Namespace, told.Name, d.err)
		if !d.dryRun {
			a.abandon(container.ID)
		}
	}
	a.tell("container created", d, a.now().Sub(began))
	if d.dryRun {
		return Adjustment{}, nil
	}
	if d.err != nil {
		return Adjustment{}, d.err
	}
	return d.adjustment, nil
}

// inquire asks for the pod's requests where they are not known. The sources may be slow, so that no lock is held.
func (a *Agent) inquire(ctx context.Context, told Pod, container string) (managed bool, err error) {
	a.mu.Lock()
	p, err := a.podOf(told)
	managed = err == nil && p.managed
	ask := managed && a.sourced && !p.knows(container)
	if ask {
		p.asked = true
	}
	a.mu.Unlock()
	if !managed {
		return false, err
	}
	if ask {
		a.requests.Resolve(ctx, p.ref)
		a.mu.Lock()
		if a.learn(p) && len(p.containers) > 0 { // who was created before knew less
			a.revise(keyOf(told))
		}
		a.mu.Unlock()
	}
	a.takeLimit(told)
	return true, nil
}

// takeLimit reads the limit of a pod whose spec is not known from its cgroup: after a resize the runtime may have an old one.
func (a *Agent) takeLimit(told Pod) {
	limit, ok := a.limitOfPod(told)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pods[keyOf(told)]; p != nil && p.info == nil {
		p.MemoryLimit = limit
	}
}

// limitOfPod reads memory.max of a Guaranteed pod's cgroup, less the pod's overhead. It is false where there is none.
func (a *Agent) limitOfPod(told Pod) (uint64, bool) {
	path, managed, err := pathOf(told)
	if err != nil || !managed || path.Class != memoryqos.Guaranteed {
		return 0, false
	}
	limit, err := a.tree.Limit(path.Pod)
	if err != nil || limit == cgroup.Max {
		return 0, false
	}
	return limit - min(limit, told.Overhead), true
}

// decideCreate is the part of a create that happens under the lock. A sandbox that has been stopped while the sources were
// asked is found here.
func (a *Agent) decideCreate(told Pod, container Container) decision {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := decision{dryRun: a.resolved.Config.DryRun}
	p, err := a.podOf(told)
	if err != nil {
		d.err = err
		return d
	}
	c, err := a.admit(p, container)
	a.touch(p)
	about := c.facts()
	d.about, d.err, d.ticket = &about, err, p.ticket
	if err != nil {
		return d
	}
	d.container, d.adjustment = c.cgroup, c.adjustment()
	if !d.dryRun {
		a.gave(c, d.adjustment)
	}
	return d
}

// admit takes a new container in: its place and its values. A container of the same name that was there before is
// replaced, be it one that ended or one whose creation was given up later on. The lock is held.
func (a *Agent) admit(p *pod, told Container) (*container, error) {
	c := p.named(told.Name)
	if c == nil {
		c = &container{pod: p, name: told.Name}
		p.containers = append(p.containers, c)
	} else {
		a.end(c)
	}
	a.attach(c, told, Unknown)
	err := a.checkAnnotations(c)
	if err == nil {
		err = a.book(c)
	}
	if err != nil && !a.resolved.Config.DryRun { // which refuses nothing
		a.end(c)
	}
	a.sumUp(p)
	return c, err
}

// attach ties a container of the runtime to its state. The lock is held.
func (a *Agent) attach(c *container, told Container, state State) {
	c.id, c.state, c.born, c.seen = told.ID, state, a.now(), false
	c.resources = told.Resources
	c.limit = limitOf(told.Resources.MemoryLimit)
	c.cgroup, _ = c.pod.path.Container(told.CgroupsPath, told.ID)
	c.before, c.check = nil, false
	c.givenMems, c.released = told.Resources.Mems, false
	c.raised = a.keptRaise(told.ID)
	a.containers[told.ID] = c
	a.compute(c)
}

// limitOf reads a CRI memory limit: what is not positive is none.
func limitOf(limit *int64) uint64 {
	if limit == nil || *limit <= 0 {
		return 0
	}
	return uint64(*limit)
}

// checkAnnotations refuses a container with wrong annotations where the administrator wants that.
func (a *Agent) checkAnnotations(c *container) error {
	if !c.pod.annotated || a.resolved.Config.OnBadAnnotation != config.RejectPod {
		return nil
	}
	_, problems := c.pod.wishesFor(c.name)
	if len(problems) == 0 {
		return nil
	}
	texts := make([]string, len(problems))
	for i, problem := range problems {
		texts[i] = problem.Message
	}
	err := fmt.Errorf("bad annotations: %s", strings.Join(texts, "; "))
	a.reject(c, BadAnnotation, err.Error(), true)
	return err
}

// end takes a container out of the living ones. Its booking stays. The lock is held.
func (a *Agent) end(c *container) {
	if a.containers[c.id] == c {
		delete(a.containers, c.id)
	}
	if c.high() != nil {
		a.highSignal()
	}
	c.state, c.before, c.raised, c.check = Stopped, nil, 0, false
	a.touch(c.pod)
}

// abandon takes back what a create that failed after its decision added to the sums; the booking waits for the retry.
func (a *Agent) abandon(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.containers[id]; c != nil && c.state == Unknown {
		a.end(c)
		a.sumUp(c.pod)
		a.poke()
	}
}

// forget drops a container that has ended and has no booking. The lock is held.
func (a *Agent) forget(c *container) {
	if c.alive() || a.manager != nil && a.manager.Blocks(keyOf(c.pod.Pod), c.name) != nil {
		return
	}
	p := c.pod
	p.containers = slices.DeleteFunc(p.containers, func(other *container) bool { return other == c })
	a.touch(p)
}

// durable waits until a decision is on disk. A disk that fails degrades readiness and does not stop the container; a
// disk that is only slow must not have it started before its decision is safe. One that hangs counts as failing after
// slowDisk: until then the kubelet's next try finds the decision made.
func (a *Agent) durable(ctx context.Context, ticket checkpoint.Ticket) error {
	if a.writer == nil {
		return nil
	}
	waiting, cancel := ctx, func() {}
	if a.hangs() {
		waiting, cancel = context.WithTimeout(ctx, graceOfHanging)
	}
	defer cancel()
	err := ticket.Wait(waiting)
	switch {
	case err == nil:
		a.checkpointFailed("")
	case ctx.Err() != nil:
		a.counters.late.Add(1)
		return fmt.Errorf("the state file was not written in time (a slow disk?), the decision is kept for the next try: %w", err)
	case waiting.Err() != nil:
		a.counters.late.Add(1)
		a.checkpointFailed("it has not been written for more than " + slowDisk.String())
	default:
		a.checkpointFailed(err.Error())
	}
	return nil
}

// graceOfHanging is how long a decision waits for a disk that hangs.
const graceOfHanging = 50 * time.Millisecond

// hangs tells whether the state file has been on its way to the disk for too long.
func (a *Agent) hangs() bool {
	stats := a.writer.Stats()
	return stats.Pending && a.now().Sub(stats.PendingSince) > slowDisk
}

// checkpointFailed logs an error of the checkpoint once, and its end; "" is none.
func (a *Agent) checkpointFailed(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if text == a.lastCheckpointError {
		return
	}
	a.lastCheckpointError = text
	if text == "" {
		a.log.Info("the state file can be written again")
		return
	}
	a.log.WithField("error", text).Error("the state file cannot be written: containers start, but bookings are kept in memory only")
}

// tell logs a decision, one line.
func (a *Agent) tell(event string, d decision, took time.Duration) {
	if d.about == nil {
		return
	}
	fields := d.about.fields()
	fields["duration"] = took
	log := a.log.WithFields(fields)
	if d.dryRun {
		log = log.WithField("dryRun", true)
	}
	if d.err != nil {
		log.WithError(d.err).Warn(event + ": refused")
		return
	}
	log.Info(event)
}
