// Package evict has pods leave the node that it has refused for want of memory. The kubelet's Memory Manager fails such a pod, and its
// controller makes another; a plugin of the runtime can only fail the creation of its containers, which the kubelet tries for ever.
package evict

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

const (
	lookEvery = 2 * time.Second
	// apart is the time between two requests for an eviction, granted or not: pods leave one at a time.
	apart = 30 * time.Second
	// requestTimeout bounds one request to the API server.
	requestTimeout = 10 * time.Second
)

// API is the part of the API server that an Evictor needs.
type API interface {
	// Pod returns a pod as it is now.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Evict asks for the eviction of a pod unless another has its name by now. Disruption budgets do not count for a pod that is Pending
	// (canIgnorePDB in Kubernetes' pkg/registry/core/pod/storage/eviction.go).
	Evict(ctx context.Context, pod *corev1.Pod) error
}

// Options are what an Evictor works with.
type Options struct {
	API  API
	View func() *ledger.View
	Log  logrus.FieldLogger
	// OnEvicted receives the rejection of each evicted pod and the reason for the eviction. It must not block.
	OnEvicted func(ledger.Rejection, string)
}

// Evictor evicts the pods that the node refuses, as evictRejectedAfter says.
type Evictor struct {
	Options
	waits   waits
	pauses  pauses
	notYet  map[string]time.Time // before which a pod does not count, by UID
	next    time.Time            // no eviction before it
	failing bool
	granted atomic.Uint64
}

// New returns an Evictor; nothing is evicted before Run.
func New(o Options) *Evictor {
	return &Evictor{Options: o, waits: waits{}, pauses: pauses{}, notYet: map[string]time.Time{}}
}

// Run evicts pods until ctx ends.
func (e *Evictor) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			e.look(ctx, time.Now())
		}
	}
}

// Evictions are the pods that were evicted since the start. It may be called at any time.
func (e *Evictor) Evictions() uint64 { return e.granted.Load() }

// look asks for the eviction of the pod that has waited longest, if it is time.
func (e *Evictor) look(ctx context.Context, now time.Time) {
	view := e.View()
	after := time.Duration(view.Config.Config.EvictRejectedAfter)
	rejection, ok := e.waits.longest(view, now, after, e.notYet)
	maps.DeleteFunc(e.notYet, func(uid string, _ time.Time) bool { _, waits := e.waits[uid]; return !waits })
	if !ok || after == 0 || now.Before(e.next) {
		return
	}
	err := e.evict(ctx, rejection, now, after)
	if err != nil && ctx.Err() == nil && !e.failing { // it is tried again
		e.log(rejection).WithError(err).Warn("a pod that this node refuses cannot be evicted")
	}
	e.failing = err != nil
}

func (e *Evictor) log(r ledger.Rejection) *logrus.Entry {
	return e.Log.WithFields(logrus.Fields{"namespace": r.Namespace, "pod": r.Pod, "container": r.Container})
}

// evict has a pod leave, unless there is a reason for it to stay.
func (e *Evictor) evict(ctx context.Context, r ledger.Rejection, now time.Time, after time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pod, err := e.API.Pod(ctx, r.Namespace, r.Pod)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(pod.UID) != r.UID:
		e.notYet[r.UID] = now.Add(longestPause) // it is gone
		return nil
	case err != nil:
		e.next = now.Add(apart)
		return err
	}
	if why := stays(pod); why != "" {
		e.notYet[r.UID] = now.Add(longestPause)
		e.log(r).Info("a pod that this node refuses is not evicted: " + why)
		return nil
	}
	owner := string(metav1.GetControllerOf(pod).UID)
	if until := e.pauses[owner].until; now.Before(until) {
		e.notYet[r.UID] = until
		return nil
	}
	if view := e.View(); placed(view, r) || time.Duration(view.Config.Config.EvictRejectedAfter) != after { // while the API server answered
		return nil
	}
	e.next = now.Add(apart)
	if err := e.API.Evict(ctx, pod); err != nil {
		e.notYet[r.UID] = now.Add(2 * apart) // others have their turn
		return err
	}
	e.notYet[r.UID] = now.Add(longestPause)
	e.granted.Add(1)
	e.pauses.evicted(owner, now, after)
	why := fmt.Sprintf("refused on this node for %s: %s", now.Sub(e.waits[r.UID].since).Round(time.Second), memorymanager.InLine(r.Text))
	e.log(r).Info("evicted: " + why)
	e.OnEvicted(r, why)
	return nil
}

// stays says why a pod is not to be evicted; empty has it evicted.
func stays(pod *corev1.Pod) string {
	controller := metav1.GetControllerOf(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		return "it is being deleted"
	case controller == nil:
		return "it has no controller, which would make another"
	case controller.Kind == "DaemonSet", controller.Kind == "Node":
		return "its " + controller.Kind + " would have it on this node again"
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil || c.RestartCount > 0 {
			return "its container " + c.Name + " has run here"
		}
	}
	return ""
}
