package main

import (
	"context"

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
