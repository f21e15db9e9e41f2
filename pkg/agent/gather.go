package agent

import (
	"context"
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

// decide has the ledger decide about an event once it lacks nothing that can be found out, and returns with the effects what it has
// decided by. That is found out outside of the lock, and an event that had to wait for it decides nothing once ctx has ended: the kubelet
// may have tried again since. then is called under the lock after the decision; nil is nothing.
func (a *Agent) decide(ctx context.Context, event ledger.Event, then func(ledger.Gathered, ledger.Effects)) (facts ledger.Gathered, effects ledger.Effects) {
	for {
		var needs ledger.Needs
		if needs, effects = a.tryToDecide(ctx, event, &facts, then); needs.None() {
			return facts, effects
		}
		a.gather(ctx, needs, &facts)
	}
}

// tryToDecide has the ledger decide about an event for which it lacks nothing, by the newest that the pod APIs have said: their answers and
// notifications may overtake one another, so that they are taken under the lock.
func (a *Agent) tryToDecide(ctx context.Context, event ledger.Event, facts *ledger.Gathered, then func(ledger.Gathered, ledger.Effects)) (needs ledger.Needs, effects ledger.Effects) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return needs, ledger.Effects{Err: fmt.Errorf("the runtime no longer waits for an answer: %w", err)}
	}
	if needs = a.ledger.Needs(event, facts); !needs.None() {
		return needs, effects
	}
	if a.sourced {
		facts.Answers = make(map[pods.Ref]pods.Answer, len(needs.Refs))
		for _, ref := range needs.Refs {
			facts.Answers[ref], _ = a.requests.Known(ref)
		}
	}
	effects = a.stepLocked(ledger.With(event, *facts))
	if then != nil {
		then(*facts, effects)
	}
	return needs, effects
}

// gather finds out what the ledger lacks, each fact within its own time. What cannot be found out is not asked for again. The devices are
// asked for while the pod APIs are: together they have a.requestTimeout. Files are read last, as they are when the ledger decides.
func (a *Agent) gather(ctx context.Context, needs ledger.Needs, facts *ledger.Gathered) {
	facts.Take(needs)
	found := a.findDevices(ctx, needs, facts)
	if needs.Answer && a.sourced {
		facts.Answers = map[pods.Ref]pods.Answer{}
		for _, ref := range needs.Refs {
			facts.Answers[ref], _ = a.requests.Resolve(ctx, ref)
		}
	}
	if len(needs.Ended) > 0 {
		a.logNotes(a.step(a.present(needs.Ended)).Notes)
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
	if len(needs.Listed)+len(needs.Unlisted) > 0 {
		facts.Found = a.observeAll(needs.Listed, needs.Unlisted)
	}
}

// readFreePages reads the kernel's free huge pages of a size on all NUMA nodes: which of them the container gets is not decided yet. A
// size that cannot be read is not verified.
func (a *Agent) readFreePages(pod ledger.Pod, size uint64, facts *ledger.Gathered) {
	if a.sysfs == "" {
		return
	}
	pages, err := sysfs.FreePages(a.sysfs, a.hardware(), size)
	if err != nil {
		a.log.WithField("pod", pod.Name).WithField("namespace", pod.Namespace).WithError(err).
			Warn("the kernel's free huge pages cannot be read: the container is placed without them")
		return
	}
	facts.FreePages = append(facts.FreePages, pages...)
}
