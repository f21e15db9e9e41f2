package nriplugin

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/nri/pkg/api"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// counter counts the connections that it hears of.
type counter struct {
	Session
	connections int
}

func (c *counter) Connected(ledger.Runtime, func(context.Context, []ledger.Update) error) *counter {
	c.connections++
	return c
}
func (*counter) Disconnected(error)                                                 {}
func (*counter) StartContainer(context.Context, ledger.Pod, ledger.Container) error { return nil }

// An event that is received while its connection ends does not make the agent take that connection for the present one.
func TestNothingIsAcceptedAfterTheEndOfAConnection(t *testing.T) {
	agent := &counter{}
	log, _ := logtest.NewNullLogger()
	plugin := New(agent, Options{Log: log})
	lively, over := newConnection(plugin), newConnection(plugin)
	for range 2 {
		if err := lively.StartContainer(t.Context(), &api.PodSandbox{}, &api.Container{}); err != nil {
			t.Fatal(err)
		}
	}
	over.end()
	if _, _, err := over.CreateContainer(t.Context(), &api.PodSandbox{}, &api.Container{}); !errors.Is(err, errConnectionEnded) {
		t.Errorf("an event ended with %v, want %v", err, errConnectionEnded)
	}
	if agent.connections != 1 {
		t.Errorf("the agent has heard of %d connections, want 1", agent.connections)
	}
}
