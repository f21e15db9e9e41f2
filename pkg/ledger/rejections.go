package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// RejectionsKept is how many refused or unpinned containers a View shows.
const RejectionsKept = 64

// refusal is a resize that was refused. The kubelet tries the very same one again every second, for as long as the pod
// lives.
type refusal struct {
	Rejection
	request memorymanager.Request
	room    uint64 // Ledger.room: as long as it is the same, so is the answer
	err     error
}

// reject notes a container that could not be placed as asked.
func (l *Ledger) reject(c *container, reason memorymanager.Reason, err error, refused bool) Rejection {
	dryRun := l.resolved.Config.DryRun
	if refused && !dryRun {
		l.counters.Rejections[reason.String()]++
	} else {
		l.counters.Unpinned[reason.String()]++
	}
	now := l.step.now
	rejection := Rejection{
		At: now, Last: now, Count: 1, Namespace: c.pod.Namespace, Pod: c.pod.Name, UID: c.pod.UID, Container: c.name,
		Reason: reason.String(), Text: textOf(err), PodText: memorymanager.InLine(err.Error()), Refused: refused && !dryRun,
	}
	l.show(rejection)
	return rejection
}

// show puts a rejection in front of the others, or in its own place when it is among them.
func (l *Ledger) show(rejection Rejection) {
	rejections := slices.Clone(l.rejections) // views share the old ones
	if i := slices.IndexFunc(rejections, rejection.Same); i >= 0 {
		rejections[i] = rejection
	} else {
		rejections = slices.Insert(rejections, 0, rejection)
	}
	l.rejections = rejections[:min(len(rejections), RejectionsKept)]
	l.changed()
}

// refuse notes a resize that was refused. The same one again is the same rejection.
func (l *Ledger) refuse(c *container, err error) {
	request := request(c)
	view := Rejection{}
	if c.refusal != nil && slices.Equal(c.refusal.request, request) {
		view = c.refusal.Rejection
		view.Text, view.PodText, view.Last = textOf(err), memorymanager.InLine(err.Error()), l.step.now
		view.Count++
		l.show(view)
	} else {
		view = l.reject(c, reasonOf(err), err, true)
	}
	c.refusal = &refusal{Rejection: view, request: request, room: l.room(), err: err}
}

// refusedAgain answers a resize that was refused and that nothing has made room for since; nil is another one.
func (l *Ledger) refusedAgain(c *container) error {
	r := c.refusal
	if r == nil || r.room != l.room() || !slices.Equal(r.request, request(c)) {
		return nil
	}
	l.refuse(c, r.err)
	return r.err
}
