package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/sirupsen/logrus"
)

// other is a plugin that sets memory.min, as we do; with set unset it does nothing at all.
type other struct{ set bool }

func (o other) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if !o.set {
		return nil, nil, nil
	}
	adjustment := &api.ContainerAdjustment{}
	adjustment.AddLinuxUnified("memory.min", "4096")
	return adjustment, nil, nil
}

func init() { logrus.SetLevel(logrus.WarnLevel) } // NRI's stub logs there

// rival connects another plugin until stop is called.
func (h *host) rival() (stop func()) { return h.connect(other{set: true}, "rival", "95") }

func (h *host) connect(plugin any, name, index string) (stop func()) {
	h.t.Helper()
	s, err := stub.New(plugin, stub.WithSocketPath(h.path("nri.sock")), stub.WithPluginName(name), stub.WithPluginIdx(index))
	must(h.t, err)
	must(h.t, s.Start(context.Background()))
	h.connected()
	h.t.Cleanup(s.Stop)
	return s.Stop
}

// idleVariable makes this test binary run the plugin that does nothing, at the socket that it holds.
const idleVariable = "TEST_IDLE_PLUGIN_SOCKET"

// runIdle is that plugin, in a process of its own as the real one is.
func runIdle(socket string) int {
	s, err := stub.New(other{}, stub.WithSocketPath(socket), stub.WithPluginName("nothing"), stub.WithPluginIdx("92"))
	if err == nil {
		err = s.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// nothing starts it and waits until it is connected.
func (h *host) nothing() (stop func()) {
	h.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), idleVariable+"="+h.path("nri.sock"))
	must(h.t, cmd.Start())
	h.connected()
	return func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
}
