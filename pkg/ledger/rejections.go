package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// BadAnnotation is a reason of refusals beside the Memory Manager's: an annotation of the pod is wrong and onBadAnnotation is Reject.
var BadAnnotation = memorymanager.NewReason("BadAnnotation")

// RejectionsKept is how many refused or unpinned containers a View shows.
const RejectionsKept = 64

// Refusal is a resize that was refused. The kubelet retries the same resize every second as long as the pod lives.
type Refusal struct {
	Rejection
	Request memorymanager.Request
}

// cause is why a container could not be placed.
type cause struct {
	reason memorymanager.Reason
	text   string // may have a line for each NUMA node
	// as in Rejection
	barredBy, helps string
}

// reject counts and stores the rejection of a container that could not be placed as requested.
func (l *Ledger) reject(c *container, why cause, refused bool) *Rejection {
	now, count := l.step.now, l.state.Counters.Unpinned
	if refused = refused && !l.state.Resolved.Config.DryRun(); refused {
		count = l.state.Counters.Rejections
	}
	count[why.reason.String()]++
	rejection := Rejection{
		At: now, Last: now, Count: 1, Namespace: c.pod.Namespace, Pod: c.pod.Name, UID: c.pod.UID, Container: c.Name,
		Reason: why.reason.String(), Text: why.text, BarredBy: why.barredBy, Helps: why.helps, Refused: refused,
	}
	l.storeRejection(rejection)
	return &rejection
}

// storeRejection puts a rejection first, or replaces it if it is already stored. Too many cost the namespace with the most its oldest: a tenant
// takes none of the others out of the view.
func (l *Ledger) storeRejection(rejection Rejection) {
	rejections := slices.Clone(l.state.Rejections) // views share the old ones
	if i := slices.IndexFunc(rejections, rejection.Same); i >= 0 {
		rejections[i] = rejection
	} else {
		rejections = slices.Insert(rejections, 0, rejection)
	}
	if len(rejections) > RejectionsKept {
		i := oldestOfTheMost(rejections)
		rejections = slices.Delete(rejections, i, i+1)
	}
	l.state.Rejections = rejections
}

// forgetRejections removes rejections of containers that have their place, or that are gone.
func (l *Ledger) forgetRejections(of func(Rejection) bool) {
	if slices.ContainsFunc(l.state.Rejections, of) {
		l.state.Rejections = slices.DeleteFunc(slices.Clone(l.state.Rejections), of) // views share the old ones
	}
}

// has reports whether a rejection is of the pod, which may have no UID, or had another name.
func (p *pod) has(r Rejection) bool {
	return r.UID == p.UID && (r.UID != "" || r.Namespace == p.Namespace && r.Pod == p.Name)
}

// oldestOfTheMost returns the index of the last rejection in the namespace with the most.
func oldestOfTheMost(rejections []Rejection) (found int) {
	number := map[string]int{}
	for _, r := range rejections {
		number[r.Namespace]++
	}
	for i, r := range rejections {
		if number[r.Namespace] >= number[rejections[found].Namespace] {
			found = i
		}
	}
	return found
}

// rejectResize stores a refused resize. A retry of the same resize updates the rejection and its text.
func (l *Ledger) rejectResize(c *container, err error) *Refusal {
	request := request(c)
	why := l.causeOf(err)
	if c.Refusal == nil || !slices.Equal(c.Refusal.Request, request) {
		return &Refusal{*l.reject(c, why, true), request}
	}
	again := *c.Refusal
	again.Text, again.Last = why.text, l.step.now
	again.Count++
	l.storeRejection(again.Rejection)
	return &again
}

// causeOf returns why a container could not be placed.
func (l *Ledger) causeOf(err error) cause {
	rejection, ok := errors.AsType[*memorymanager.AllocationError](err)
	if !ok {
		return cause{reason: memorymanager.NotPreferred, text: err.Error()}
	}
	var holders []string
	begin := 0 // of those on the same nodes, who are named in the order of their names
	for i, h := range rejection.Holders {
		if i > 0 && h.Nodes != rejection.Holders[i-1].Nodes {
			begin = len(holders)
		}
		if p := l.pods[h.Pod]; p != nil {
			own := nodesOf(l.manager.Blocks(h.Pod, h.Container)) // may be a part of the group
			holders = append(holders, fmt.Sprintf("%s/%s, container %s, on %s", p.Namespace, p.Name, h.Container, own.Named()))
		}
		slices.Sort(holders[begin:])
		if h.More > 0 {
			holders = append(holders, fmt.Sprintf("and %d more on %s", h.More, h.Nodes.Named()))
		}
	}
	return cause{rejection.Reason, rejection.Text(), strings.Join(holders, "; "), rejection.Helps}
}
