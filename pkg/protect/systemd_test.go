package protect

import (
	"errors"
	"os"
	"testing"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// TestOnARealSystemd shows that what systemd is told survives what a value in a file alone does not. CGROUP_SYSTEMD names the
// private socket of a systemd that may be played with, such as that of a virtual machine; CGROUP_TREE its cgroup mount.
func TestOnARealSystemd(t *testing.T) {
	root, socket := os.Getenv("CGROUP_TREE"), os.Getenv("CGROUP_SYSTEMD")
	if root == "" || socket == "" {
		t.Skip("needs a systemd to talk to: set CGROUP_TREE and CGROUP_SYSTEMD")
	}
	tree, err := cgroupfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	u := NewUnits(socket)
	defer u.Close()
	if err := u.SetMemory(t.Context(), "kubepods-absent.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1}); err != nil && !errors.Is(err, ErrNoUnit) {
		t.Errorf("a unit that is not there: %v", err)
	}
	conn, err := u.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const pod = sliceG
	accounting := systemd.Property{Name: "MemoryAccounting", Value: dbus.MakeVariant(true)}
	if _, err := conn.StartTransientUnitContext(t.Context(), "kubepods-podg.slice", "replace", []systemd.Property{accounting}, nil); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { _, err := tree.Get(pod, cgroup.MemoryMin); return err == nil })

	j := openJournal(t, t.TempDir())
	p := New(Options{Tree: tree, Units: u, Journal: j})
	const value = 64 << 20
	if err := p.applyAll(t.Context(), Targets([]Pod{{Path: mustPod(t, "kubepods-podg.slice"), Values: minimum(value)}})); err != nil {
		t.Fatal(err)
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Of what a file alone holds, nothing is left after these.
	disturb := func() {
		t.Helper()
		weight := systemd.Property{Name: "CPUWeight", Value: dbus.MakeVariant(uint64(200))}
		for _, slice := range []string{"kubepods.slice", "kubepods-podg.slice"} {
			if err := conn.SetUnitPropertiesContext(t.Context(), slice, true, weight); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.ReloadContext(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(want uint64) {
		t.Helper()
		for _, dir := range []string{"kubepods.slice", pod} {
			if v, err := tree.Get(dir, cgroup.MemoryMin); v != want || err != nil {
				t.Errorf("memory.min of %s: %d, %v, want %d", dir, v, err, want)
			}
		}
	}
	if err := tree.Set(pod, cgroup.MemoryLow, value); err != nil {
		t.Fatal(err)
	}
	disturb()
	holds(value)
	if v, err := tree.Get(pod, cgroup.MemoryLow); v != 0 || err != nil {
		t.Errorf("memory.low that only the file held: %d, %v", v, err)
	}
	if _, err := p.Reconcile(t.Context()); err != nil || len(p.Overwrites()) > 0 {
		t.Errorf("%v, overwrites %v", err, p.Overwrites())
	}
	if actions, err := Rollback(t.Context(), j, tree, u, false); err != nil || len(actions) != 2 {
		t.Errorf("%v, %v", actions, err)
	}
	disturb()
	holds(0)

	if err := u.SetMemory(t.Context(), cgroup.Unit(pod), map[cgroup.Knob]uint64{cgroup.CpusetMems: 1, cgroup.MemoryHigh: cgroup.Max}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { nodes, err := tree.Mems(pod); return nodes == "0" && err == nil })
}
