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
func (*counter) Disconnected(error)                              {}
func (*counter) RunPodSandbox(context.Context, ledger.Pod) error { return nil }

// An event that is received while its connection ends does not make the agent take that connection for the present one.
func TestNothingIsAcceptedAfterTheEndOfAConnection(t *testing.T) {
	agent := &counter{}
	log, _ := logtest.NewNullLogger()
	plugin := New(agent, Options{Log: log})
	lively, over := newConnection(plugin), newConnection(plugin)
	for range 2 {
		if err := lively.RunPodSandbox(t.Context(), &api.PodSandbox{}); err != nil {
			t.Fatal(err)
		}
	}
	over.end()
	if err := over.RunPodSandbox(t.Context(), &api.PodSandbox{}); !errors.Is(err, errConnectionOver) {
		t.Errorf("an event ended with %v, want %v", err, errConnectionOver)
	}
	if agent.connections != 1 {
		t.Errorf("the agent has heard of %d connections, want 1", agent.connections)
	}
}
