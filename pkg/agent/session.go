package agent

import (
	"context"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// Session is one connection of a runtime, and its methods are the runtime's events. What is late decides nothing: an event whose
// connection has ended, that the runtime has given up, or that a newer one about the same container or pod has overtaken. Only the
// end of a container or a pod is true whenever it arrives.
type Session struct {
	agent *Agent
	epoch uint64
	apply func(context.Context, []ledger.Update) error // nil where the runtime takes no unasked updates

	sending bool // updates are on their way to the runtime; guarded by agent.mu
}

// Connected is called when a runtime has accepted the plugin, and returns what receives its events until Disconnected. apply sends
// unasked updates of running containers to it; nil where the runtime can not take them, and the agent then writes the containers'
// cgroup files.
func (a *Agent) Connected(runtime ledger.Runtime, apply func(context.Context, []ledger.Update) error) *Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch++
	a.session = &Session{agent: a, epoch: a.epoch, apply: apply}
	a.stepLocked(ledger.Connected{Runtime: runtime, Epoch: a.epoch})
	return a.session
}

// Disconnected is called when the runtime is gone, with the reason.
func (a *Agent) Disconnected(reason error) {
	text := "the runtime has closed the connection"
	if reason != nil {
		text = reason.Error()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session = nil
	a.stepLocked(ledger.Disconnected{Reason: text})
}

// header is for an event that is received now.
func (s *Session) header() ledger.Header {
	return ledger.Header{Epoch: s.epoch, Seq: s.agent.received.Add(1)}
}
