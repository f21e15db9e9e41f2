package protect

import (
	"context"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// answering is a systemd that answers, and writes its files later.
type answering struct{ answered *bool }

func (a answering) SetMemory(context.Context, string, map[cgroup.Knob]uint64) error {
	*a.answered = true
	return nil
}

func TestSystemdDoesNotChangeWhatAnOOMKillEnds(t *testing.T) {
	const dir = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu1.slice/cri-containerd-1.scope"
	for name, test := range map[string]struct{ before, want string }{
		"the kubelet's": {"1", "1"},
		"systemd's own": {"0", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			folder, answered := cgroups.Folder(t.TempDir()), false
			write := func(text string) error { return folder.Write(dir, string(cgroup.MemoryOOMGroup), text) }
			if err := folder.Make(dir); err != nil {
				t.Fatal(err)
			}
			if err := write(test.before); err != nil {
				t.Fatal(err)
			}
			tree, err := cgroupfs.Open(string(folder), cgroupfs.Plain(), cgroupfs.OnOpen(func(_, _ string) error {
				if !answered {
					return nil
				}
				answered = false
				return write("0")
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			if err := setMemory(t.Context(), answering{&answered}, tree, dir, "cri-containerd-1.scope", map[cgroup.Knob]uint64{cgroup.MemoryHigh: 1 << 20}, new(bool)); err != nil {
				t.Fatal(err)
			}
			if got, err := tree.Text(dir, cgroup.MemoryOOMGroup); err != nil || got != test.want {
				t.Errorf("memory.oom.group is %q, %v, want %s", got, err, test.want)
			}
		})
	}
}

// scopeWriter is a systemd that writes 0 with every property.
type scopeWriter struct{ folder cgroups.Folder }

func (u scopeWriter) SetMemory(context.Context, string, map[cgroup.Knob]uint64) error {
	return u.folder.Write(scopeA, string(cgroup.MemoryOOMGroup), "0")
}

// The kubelet's value is written back later, too, if it cannot be at once.
func TestTheKubeletsOOMGroupReturnsAfterAFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, scopeA)
		put(t, n.Root(), map[string]string{scopeA + "/memory.oom.group": "1"})
		opens := 0
		tree, err := cgroupfs.Open(n.Root(), cgroupfs.Plain(), cgroupfs.OnOpen(func(_, file string) error {
			if file != "memory.oom.group" {
				return nil
			}
			if opens++; opens == 3 { // after two reads
				return unix.ENOMEM
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		p := New(Options{Tree: tree, Units: scopeWriter{cgroups.Folder(n.Root())}, PageSize: 4096})
		target := cgroup.Target{Cgroup: scopeA, Level: cgroup.LevelContainer, Driver: cgroup.Systemd, Values: minimum(4096)}
		if err := p.DesireAll([]cgroup.Target{target}); err != nil {
			t.Fatal(err)
		}
		if err := p.Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := content(t, tree, scopeA+"/memory.oom.group"); got != "1" || opens < 5 {
			t.Errorf("memory.oom.group is %s, after it was opened %d times", got, opens)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
