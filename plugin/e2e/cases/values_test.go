package cases

import (
	"syscall"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// mixture is a pod of every kind.
func mixture() []*kubelet.Pod {
	return []*kubelet.Pod{
		{Name: "guaranteed", Containers: []kubelet.Container{{Name: "app", Request: 64 * MiB, Limit: 64 * MiB}}},
		{Name: "limited", Containers: []kubelet.Container{{Name: "app", Request: 64 * MiB, Limit: 128 * MiB}, {Name: "equal", Request: 24 * MiB, Limit: 24 * MiB}}},
		{Name: "unlimited", Containers: []kubelet.Container{{Name: "app", Request: 48 * MiB}}},
		{Name: "besteffort", Containers: []kubelet.Container{{Name: "app"}}},
		{Name: "phased", Overhead: 8 * MiB, Containers: []kubelet.Container{
			{Name: "before", Init: true, Request: 80 * MiB, Limit: 96 * MiB, Args: []string{"exit=0"}},
			{Name: "app", Request: 32 * MiB, Limit: 96 * MiB},
		}},
	}
}

// TestValuesAtEveryLevel compares memory.min, low and high of containers,
// pods, QoS classes and kubepods with the simulator's, also after a change of
// the configuration and when pods go.
func TestValuesAtEveryLevel(t *testing.T) {
	k := criOf(t)
	tiered := []string{"memoryReservationPolicy: TieredReservation"}
	p := startPlugin(t, tiered...)
	pods := mixture()
	for _, pod := range pods {
		run(t, k, pod)
	}
	p.agrees(k, p.simulate(pods...), pods...)

	p.configure("memoryReservationPolicy: HardReservation", "memoryThrottlingFactor: 0.5")
	_ = p.cmd.Process.Signal(syscall.SIGHUP)
	p.agrees(k, p.simulate(pods...), pods...)

	if err := k.Remove(t.Context(), pods[1]); err != nil {
		t.Fatal(err)
	}
	pods = append(pods[:1], pods[2:]...)
	p.agrees(k, p.simulate(pods...), pods...)

	if err := k.RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is promised when no pod is left", func() string {
		for _, name := range []string{"memory.min", "memory.low"} {
			if n := number(t, k.Kubepods(), name); n != 0 {
				return name + " of kubepods is still set"
			}
		}
		return ""
	})
}
