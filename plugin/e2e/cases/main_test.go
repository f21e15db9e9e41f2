// Package cases holds the tests that run inside a VM, beside a real runtime.
// They are built with `go test -c` and run by the guest, never on a developer's
// machine: outside of a guest they skip themselves.
package cases

import (
	"context"
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/cri"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// MiB is 2^20 bytes.
const MiB = kubelet.MiB

// waitLimit bounds every wait for a condition. It is wide: it is used up only
// when something is broken, and CI machines can be very slow.
const waitLimit = 6 * time.Minute

// machine is a node with its pods: beside the real kubelet, or beside requests to the runtime that a case makes itself.
type machine interface {
	Run(context.Context, *kubelet.Pod) error
	Remove(context.Context, *kubelet.Pod) error
	RemoveAll(context.Context) error
	Resize(ctx context.Context, p *kubelet.Pod, container string, request, limit uint64) error

	WaitReady(context.Context) error
	HasImage(ctx context.Context, image string) bool
	RemoveImage(ctx context.Context, image string) error
	Version(context.Context) (string, error)
	Kubepods() string
	QoS(*kubelet.Pod) string
	Dir(*kubelet.Pod) string
	ContainerDir(p *kubelet.Pod, container string) (string, error)
	Control(*kubelet.Pod) string
	PIDs(p *kubelet.Pod, container string) ([]int, error)
	Output(p *kubelet.Pod, container string) string
	WaitOutput(ctx context.Context, p *kubelet.Pod, container, line string) error
	Exited(ctx context.Context, p *kubelet.Pod, container string) (string, bool)
	WaitExit(ctx context.Context, p *kubelet.Pod, container string) (string, error)
	Exec(ctx context.Context, p *kubelet.Pod, container string, command ...string) (string, int, error)
}

// node is this guest's: one of the two at a time, since the kubelet ends pods that are not its own.
var node struct {
	kubelet *kubelet.Kubelet
	cri     *cri.Kubelet
}

// planOf reads what this guest is; outside of one the test skips itself.
func planOf(t *testing.T) setup.Plan {
	t.Helper()
	plan, err := setup.Read()
	if err != nil {
		t.Skip("this is no test VM; use make e2e")
	}
	return plan
}

// kubeletOf returns this guest's kubelet, running with this configuration over its baseline, and sees to it that the
// test leaves no pod behind.
func kubeletOf(t *testing.T, config ...kubelet.Config) *kubelet.Kubelet {
	t.Helper()
	plan := planOf(t)
	if plan.APIServer == "" {
		t.Skip("this guest is no node of a cluster")
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if node.cri != nil {
		node.cri.Stop()
		node.cri = nil
	}
	if node.kubelet == nil {
		k, err := kubelet.New(ctx, plan)
		if err != nil {
			t.Fatal(err)
		}
		node.kubelet = k
	}
	merged := kubelet.Config{}
	for _, c := range config {
		maps.Copy(merged, c)
	}
	if err := node.kubelet.Configure(ctx, merged); err != nil {
		t.Fatal(err)
	}
	leaveNoPod(t, node.kubelet)
	return node.kubelet
}

// criOf stops the kubelet and returns what makes pods by requests to the runtime: for cases that need requests which no
// kubelet would make at that moment.
func criOf(t *testing.T) *cri.Kubelet {
	t.Helper()
	plan := planOf(t)
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	if node.kubelet != nil {
		node.kubelet.Kill(syscall.SIGTERM)
	}
	if node.cri == nil {
		k, err := cri.Start(ctx, plan)
		if err != nil {
			t.Fatal(err)
		}
		node.cri = k
	}
	leaveNoPod(t, node.cri)
	return node.cri
}

func leaveNoPod(t *testing.T, k machine) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		if err := k.RemoveAll(ctx); err != nil {
			t.Error(err)
		}
	})
}

// eventually waits until check returns "" and fails with its last answer. What takes long is asked for less often, for an emulated CPU
// has little left beside a process that is started again and again.
func eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); {
		began := time.Now()
		if last = check(); last == "" {
			return
		}
		time.Sleep(max(100*time.Millisecond, time.Since(began)))
	}
	t.Fatalf("%s: not within %v: %s", what, waitLimit, last)
}

// run runs a pod and waits for its containers' first line where they have steps.
func run(t *testing.T, k machine, p *kubelet.Pod) *kubelet.Pod {
	t.Helper()
	if err := k.Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// said waits for a line of a container's output.
func said(t *testing.T, k machine, p *kubelet.Pod, container, line string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := k.WaitOutput(ctx, p, container, line); err != nil {
		t.Fatal(err)
	}
}
