package ledger

import (
	"errors"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Reasons of refusals that are not the memory manager's.
var (
	// BadAnnotation: an annotation of the pod is wrong and onBadAnnotation is Reject.
	BadAnnotation = memorymanager.NewReason("BadAnnotation")
	// NotPreferred: the pod requires its NUMA nodes and could only have more nodes than needed.
	NotPreferred = memorymanager.NewReason("NotPreferred")
)

// RejectionsKept is how many refused or unpinned containers a View shows.
const RejectionsKept = 64

// Refusal is a resize that was refused. The kubelet tries the very same one again every second, for as long as the pod
// lives.
type Refusal struct {
	Rejection
	Request memorymanager.Request
}

// reject notes a container that could not be placed as asked.
func (l *Ledger) reject(c *container, reason memorymanager.Reason, err error, refused bool) *Rejection {
	now, count := l.step.now, l.state.Counters.Unpinned
	if refused = refused && !l.state.Resolved.Config.DryRun(); refused {
		count = l.state.Counters.Rejections
	}
	count[reason.String()]++
	rejection := Rejection{
		At: now, Last: now, Count: 1, Namespace: c.pod.Namespace, Pod: c.pod.Name, UID: c.pod.UID, Container: c.Name,
		Reason: reason.String(), Text: textOf(err), Refused: refused,
	}
	l.show(rejection)
	return &rejection
}

// show puts a rejection in front of the others, or in its own place when it is among them.
func (l *Ledger) show(rejection Rejection) {
	rejections := slices.Clone(l.state.Rejections) // views share the old ones
	if i := slices.IndexFunc(rejections, rejection.Same); i >= 0 {
		rejections[i] = rejection
	} else {
		rejections = slices.Insert(rejections, 0, rejection)
	}
	l.state.Rejections = rejections[:min(len(rejections), RejectionsKept)]
}

// refuse notes a resize that was refused. The same one again is the same rejection, with a text of today.
func (l *Ledger) refuse(c *container, err error) *Refusal {
	request := request(c)
	if c.Refusal == nil || !slices.Equal(c.Refusal.Request, request) {
		return &Refusal{*l.reject(c, reasonOf(err), err, true), request}
	}
	again := *c.Refusal
	again.Text, again.Last = textOf(err), l.step.now
	again.Count++
	l.show(again.Rejection)
	return &again
}

// reasonOf is the reason of an error of allocate: NotPreferred is the one that is not the memory manager's.
func reasonOf(err error) memorymanager.Reason {
	var rejection *memorymanager.Rejection
	if errors.As(err, &rejection) {
		return rejection.Reason
	}
	return NotPreferred
}

// textOf is a reason at length, with a line for each NUMA node where the memory manager gives one.
func textOf(err error) string {
	var rejection *memorymanager.Rejection
	if errors.As(err, &rejection) {
		return rejection.Text()
	}
	return err.Error()
}
