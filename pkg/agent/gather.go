package agent

import (
	"context"
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

// decided is what was decided about an event, and by which facts.
type decided struct {
	ledger.Effects
	facts  ledger.Gathered
	ticket checkpoint.Ticket // of the pod's allocation, or the newest of all for an event that is not about a container
}

// decide has the ledger decide about an event once it lacks nothing that can be found out. That is found out outside of the lock, and an
// event that had to wait for it decides nothing once ctx has ended: the kubelet may have tried again since. then is called under the lock
// after the decision; nil is nothing.
func (a *Agent) decide(ctx context.Context, event ledger.Event, then func(decided)) (d decided) {
	for {
		needs := a.tryToDecide(ctx, event, &d, then)
		if needs.None() {
			return d
		}
		a.gather(ctx, needs, &d.facts)
	}
}

// tryToDecide has the ledger decide about an event for which it lacks nothing, by the newest that the pod APIs have said: their answers and
// notifications may overtake one another, so that they are taken under the lock.
func (a *Agent) tryToDecide(ctx context.Context, event ledger.Event, d *decided, then func(decided)) ledger.Needs {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		d.Err = fmt.Errorf("the runtime no longer waits for an answer: %w", err)
		return ledger.Needs{}
	}
	needs := a.ledger.Needs(event, &d.facts)
	if !needs.None() {
		return needs
	}
	if a.hasProviders {
		d.facts.PodInfos = make(map[pods.Ref]pods.Answer, len(needs.Refs))
		for _, ref := range needs.Refs {
			d.facts.PodInfos[ref], _ = a.requests.Known(ref)
		}
	}
	d.Effects = a.stepLocked(ledger.With(event, d.facts))
	if d.ticket = a.outbox.newest; needs.Container.Name != "" {
		d.ticket = a.outbox.tickets[needs.Pod.Key()]
	}
	if then != nil {
		then(*d)
	}
	return needs
}

// gather finds out what the ledger lacks, each fact within its own time. What cannot be found out is not asked for again. The devices are
// asked for while the pod APIs are: together they have a.requestTimeout. Files are read last, as they are when the ledger decides.
func (a *Agent) gather(ctx context.Context, needs ledger.Needs, facts *ledger.Gathered) {
	facts.Ask(needs)
	found := a.findDevices(ctx, needs, facts)
	if needs.PodInfo && a.hasProviders {
		facts.PodInfos = map[pods.Ref]pods.Answer{}
		for _, ref := range needs.Refs {
			facts.PodInfos[ref], _ = a.requests.Resolve(ctx, ref)
		}
		needs.Ended = a.ending() // some may be so since the question
	}
	if len(needs.Ended) > 0 {
		a.endGone(needs.Ended)
	}
	a.rereadClaims(ctx, needs.Claims)
	<-found
	if needs.NodeMemory {
		a.observeSample()
	}
	for _, size := range needs.PageSizes {
		a.readFreePages(needs.Pod, size, facts)
	}
	if needs.LimitOf != "" {
		if limit, err := a.tree.Limit(needs.LimitOf); err == nil {
			facts.PodLimit = &limit
		}
	}
	if len(needs.Siblings) > 0 {
		facts.Siblings = a.present(needs.Siblings)
	}
	if needs.MemsOf != "" {
		facts.Mems, _ = a.tree.EffectiveNodes(needs.MemsOf) // none where they cannot be read
	}
	if needs.FilesOf != "" {
		files, _ := a.readFiles(needs.FilesOf) // what cannot be read is unknown
		facts.Files = &files
	}
	if len(needs.Usage) > 0 {
		facts.Usage = a.measure(ctx, facts.Usage, needs.Usage)
	}
	if len(needs.Sandboxes)+len(needs.Unlisted) > 0 {
		facts.Found = a.observeAll(needs)
	}
}

// readFreePages reads the kernel's free huge pages of a size on all NUMA nodes: which of them the container gets is not decided yet. A
// size that cannot be read is not verified.
func (a *Agent) readFreePages(pod ledger.Pod, size uint64, facts *ledger.Gathered) {
	if a.sysfs == "" {
		return
	}
	pages, err := sysfs.FreePages(a.sysfs, a.currentMachine(), size)
	if err != nil {
		a.log.WithField("pod", pod.Name).WithField("namespace", pod.Namespace).WithError(err).
			Warn("the kernel's free huge pages cannot be read: the container is placed without them")
		return
	}
	facts.FreePages = append(facts.FreePages, pages...)
}
