package podinfo

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"
)

// DefaultTimeout is how long a create waits for all sources together.
const DefaultTimeout = 300 * time.Millisecond

// Options are what a Resolver is made of.
type Options struct {
	// Providers are the sources in their order: the first that knows a pod is believed.
	Providers []Provider
	// Timeout bounds one Resolve over all providers; 0 is DefaultTimeout.
	Timeout time.Duration
	// Changed is called when a pod that was resolved, and not forgotten since, is known better or has changed: always from
	// one goroutine of Run, never with a lock held, never twice for the same answer. It may be nil.
	Changed func(Answer)
	// Log is nil for logrus' standard logger.
	Log logrus.FieldLogger
}

// Answer is a pod and the source that told of it.
type Answer struct {
	Pod    *Pod
	Source Source
}

// Estimate gives a container's request from an answer: exact. It is false for a container that the pod does not have.
func (a Answer) Estimate(container string) (Estimate, bool) {
	if a.Pod == nil {
		return Estimate{}, false
	}
	c, ok := a.Pod.Container(container)
	return Estimate{Request: c.Request, Source: a.Source}, ok
}

// Resolver asks the providers. Its methods may be called from any goroutine.
type Resolver struct{}

// New returns a resolver; Run connects it.
func New(opts Options) *Resolver { return &Resolver{} }

// Run keeps the providers connected and tells of changes until ctx ends.
func (r *Resolver) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Expect tells that a pod will be asked for soon, so that its answer is fetched meanwhile. It does not wait.
func (r *Resolver) Expect(ref Ref) {}

// Resolve returns the pod from the best source that knows it, waiting no longer than the timeout and not beyond ctx. It
// is false when none does; the pod is then looked for on, and Changed tells when it is found.
func (r *Resolver) Resolve(ctx context.Context, ref Ref) (Answer, bool) { return Answer{}, false }

// Known returns what Resolve would without waiting.
func (r *Resolver) Known(ref Ref) (Answer, bool) { return Answer{}, false }

// Forget drops a pod: its sandbox was removed. Changed is not called for it any more.
func (r *Resolver) Forget(ref Ref) {}

// Stats returns the counters so far, one entry per provider in their order.
func (r *Resolver) Stats() Stats { return Stats{} }

// Stats counts what the sources did since the start.
type Stats struct {
	// Missed is the number of Resolve calls that no source answered.
	Missed  uint64
	Sources []SourceStats
}

// SourceStats counts what one source did.
type SourceStats struct {
	Source Source
	// Answers were given by this source; Errors and Timeouts are questions that it failed; NotFound were answered so.
	Answers, Errors, Timeouts, NotFound uint64
	// Suspended is set while the source is not asked because it failed several times in a row.
	Suspended bool
	// Connected is Provider.Connected.
	Connected bool
	// Pods is the number of pods in memory.
	Pods int
}
