// Package cases holds the tests that run inside a VM, beside a real runtime.
// They are built with `go test -c` and run by the guest, never on a developer's
// machine: outside of a guest they skip themselves.
package cases

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// MiB is 2^20 bytes.
const MiB = kubelet.MiB

// patience bounds every wait for a condition. It is wide: it is used up only
// when something is broken, and CI machines can be very slow.
const patience = 4 * time.Minute

var node struct {
	once    sync.Once
	kubelet *kubelet.Kubelet
	err     error
}

// kubeletOf returns this guest's kubelet and sees to it that the test leaves
// no pod behind.
func kubeletOf(t *testing.T) *kubelet.Kubelet {
	t.Helper()
	plan, err := setup.Read()
	if err != nil {
		t.Skip("this is no test VM; use make e2e")
	}
	node.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		node.kubelet, node.err = kubelet.Start(ctx, plan)
	})
	if node.err != nil {
		t.Fatal(node.err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := node.kubelet.RemoveAll(ctx); err != nil {
			t.Error(err)
		}
	})
	return node.kubelet
}

// eventually waits until check returns "" and fails with its last answer.
func eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if last = check(); last == "" {
			return
		}
	}
	t.Fatalf("%s: not within %v: %s", what, patience, last)
}

// run runs a pod and waits for its containers' first line where they have steps.
func run(t *testing.T, k *kubelet.Kubelet, p *kubelet.Pod) *kubelet.Pod {
	t.Helper()
	if err := k.Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// said waits for a line of a container's output.
func said(t *testing.T, k *kubelet.Kubelet, p *kubelet.Pod, container, line string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := k.WaitOutput(ctx, p, container, line); err != nil {
		t.Fatal(err)
	}
}
