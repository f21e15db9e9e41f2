package world

import (
	"time"

	"github.com/containerd/nri/pkg/api"
)

const (
	answered   Promise = "an event of the runtime waits for nothing that hangs longer than it may"
	besideDisk Promise = "no event waits for a disk"
)

const (
	soon     = 700 * time.Millisecond  // with a source of requests that does not answer
	stored   = 1500 * time.Millisecond // beside a disk that hangs: half of the runtime's time, and half a second for the journal
	knownBad = 11 * time.Second        // after the first that waited, a disk that hangs is waited for no more
)

// answered judges how long an event took.
func (n *simulation) answered(event api.Event, subject string, began time.Time) {
	now := time.Now()
	if n.trouble.calm(answered, now).After(began) {
		return
	}
	took, bound := now.Sub(began), soon
	switch hangs := n.trouble.calm(besideDisk, now).After(began); {
	case !hangs:
		n.waited = time.Time{}
	case took > soon && n.waited.IsZero():
		n.waited = began
	}
	if !n.waited.IsZero() && began.Sub(n.waited) < knownBad {
		bound = stored
	}
	if took > bound {
		n.broken(answered, "%s of %s took %s, at %s", event.PrettyName(), subject, took, began.Sub(n.began))
	}
}
