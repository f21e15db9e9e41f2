package agent

import (
	"context"
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

// stepped is what a step of the ledger has decided about an event, with the facts it was based on.
type stepped struct {
	ledger.Effects
	facts  ledger.Gathered
	ticket checkpoint.Ticket // of the pod's allocation; the newest of all if the event is not about a container
}

// gatherAndStep gathers the facts that the ledger needs, outside of the lock, until it can decide about an event. If ctx ends meanwhile, nothing is
// decided, because the kubelet may have tried again since. then, if not nil, is called under the lock after the decision.
func (a *Agent) gatherAndStep(ctx context.Context, event ledger.Event, then func(stepped)) (d stepped) {
	for {
		needs := a.tryStep(ctx, event, &d, then)
		if needs.None() {
			return d
		}
		a.gather(ctx, needs, &d.facts)
	}
}

// tryStep steps an event if the ledger needs no further facts. Answers and notifications of the pod APIs may overtake one
// another, so the newest are read under the lock.
func (a *Agent) tryStep(ctx context.Context, event ledger.Event, d *stepped, then func(stepped)) ledger.Needs {
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

// gather gathers the facts that the ledger needs, each within its own timeout. Facts that are not available are not asked for again. Devices
// and pod APIs are asked at the same time and share a.requestTimeout. Files are read last, shortly before the decision.
func (a *Agent) gather(ctx context.Context, needs ledger.Needs, facts *ledger.Gathered) {
	facts.Ask(needs)
	found := a.findDevices(ctx, needs, facts)
	if needs.PodInfo && a.hasProviders {
		facts.PodInfos = map[pods.Ref]pods.Answer{}
		for _, ref := range needs.Refs {
			facts.PodInfos[ref], _ = a.requests.Resolve(ctx, ref)
		}
		needs.Ended = a.ending() // some may have begun to end meanwhile
	}
	if len(needs.Ended) > 0 {
		a.endGone(needs.Ended)
	}
	a.rereadClaims(ctx, needs.Claims)
	<-found
	if needs.NodeMemory {
		a.updateNodeMemory()
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
		facts.Mems, _ = a.tree.EffectiveNodes(needs.MemsOf) // none if they cannot be read
	}
	if needs.FilesOf != "" {
		files, _ := a.readFiles(needs.FilesOf) // unreadable values are unknown
		facts.Files = &files
	}
	if len(needs.Usage) > 0 {
		facts.Usage = a.measure(ctx, facts.Usage, needs.Usage)
	}
	if len(needs.Sandboxes)+len(needs.Unlisted) > 0 {
		facts.Found = a.observeAll(needs)
	}
}

// readFreePages reads the free huge pages of a size on all NUMA nodes, because the container's nodes are not decided yet. A size that cannot
// be read is not verified.
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
