package evict

import (
	"maps"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// wanting are the reasons of a rejection that another node may not have: memory, or memory as the Topology Manager's policy wants it.
var wanting = []string{memorymanager.TopologyAffinityError.String(), memorymanager.UnexpectedAdmissionError.String(), memorymanager.NotPreferred.String()}

// lastsFor is how long a rejection counts. A kubelet tries a container that cannot be created again after 10 to 15 seconds.
const lastsFor = 2 * time.Minute

// A wait is a pod that is refused: since when, and its newest rejection.
type wait struct {
	since time.Time
	last  ledger.Rejection
}

// waits are by UID. What is not refused again in time is forgotten, what a View has no room for is not.
type waits map[string]wait

// longest returns the rejection of the pod that has been refused longest, if that is at least as long as after; a pod that notYet has for
// later does not count, and one that it has for earlier only after those that it does not have.
func (w waits) longest(view *ledger.View, now time.Time, after time.Duration, notYet map[string]time.Time) (found ledger.Rejection, ok bool) {
	for _, r := range slices.Backward(view.Rejections) { // so that the newest counts
		if !r.Refused || !slices.Contains(wanting, r.Reason) || now.Sub(r.Last) >= lastsFor {
			continue
		}
		since := r.At
		if known, ok := w[r.UID]; ok {
			since = known.since
		}
		w[r.UID] = wait{since, r}
	}
	maps.DeleteFunc(w, func(_ string, one wait) bool { return now.Sub(one.last.Last) >= lastsFor || placed(view, one.last) })
	for _, uid := range slices.Sorted(maps.Keys(w)) {
		if now.Sub(w[uid].since) < after || now.Before(notYet[uid]) {
			continue
		}
		if order := notYet[uid].Compare(notYet[found.UID]); !ok || order < 0 || order == 0 && w[uid].since.Before(w[found.UID].since) {
			found, ok = w[uid].last, true
		}
	}
	return found, ok
}

// placed reports whether a container that was refused was placed after all, or will be: a dry run refuses nothing at the next try.
func placed(view *ledger.View, r ledger.Rejection) bool {
	if view.Config.Config.DryRun() {
		return true
	}
	for pod, c := range view.Containers() {
		if pod.UID == r.UID && c.Name == r.Container && c.State.Alive() {
			return true
		}
	}
	return false
}

// A pause is how long nothing of an owner is evicted after one of its pods was.
type pause struct {
	until  time.Time
	length time.Duration
}

// longestPause bounds a pause, which is twice as long each time.
const longestPause = 6 * time.Hour

// pauses has the last pause of each owner, by the UID of the controller.
type pauses map[string]pause

// evicted begins the owner's next pause; the first is as long as a pod waits. Pauses after which nothing came for as long again are forgotten.
func (p pauses) evicted(owner string, now time.Time, after time.Duration) {
	for other, last := range p {
		if now.After(last.until.Add(last.length)) {
			delete(p, other)
		}
	}
	length := max(after, min(2*p[owner].length, longestPause))
	p[owner] = pause{now.Add(length), length}
}
