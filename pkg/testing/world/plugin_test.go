package world

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
)

// holder is an agent that gives each container a memory.high and does nothing else.
type holder struct {
	nriplugin.Session
	apply  func(context.Context, []ledger.Update) error
	synced atomic.Int64
}

func (h *holder) Connected(_ ledger.Runtime, apply func(context.Context, []ledger.Update) error) *holder {
	h.apply = apply
	return h
}
func (h *holder) Disconnected(error) {}
func (h *holder) Synchronize(context.Context, []ledger.Pod, []ledger.Container) ([]ledger.Update, error) {
	h.synced.Add(1)
	return nil, nil
}
func (h *holder) RunPodSandbox(context.Context, ledger.Pod) error  { return nil }
func (h *holder) StopPodSandbox(context.Context, ledger.Pod) error { return nil }
func (h *holder) CreateContainer(context.Context, ledger.Pod, ledger.Container) (ledger.Adjustment, error) {
	return ledger.Adjustment{Unified: map[string]string{"memory.high": "4096"}}, nil
}
func (h *holder) StartContainer(context.Context, ledger.Pod, ledger.Container) error { return nil }
func (h *holder) StopContainer(context.Context, ledger.Pod, ledger.Container) error  { return nil }

// The plugin itself, with the failure policy Fail, at the runtime that knows it and at one that does not.
func TestThePluginItself(t *testing.T) {
	for name, test := range map[string]struct {
		kind    Runtime
		scope   string
		frozen  string // error of a create while the plugin is stopped
		plugins int
	}{
		"containerd":     {newest, "/cri-containerd-a.scope", "failed to handle CreateContainer request", 2},
		"containerd 1.7": {Runtime{Name: "containerd", Version: "v1.7.29", NRI: "v0.8.0"}, "/cri-containerd-a.scope", "", 1},
		"CRI-O":          {older, "/crio-a.scope", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, test.kind, func(t *testing.T, k *Kernel, r *ContainerRuntime) {
				log := logrus.New()
				log.Out = io.Discard
				h := &holder{}
				ended := make(chan error)
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					ended <- nriplugin.New(h, nriplugin.Options{Dial: r.Dial, Name: "nri-memory-manager", Index: "10", Fail: true, Log: log}).Run(ctx)
				}()
				time.Sleep(time.Second)
				if plugins := len(r.connected()); plugins != test.plugins || h.synced.Load() != 1 {
					t.Fatalf("%d registrations, %d synchronizations", plugins, h.synced.Load())
				}
				runPod(t, k, r)
				if _, err := r.CreateContainer(asked("a")); err != nil {
					t.Fatal(err)
				}
				if high := k.text(parent+test.scope, "memory.high"); high != "4096" {
					t.Errorf("memory.high is %q", high)
				}
				if err := r.StartContainer("a", Program{}, Who{ID: "a"}, Ending{}, nil); err != nil {
					t.Fatal(err)
				}
				if h.apply != nil {
					update := ledger.Update{ContainerID: "a", Adjustment: ledger.Adjustment{Unified: map[string]string{"memory.high": "8192"}}}
					if err := h.apply(t.Context(), []ledger.Update{update}); err != nil || k.text(parent+test.scope, "memory.high") != "8192" {
						t.Errorf("an unasked update: %v, memory.high is %q", err, k.text(parent+test.scope, "memory.high"))
					}
				}

				r.Freeze(true)
				if _, err := r.CreateContainer(asked("b")); (err == nil) != (test.frozen == "") || err != nil && !strings.Contains(err.Error(), test.frozen) {
					t.Errorf("a create while the plugin is stopped: %v", err)
				}
				_ = r.StopContainer("a")
				_ = r.StopPodSandbox("s1")
				r.Freeze(false)
				time.Sleep(10 * time.Second)
				if plugins := len(r.connected()); plugins != test.plugins || h.synced.Load() != 2 {
					t.Errorf("after it goes on: %d registrations, %d synchronizations", plugins, h.synced.Load())
				}

				r.Restart(time.Minute)
				time.Sleep(10 * time.Second)
				if plugins := len(r.connected()); plugins != test.plugins || h.synced.Load() != 3 {
					t.Errorf("after a restart of the runtime: %d registrations, %d synchronizations", plugins, h.synced.Load())
				}
				if failed := r.Calls().Ends; len(failed) > 0 {
					t.Errorf("ends failed: %v", failed)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
