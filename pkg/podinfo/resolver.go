package podinfo

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/breaker"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// defaultTimeout bounds a question that no caller waits for.
const defaultTimeout = 300 * time.Millisecond

// After mostFailures failures in a row a source is not asked for firstPause; later pauses are longer.
const (
	mostFailures = 3
	firstPause   = 5 * time.Second
)

// Options are what a Resolver is made of.
type Options struct {
	// Providers are the sources in order of precedence: the first that knows a pod counts.
	Providers []Provider
	// Timeout bounds each Resolve, over all providers. With 0 Resolve asks the sources and does not wait; Changed receives
	// their answers.
	Timeout time.Duration
	// Changed is called when a pod that was resolved, and not forgotten since, is known better or has changed: always from
	// one goroutine of Run, never with a lock held, never twice for the same answer. It may be nil.
	Changed func(pods.Answer)
	// File keeps what is known of the pods over a restart, until a source has something newer. If it is empty, nothing is kept.
	File string
	// Log is nil for logrus' standard logger.
	Log logrus.FieldLogger
}

// Resolver finds a pod in the best source that knows it, and reports when a better source knows it later. It remembers a pod from the
// first question until Forget, whatever the sources do meanwhile. Its methods may be called from any goroutine.
type Resolver struct {
	timeout time.Duration
	changed func(pods.Answer)
	log     logrus.FieldLogger
	sources []*source
	ctx     context.Context // ends with Run, and with it every question
	stop    context.CancelFunc
	wake    chan struct{}   // holds one when dirty is not empty
	file    *durable.Writer // of known pods; nil keeps none

	mu    sync.Mutex
	pods  map[pods.Ref]*known
	kept  map[pods.Ref]pods.Answer // of an earlier run, not asked for yet
	dirty map[pods.Ref]struct{}    // pods that a source has reported since Changed was called
}

// known is what is known of a pod that was asked for.
type known struct {
	given    pods.Answer   // what the caller received last
	resolved bool          // the caller received an answer, which may be that there is none
	waiting  int           // Resolve calls that are under way
	asking   chan struct{} // closed when the question to the sources is over; nil before it
	asked    pods.Answer   // what the question brought
	updated  *source       // the last that sent the pod since given, while none before it was connected; nil when none has
}

// New returns a resolver; Run connects it.
func New(opts Options) *Resolver {
	r := &Resolver{
		changed: opts.Changed, timeout: opts.Timeout, log: logger(opts.Log),
		wake: make(chan struct{}, 1), pods: map[pods.Ref]*known{}, dirty: map[pods.Ref]struct{}{},
	}
	r.load(opts.File)
	r.ctx, r.stop = context.WithCancel(context.Background())
	for rank, provider := range opts.Providers {
		r.sources = append(r.sources, &source{Provider: provider, rank: rank, breaker: breaker.New(mostFailures, firstPause, time.Now)})
	}
	return r
}

// Run keeps the providers connected and reports changes until ctx ends. It can be called once.
func (r *Resolver) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, s := range r.sources {
		running.Go(func() { s.Run(ctx, func(pod *pods.Pod) { r.heard(s, pod) }) })
	}
	if r.file != nil {
		defer r.finish()
	}
	for {
		select {
		case <-ctx.Done():
			r.stop()
			running.Wait()
			return
		case <-r.wake:
			for _, answer := range r.changes() {
				if r.changed != nil && ctx.Err() == nil {
					r.changed(answer)
				}
			}
		}
	}
}

// Expect announces that a pod will be asked for soon, so that its answer is fetched meanwhile. It does not wait.
func (r *Resolver) Expect(ref pods.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.question(ref, r.pod(ref))
}

// Resolve returns the pod from the best source that knows it, waiting no longer than the timeout and not beyond ctx. It
// is false when none does; Changed reports it when one has it later. Only the first calls for a pod wait: when the
// sources were asked once without an answer, they are listened to, not asked again.
func (r *Resolver) Resolve(ctx context.Context, ref pods.Ref) (pods.Answer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.pod(ref)
	r.question(ref, k)
	if r.best(ref, k).Pod == nil {
		asking := k.asking
		k.waiting++
		r.mu.Unlock()
		select {
		case <-asking:
		case <-time.After(r.timeout):
		case <-ctx.Done():
		}
		r.mu.Lock()
		k.waiting--
	}
	r.give(ref, k, r.best(ref, k))
	if k.given.Pod == nil {
		return pods.Answer{}, false
	}
	r.source(k.given.Source).answers.Add(1)
	return k.given, true
}

// Known returns what is known of a pod now, without waiting or asking.
func (r *Resolver) Known(ref pods.Ref) (pods.Answer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k, ok := r.pods[ref]
	if !ok {
		k = &known{}
	}
	answer := r.best(ref, k)
	return answer, answer.Pod != nil
}

// Forget drops a pod: its sandbox was removed. Changed is not called for it any more, but for a call that is under way.
func (r *Resolver) Forget(ref pods.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k, ok := r.pods[ref]; ok && k.given.Pod != nil {
		r.save()
	}
	delete(r.pods, ref)
	delete(r.dirty, ref)
	delete(r.kept, ref)
}

// pod returns what is known of a pod, which is remembered from now on.
func (r *Resolver) pod(ref pods.Ref) *known {
	k, ok := r.pods[ref]
	if !ok {
		k = &known{}
		r.pods[ref] = k
	}
	return k
}

// best chooses among what is known: the first source in order that is connected, what the caller has already, though its source
// was lost or has dropped it, what was answered to a question, what a source said before it was lost, and last what an earlier run
// knew. A source does not replace what one before it said, unless it has sent the pod since that one was lost.
func (r *Resolver) best(ref pods.Ref, k *known) pods.Answer {
	var stale pods.Answer
	for _, s := range r.sources {
		pod, ok := s.Known(ref)
		switch {
		case !ok:
		case s.Connected() && (k.given.Pod == nil || s == k.updated || s.rank <= r.source(k.given.Source).rank):
			return pods.Answer{Pod: pod, Source: s.Source()}
		case stale.Pod == nil:
			stale = pods.Answer{Pod: pod, Source: s.Source()}
		}
	}
	for _, answer := range []pods.Answer{k.given, k.asked, stale} {
		if answer.Pod != nil {
			return answer
		}
	}
	return r.kept[ref]
}

// heard stores what a source reports about a pod.
func (r *Resolver) heard(s *source, pod *pods.Pod) {
	s.breaker.Ended(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	if k, ok := r.pods[pod.Ref]; ok {
		k.asked = pods.Answer{} // the source's own word is newer
		if !r.precedes(s, pod.Ref) {
			k.updated = s
		}
		r.mark(pod.Ref)
	}
}

// precedes reports whether a source before this one is connected and knows the pod.
func (r *Resolver) precedes(s *source, ref pods.Ref) bool {
	return slices.ContainsFunc(r.sources[:s.rank], func(other *source) bool {
		_, ok := other.Known(ref)
		return ok && other.Connected()
	})
}

func (r *Resolver) mark(ref pods.Ref) {
	r.dirty[ref] = struct{}{}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// changes returns the answers that differ from what the caller received, and marks them as received.
func (r *Resolver) changes() []pods.Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []pods.Answer
	for ref := range r.dirty {
		delete(r.dirty, ref)
		k, ok := r.pods[ref]
		if !ok || !k.resolved || k.waiting > 0 { // a Resolve under way reports it itself
			continue
		}
		answer := r.best(ref, k)
		better := k.given.Pod != nil && r.source(answer.Source).rank < r.source(k.given.Source).rank
		if answer.Pod == nil || answer.Pod == k.given.Pod || !better && reflect.DeepEqual(answer.Pod, k.given.Pod) {
			continue
		}
		r.give(ref, k, answer)
		all = append(all, answer)
	}
	return all
}
