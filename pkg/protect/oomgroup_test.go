package protect

import (
	"context"
	"testing"

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
			if err := setMemory(t.Context(), answering{&answered}, tree, dir, "cri-containerd-1.scope", map[cgroup.Knob]uint64{cgroup.MemoryHigh: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			if got, err := tree.Text(dir, cgroup.MemoryOOMGroup); err != nil || got != test.want {
				t.Errorf("memory.oom.group is %q, %v, want %s", got, err, test.want)
			}
		})
	}
}
