package cgroup

import (
	"errors"
	"os"
	"testing"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// TestOnARealSystemd shows that what systemd is told survives what a value in a file alone does not. CGROUP_SYSTEMD names the
// private socket of a systemd that may be played with, such as that of a virtual machine; CGROUP_TREE its cgroup mount.
func TestOnARealSystemd(t *testing.T) {
	root, socket := os.Getenv("CGROUP_TREE"), os.Getenv("CGROUP_SYSTEMD")
	if root == "" || socket == "" {
		t.Skip("needs a systemd to talk to: set CGROUP_TREE and CGROUP_SYSTEMD")
	}
	tree, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	u := NewUnits(socket)
	defer u.Close()
	if err := u.SetMemory(t.Context(), "kubepods-absent.slice", map[Knob]uint64{MemoryMin: 1}); err != nil && !errors.Is(err, ErrNoUnit) {
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
	waitFor(t, func() bool { _, err := tree.Get(pod, MemoryMin); return err == nil })

	j := openJournal(t, t.TempDir())
	p := NewProtector(ProtectorOptions{Tree: tree, Units: u, Journal: j})
	const value = 64 << 20
	if err := p.Apply(t.Context(), Targets([]Pod{{Path: mustPod(t, "kubepods-podg.slice"), Values: minimum(value)}})); err != nil {
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
		for _, cgroup := range []string{"kubepods.slice", pod} {
			if v, err := tree.Get(cgroup, MemoryMin); v != want || err != nil {
				t.Errorf("memory.min of %s: %d, %v, want %d", cgroup, v, err, want)
			}
		}
	}
	if err := tree.Set(pod, MemoryLow, value); err != nil {
		t.Fatal(err)
	}
	disturb()
	holds(value)
	if v, err := tree.Get(pod, MemoryLow); v != 0 || err != nil {
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

	if err := u.SetMemory(t.Context(), Unit(pod), map[Knob]uint64{CpusetMems: 1, MemoryHigh: Max}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { nodes, err := tree.Mems(pod); return nodes == "0" && err == nil })
}
