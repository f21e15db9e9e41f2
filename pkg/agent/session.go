package agent

import (
	"context"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// Session is one connection of a runtime; its methods handle the runtime's events. Late events are ignored: those of a connection that has
// ended, those that the runtime has given up, and those overtaken by a newer event about the same container or pod. Only the end of a
// container or pod counts whenever it arrives.
type Session struct {
	agent *Agent
	epoch uint64
	apply func(context.Context, []ledger.Update) error // nil if the runtime takes no unsolicited updates

	sending bool // updates are being sent to the runtime; guarded by agent.mu
}

// Connected is called when a runtime has accepted the plugin. The session receives its events until Disconnected. apply sends unsolicited
// updates of running containers to the runtime; if it is nil, the agent only writes the containers' cgroup files.
func (a *Agent) Connected(runtime ledger.Runtime, apply func(context.Context, []ledger.Update) error) *Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch++
	a.session = &Session{agent: a, epoch: a.epoch, apply: apply}
	a.stepLocked(ledger.Connected{Runtime: runtime, Epoch: a.epoch})
	return a.session
}

// Disconnected is called with the reason when the connection has ended.
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

// header returns the header of an event that is received now.
func (s *Session) header() ledger.Header {
	return ledger.Header{Epoch: s.epoch, Seq: s.agent.received.Add(1)}
}
