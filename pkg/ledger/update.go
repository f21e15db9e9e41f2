package ledger

import (
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// UpdateContainer is the kubelet's change of a container's resources (in-place resize). It is answered with what has to
// change of ours; an empty answer is nothing.
type UpdateContainer struct {
	Pod       Pod
	Container Container
	To        Resources
	// PodLimit and Known are CreateContainer's.
	PodLimit *uint64
	Known    pods.Answer
	// Siblings is CreateContainer's.
	Siblings Presence
	// Found is StartContainer's.
	Found *Files
	Header
}

func (e UpdateContainer) apply(l *Ledger) {
	out := &l.step.effects
	p := l.podFor(e.Pod, e.Known, e.PodLimit)
	if p == nil {
		return
	}
	c := l.containers[e.Container.ID]
	if c == nil {
		if !e.Container.State.Alive() || p.check(e.Container) != nil {
			return
		}
		if out.Err = l.overtaken(p.named(e.Container.Name), e.Container.ID); out.Err != nil {
			return
		}
		c = l.takeIn(p, e.Container, e.Found)
	} else if out.Err = l.overtaken(c, c.id); out.Err != nil {
		return
	}
	l.seeContainers(e.Siblings)
	old := *c
	c.revision++
	c.seq = l.step.seq
	c.resources = c.resources.Updated(e.To)
	if limit := e.To.MemoryLimit; limit != nil && *limit != 0 { // CRI: 0 leaves the limit as it is
		c.setLimit(limitOf(limit))
		c.limitIsPods = e.PodLimit != nil && c.hasPodLimit() // the pod's may be that of before, else
	}
	l.findShared(p)
	l.compute(c)
	if err := l.reallocate(c, request(&old), e.To); err != nil {
		l.refused(c, old, err)
		return
	}
	c.updating = l.step.now
	if !same(old.promised(), c.wanted) {
		before := old.promised()
		c.before = &before
	}
	l.sumUp(p)
	adjustment := Adjustment{Unified: changes(c.given, c.effective(), e.To.Unified, c.unsure)}
	if mems := l.mems(c); mems != "" && (mems != c.givenMems || c.unsure.mems || e.To.Mems != "" && e.To.Mems != mems) {
		adjustment.CpusetMems = mems
	}
	moved := c.nodes != old.nodes || c.limit != old.limit || !slices.Equal(c.short, old.short)
	if !adjustment.Empty() || moved {
		out.Decision = c.decision()
	}
	l.answered(c, adjustment, e.Container.Resources.Unified, e.To.Unified)
	if !l.runtime.ReplyUnified {
		// The runtime would drop them: the files are written after it has done its part.
		adjustment.Unified = nil
	}
	out.Answer = adjustment
}

// refused leaves a container as it was before a resize that cannot be allocated.
func (l *Ledger) refused(c *container, old container, err error) {
	raised, refusal, revision, seq := c.raised, c.refusal, c.revision, c.seq
	*c = old
	c.raised, c.refusal, c.revision, c.seq = raised, refusal, revision, seq
	out := &l.step.effects
	out.Err = err
	if c.refusal == nil || c.refusal.Count == 1 { // the log has the first try
		out.Decision = c.decision()
	}
}

// reallocate brings a container's allocation to its new resources. The error refuses the change, which is one that asks for more than
// before: a container that is short of memory may ask for less, or for something else.
func (l *Ledger) reallocate(c *container, before memorymanager.Request, to Resources) error {
	if l.manager == nil {
		return nil
	}
	if c.byKubelet {
		if to.Mems == "" && c.limit == 0 {
			return nil
		}
		l.respect(c)
		if l.unpinnable(c) == "" {
			return l.adopt(c, request(c), c.pinning)
		}
		return nil
	}
	if !l.misfits(c) {
		if len(c.short) > 0 { // and no longer is
			c.nodes, c.short = nodesOf(l.manager.Blocks(c.pod.key(), c.name)), nil
		}
		return nil
	}
	if err := l.refusedAgain(c); err != nil {
		return err
	}
	more := slices.ContainsFunc(request(c), func(a memorymanager.Amount) bool { return a.Bytes > before.Of(a.Type) })
	err := l.fit(c, more && l.resolved.RefusesResize(c.wishes.NUMA))
	if err != nil {
		l.refuse(c, err)
	}
	return err
}

// Updated lays a request over what a container has: what it does not name stays.
func (have Resources) Updated(to Resources) Resources {
	if to.MemoryLimit != nil && *to.MemoryLimit != 0 {
		have.MemoryLimit = to.MemoryLimit
	}
	if to.OOMScoreAdj != nil {
		have.OOMScoreAdj = to.OOMScoreAdj
	}
	if to.CPUs != "" {
		have.CPUs = to.CPUs
	}
	if to.CPUShares != nil && *to.CPUShares != 0 {
		have.CPUShares = to.CPUShares
	}
	if to.Mems != "" {
		have.Mems = to.Mems
	}
	if len(to.Hugepages) > 0 {
		have.Hugepages = to.Hugepages
	}
	if len(to.Unified) > 0 {
		all := maps.Clone(have.Unified)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, to.Unified)
		have.Unified = all
	}
	return have
}

// FailUpdate is an update whose answer was an error: what the files show next is right. Its Header is the update's.
type FailUpdate struct {
	ID string
	Header
}

func (e FailUpdate) apply(l *Ledger) {
	if c := l.containers[e.ID]; c != nil && e.Seq >= c.seq {
		l.settle(c)
		l.look(c)
	}
}

// Settled is an update of the kubelet's that the runtime has applied: from now on the files should hold what is desired.
// Without an ID these are all whose end the runtime has not reported in time.
type Settled struct {
	ID string
	Header
}

func (e Settled) apply(l *Ledger) {
	if e.ID != "" {
		if c := l.containers[e.ID]; c != nil && e.Seq >= c.seq {
			c.unsure = fileSet{}
			l.settle(c)
			l.look(c)
		}
		return
	}
	for _, p := range l.living {
		for _, c := range p.containers {
			if !c.updating.IsZero() && l.step.now.Sub(c.updating) > updateTakes {
				l.settle(c)
				l.look(c)
			}
		}
	}
}

// settle ends the time in which the runtime may be applying an update, and a lowered container still counts as it was.
func (l *Ledger) settle(c *container) {
	if c.updating.IsZero() {
		return
	}
	c.updating, c.before = zeroTime, nil
	l.sumUp(c.pod)
}
