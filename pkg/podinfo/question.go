package podinfo

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/breaker"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// source is a provider with its breaker and counters.
type source struct {
	Provider
	rank    int
	breaker *breaker.Breaker

	answers, errors, timeouts, notFound atomic.Uint64
}

// source finds a source by its name; an answer always has one.
func (r *Resolver) source(name memoryqos.Source) *source {
	for _, s := range r.sources {
		if s.Source() == name {
			return s
		}
	}
	return &source{rank: len(r.sources)}
}

// question asks all sources at once for a pod that none has reported, unless that was done before. The first answer ends
// it. The caller holds the lock.
func (r *Resolver) question(ref pods.Ref, k *known) {
	if k.asking != nil || r.best(ref, k).Pod != nil {
		return
	}
	k.asking = make(chan struct{})
	var allowed []*source
	for _, s := range r.sources {
		if s.breaker.Allow() {
			allowed = append(allowed, s)
		}
	}
	if len(allowed) == 0 {
		close(k.asking)
		return
	}
	go func() {
		answer := r.askAll(ref, allowed)
		r.mu.Lock()
		defer r.mu.Unlock()
		if answer.Pod != nil && r.pods[ref] == k {
			k.asked = answer
			r.mark(ref)
		}
		close(k.asking)
	}()
}

// askAll returns the first answer of any of the sources, or none in time.
func (r *Resolver) askAll(ref pods.Ref, sources []*source) pods.Answer {
	ctx, cancel := context.WithTimeout(r.ctx, cmp.Or(r.timeout, defaultTimeout))
	defer cancel()
	answers := make(chan pods.Answer, len(sources))
	for _, s := range sources {
		go func() {
			pod, err := s.Ask(ctx, ref)
			if s.noted(err) {
				r.log.WithError(err).WithField("source", s.Source()).Debug("a source of memory requests gave no answer")
			}
			answers <- pods.Answer{Pod: pod, Source: s.Source()}
		}()
	}
	for range sources {
		select {
		case answer := <-answers:
			if answer.Pod != nil {
				return answer
			}
		case <-ctx.Done():
			return pods.Answer{}
		}
	}
	return pods.Answer{}
}

// noted counts how a question ended and reports whether it is a failure of the source.
func (s *source) noted(err error) bool {
	switch {
	case err == nil:
		s.breaker.Ended(nil)
	case errors.Is(err, ErrNotFound):
		s.notFound.Add(1)
		s.breaker.Ended(nil)
	case errors.Is(err, ErrUnavailable), errors.Is(err, context.Canceled):
		s.breaker.Dropped()
	case errors.Is(err, ErrBusy):
		s.errors.Add(1)
		s.breaker.Refused()
		return true
	case errors.Is(err, context.DeadlineExceeded):
		s.timeouts.Add(1)
		s.breaker.Ended(err)
		return true
	default:
		s.errors.Add(1)
		s.breaker.Ended(err)
		return true
	}
	return false
}

// Stats counts what the sources did since the start.
type Stats struct {
	// Sources are in the order of Options.Providers.
	Sources []SourceStats
}

// SourceStats counts what one source did.
type SourceStats struct {
	Source memoryqos.Source
	// Answers is the number of Resolve calls that this source answered. Of the questions that were put to it, Errors
	// failed, Timeouts took too long, and NotFound were about a pod that it does not know.
	Answers, Errors, Timeouts, NotFound uint64
	// Suspended is set while the source is not asked because it failed several times in a row.
	Suspended bool
	// Connected is Provider.Connected, Problem is Provider.Problem.
	Connected bool
	Problem   string
}

// Stats returns the counters so far.
func (r *Resolver) Stats() (stats Stats) {
	for _, s := range r.sources {
		stats.Sources = append(stats.Sources, SourceStats{
			Source: s.Source(), Answers: s.answers.Load(), Errors: s.errors.Load(), Timeouts: s.timeouts.Load(),
			NotFound: s.notFound.Load(), Suspended: s.breaker.Open(), Connected: s.Connected(), Problem: s.Problem(),
		})
	}
	return stats
}
