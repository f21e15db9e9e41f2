package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"

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

// cause is why a container could not be placed.
type cause struct {
	reason   memorymanager.Reason
	text     string // at length, with a line for each NUMA node where the memory manager gives one
	barredBy string // a Rejection's
}

// reject notes a container that could not be placed as asked.
func (l *Ledger) reject(c *container, why cause, refused bool) *Rejection {
	now, count := l.step.now, l.state.Counters.Unpinned
	if refused = refused && !l.state.Resolved.Config.DryRun(); refused {
		count = l.state.Counters.Rejections
	}
	count[why.reason.String()]++
	rejection := Rejection{
		At: now, Last: now, Count: 1, Namespace: c.pod.Namespace, Pod: c.pod.Name, UID: c.pod.UID, Container: c.Name,
		Reason: why.reason.String(), Text: why.text, BarredBy: why.barredBy, Refused: refused,
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
	why := l.causeOf(err)
	if c.Refusal == nil || !slices.Equal(c.Refusal.Request, request) {
		return &Refusal{*l.reject(c, why, true), request}
	}
	again := *c.Refusal
	again.Text, again.Last = why.text, l.step.now
	again.Count++
	l.show(again.Rejection)
	return &again
}

// causeOf is why a container could not be placed: NotPreferred is the one reason that is not the memory manager's.
func (l *Ledger) causeOf(err error) cause {
	rejection, ok := errors.AsType[*memorymanager.Rejection](err)
	if !ok {
		return cause{reason: NotPreferred, text: err.Error()}
	}
	var holders []string
	for _, h := range rejection.Holders {
		if p := l.pods[h.Pod]; p != nil {
			holders = append(holders, fmt.Sprintf("%s/%s, container %s, on %s", p.Namespace, p.Name, h.Container, h.Nodes.Named()))
		}
	}
	return cause{rejection.Reason, rejection.Text(), strings.Join(holders, "; ")}
}
