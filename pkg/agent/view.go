package agent

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// sharedView is the shared part of the views of one generation.
type sharedView struct {
	ledger.View
	sort   sync.Once   // sorts the pods: a thousand take longer than a decision
	source ledger.View // as the ledger returned it last
}

// View returns the current state. The lock is held only while changes since the last View are collected.
func (a *Agent) View() *ledger.View {
	a.mu.Lock()
	if a.viewStale {
		a.updateView(a.ledger.View())
	}
	shared := a.shared
	a.mu.Unlock()
	shared.sort.Do(func() {
		slices.SortFunc(shared.Pods, func(x, y *ledger.PodView) int {
			return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name), strings.Compare(x.UID, y.UID))
		})
	})
	// The rest is the caller's own copy.
	own := shared.View
	own.Taken, own.NodeMemory = a.now(), a.sampler.Last()
	own.Conditions = append(slices.Clone(shared.Conditions), a.storageCondition(&own))
	if own.Config.Config.RolledBack {
		own.Conditions = append(own.Conditions, rolledBack)
	}
	slices.SortFunc(own.Conditions, func(x, y ledger.Condition) int { return cmp.Compare(x.Name, y.Name) })
	return &own
}

// Outcome returns the decision about one container.
func (a *Agent) Outcome(pod, container string) ledger.Outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Outcome(pod, container)
}

// updateView updates the shared view. The caller holds the lock.
func (a *Agent) updateView(shown ledger.View) {
	if !sameView(shown, a.shared.source) {
		before := a.shared.Generation
		a.shared = &sharedView{View: shown}
		a.shared.Generation, a.shared.Pods = before+1, slices.Clone(shown.Pods)
	}
	a.shared.source, a.viewStale = shown, false
}

// sameView compares views of the ledger, which share the pods that have not changed.
func sameView(a, b ledger.View) bool {
	same := slices.EqualFunc(a.Pods, b.Pods, func(x, y *ledger.PodView) bool { return x == y || reflect.DeepEqual(x, y) })
	a.Pods, b.Pods = nil, nil
	return same && reflect.DeepEqual(a, b)
}

// Changed returns a channel that receives a value after View may have changed; several changes may share one. It has one receiver, the
// recorder of OOM kills.
func (a *Agent) Changed() <-chan struct{} { return a.viewChanged }

// Migrations returns writes of running containers' cpuset.mems, and writes that were not made because they would move too much, by cgroup.
func (a *Agent) Migrations() map[string]protect.Migration { return a.protector.Migrations() }
