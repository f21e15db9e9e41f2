package cases

import (
	"testing"

	systemd "github.com/coreos/go-systemd/v22/dbus"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// TestAncestorsThatOthersWriteAreRepaired writes zeros where today's kubelets
// do, and reloads systemd; protection comes back and the overwrites are counted.
func TestAncestorsThatOthersWriteAreRepaired(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	pods := []*kubelet.Pod{
		guaranteed("guaranteed", 64*MiB, MiB),
		{Name: "burstable", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB}}},
	}
	for _, pod := range pods {
		run(t, k, pod)
	}
	want := p.simulate(pods...)
	p.agrees(k, want, pods...)
	for range 3 {
		write(t, "0", k.Kubepods(), "memory.min")
		write(t, "0", k.QoS(pods[1]), "memory.low")
		p.agrees(k, want, pods...)
	}
	eventually(t, "the overwrites are counted", func() string {
		if n := metric(t, "nri_memory_manager_ancestor_overwrites_total"); n < 2 {
			return "the metric does not show them"
		}
		return ""
	})
	if k.Plan.Driver != setup.Systemd {
		return
	}
	bus, err := systemd.NewSystemdConnectionContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	if err := bus.ReloadContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.agrees(k, want, pods...)
	// A change of another property makes systemd write the slice's memory files again.
	if err := bus.SetUnitPropertiesContext(t.Context(), "kubepods.slice", true, systemd.PropSlice("")); err != nil {
		t.Log("no other property changed:", err)
	}
	p.agrees(k, want, pods...)
}

// TestRollbackLeavesKernelDefaults takes back everything under running pods.
func TestRollbackLeavesKernelDefaults(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	pods := []*kubelet.Pod{
		guaranteed("guaranteed", 64*MiB, MiB),
		{Name: "burstable", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB}}},
		{Name: "besteffort", Containers: []kubelet.Container{{Name: "app"}}},
	}
	for _, pod := range pods {
		run(t, k, pod)
	}
	p.agrees(k, p.simulate(pods...), pods...)
	p.stop()
	for _, args := range [][]string{{"rollback", "--dry-run"}, {"rollback"}, {"rollback"}} {
		out, code := p.command(append(args, "--state-dir", p.state)...)
		if code != 0 {
			t.Fatalf("%v: exit status %d: %s", args, code, out)
		}
		t.Logf("%v:\n%s", args, out)
	}
	all := file("/sys/fs/cgroup/cpuset.mems.effective")
	dirs := []string{k.Kubepods(), k.QoS(pods[1]), k.QoS(pods[2])}
	for _, pod := range pods {
		dirs = append(dirs, k.Dir(pod), dirOf(t, k, pod, "app"))
		if got := file(dirOf(t, k, pod, "app"), "cpuset.mems.effective"); got != all {
			t.Errorf("%s: cpuset.mems.effective is %q, want %q", pod.Name, got, all)
		}
	}
	for _, dir := range dirs {
		for name, want := range map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max"} {
			if got := file(dir, name); got != want {
				t.Errorf("%s/%s is %s after rollback, want %s", dir, name, got, want)
			}
		}
	}
}
