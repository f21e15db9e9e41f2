package agent

import (
	"context"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// waitingAPI waits with its answer about the pod "new".
type waitingAPI struct {
	podAPI
	asked  chan pods.Ref
	answer chan struct{}
}

func (s *waitingAPI) Ask(ctx context.Context, ref pods.Ref) (*pods.Pod, error) {
	if ref.Name == "new" {
		s.asked <- ref
		<-s.answer
	}
	return s.podAPI.Ask(ctx, ref)
}

func TestAPodThatEndsWhileThePodAPIsAreAskedMakesRoom(t *testing.T) {
	api := &waitingAPI{asked: make(chan pods.Ref, 1), answer: make(chan struct{})}
	n := newNode(t, oneNode, func(n *node) { n.timeout, n.providers = time.Minute, []podinfo.Provider{api} })
	for _, name := range []string{"x", "y"} {
		p := n.pod(name, memoryqos.Guaranteed)
		n.launch(p, ofPod(p, "app", 12*gi))
	}
	p := n.pod("new", memoryqos.Guaranteed)
	refused := make(chan error)
	go func() { refused <- n.tryCreate(p, ofPod(p, "app", 12*gi)) }()
	<-api.asked
	x := Pod{ID: "x-sandbox", UID: "x-uid", Namespace: "default", Name: "x", CgroupParent: "/kubepods/podx-uid"}
	n.must(n.StopPodSandbox(context.Background(), x))
	n.work(context.Background())
	n.rmdir(x.CgroupParent)
	close(api.answer)
	n.accepted("a create whose room has come while it was asked", <-refused)
}
