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
	rereads  = 500 * time.Millisecond  // with a claim that is in use by another pod, which is read again
	stored   = 1500 * time.Millisecond // beside a disk that hangs: half of the runtime's time, and half a second for the journal
	knownBad = 11 * time.Second        // after the first that waited for a file, a disk that hangs is waited for no more
	awaited  = 2                       // the files that an answer waits for: the state file, and the journal
)

// answered judges how long an event took.
func (n *simulation) answered(event api.Event, subject string, began time.Time) {
	now := time.Now()
	if n.trouble.calm(answered, now).After(began) {
		return
	}
	took, bound := now.Sub(began), soon
	if n.scenario.hasClaims() {
		bound += rereads
	}
	switch hangs := n.trouble.calm(besideDisk, now).After(began); {
	case !hangs:
		n.waited = nil
	case took > soon && len(n.waited) < awaited && (len(n.waited) == 0 || began.Sub(n.waited[0]) >= knownBad):
		n.waited = append([]time.Time{began}, n.waited...)
	}
	if len(n.waited) > 0 && began.Sub(n.waited[0]) < knownBad {
		bound = stored
	}
	if took > bound {
		n.broken(answered, "%s of %s took %s, at %s", event.PrettyName(), subject, took, began.Sub(n.began))
	}
}
