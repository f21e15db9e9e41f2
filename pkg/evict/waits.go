package evict

import (
	"maps"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// wanting are the reasons of a rejection that another node may not have: memory, or memory as the Topology Manager's policy wants it.
var wanting = []string{memorymanager.TopologyAffinityError.String(), memorymanager.UnexpectedAdmissionError.String(), ledger.NotPreferred.String()}

// lastsFor is how long a rejection counts. A kubelet tries a container that cannot be created again after 10 to 15 seconds.
const lastsFor = 2 * time.Minute

// waits are the pods that are refused, by UID, and since when. What is not refused again in time is forgotten.
type waits map[string]time.Time

// longest returns the rejection of the pod that has been refused longest, if that is at least as long as after; a pod that skip names does
// not count.
func (w waits) longest(view *ledger.View, now time.Time, after time.Duration, skip func(uid string) bool) (found ledger.Rejection, ok bool) {
	refused := map[string]ledger.Rejection{}
	for _, r := range slices.Backward(view.Rejections) { // so that the newest counts
		if r.Refused && slices.Contains(wanting, r.Reason) && now.Sub(r.Last) < lastsFor {
			refused[r.UID] = r
			if _, known := w[r.UID]; !known {
				w[r.UID] = r.At
			}
		}
	}
	for pod, c := range view.Containers() {
		if r, known := refused[pod.UID]; known && c.Name == r.Container && c.State.Alive() {
			delete(refused, pod.UID) // it was placed after all
		}
	}
	maps.DeleteFunc(w, func(uid string, _ time.Time) bool { _, still := refused[uid]; return !still })
	for _, uid := range slices.Sorted(maps.Keys(w)) {
		if now.Sub(w[uid]) >= after && !skip(uid) && (!ok || w[uid].Before(w[found.UID])) {
			found, ok = refused[uid], true
		}
	}
	return found, ok
}

// A pause is how long nothing of an owner is evicted after one of its pods was.
type pause struct {
	until  time.Time
	length time.Duration
}

// longestPause bounds a pause, which is twice as long each time.
const longestPause = 6 * time.Hour

// pauses are those of owners, by UID.
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
