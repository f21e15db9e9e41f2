package agent

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// rejectionsKept is how many refused or unpinned containers a View shows.
const rejectionsKept = 64

// refusal is a resize that was refused. The kubelet tries the very same one again every second, for as long as the pod
// lives.
type refusal struct {
	RejectionView
	request    memorymanager.Request
	generation uint64 // of the manager: as long as it is the same, so is the answer; never 0 there
	err        error
}

// reject notes a container that could not be placed as asked. The lock is held.
func (a *Agent) reject(c *container, reason, text string, refused bool) RejectionView {
	dryRun := a.resolved.Config.DryRun
	a.counters.rejected(reason, refused && !dryRun)
	now := a.now()
	rejection := RejectionView{
		At: now, Last: now, Count: 1, Namespace: c.pod.Namespace, Pod: c.pod.Name, UID: c.pod.UID, Container: c.name,
		Reason: reason, Text: text, Refused: refused && !dryRun,
	}
	a.show(rejection)
	return rejection
}

// show puts a rejection in front of the others, or in its own place when it is among them.
func (a *Agent) show(rejection RejectionView) {
	rejections := slices.Clone(a.rejections) // views share the old ones
	if i := slices.IndexFunc(rejections, rejection.Same); i >= 0 {
		rejections[i] = rejection
	} else {
		rejections = slices.Insert(rejections, 0, rejection)
	}
	a.rejections = rejections[:min(len(rejections), rejectionsKept)]
	a.changed()
}

// refuse notes a resize that was refused. The same one again is the same rejection.
func (a *Agent) refuse(c *container, err error) {
	request := request(c)
	view := RejectionView{}
	if c.refusal != nil && slices.Equal(c.refusal.request, request) {
		view = c.refusal.RejectionView
		view.Text, view.Last = textOf(err), a.now()
		view.Count++
		a.show(view)
	} else {
		view = a.reject(c, reasonOf(err), textOf(err), true)
	}
	c.refusal = &refusal{RejectionView: view, request: request, generation: a.manager.Generation(), err: err}
}

// refusedAgain answers a resize that was refused and that nothing has made room for since; nil is another one.
func (a *Agent) refusedAgain(c *container) error {
	r := c.refusal
	if r == nil || r.generation != a.manager.Generation() || !slices.Equal(r.request, request(c)) {
		return nil
	}
	a.refuse(c, r.err)
	return r.err
}
