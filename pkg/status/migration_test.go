package status

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// texts are the sentences about migrations, by cgroup.
func texts(all map[string]*Migration) map[string]string {
	sentences := map[string]string{}
	for cgroup, m := range all {
		sentences[cgroup] = m.String()
	}
	return sentences
}

func TestMigrationsOfRunningContainers(t *testing.T) {
	at := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	moves := cgroup.Migration{Bytes: 3 << 30, From: nodeset.Of(0), To: nodeset.Of(1)}
	view := &ledger.View{Config: config.Resolved{Config: config.Default()}}
	s := Sources{Migrations: func() map[string]protect.Migration {
		return map[string]protect.Migration{
			"blocked": {Migration: moves, Blocked: true, At: at}, "moving": {Migration: moves, At: at}, "moved": {Migration: moves, Done: true, At: at},
		}
	}}
	want := map[string]string{
		"blocked": "its cpuset.mems is not written: that would move 3Gi from node 0 to node 1, more than maxMigrationBytes (256Mi)",
		"moving":  "its cpuset.mems is being written since 2026-05-04 12:00:00 UTC, which moves 3Gi from node 0 to node 1",
		"moved":   "its cpuset.mems was written at 2026-05-04 12:00:00 UTC, which moved 3Gi from node 0 to node 1",
	}
	if diff := cmp.Diff(want, texts(s.migrations(view))); diff != "" {
		t.Error(diff)
	}
}

// A dry run writes nothing: what a write would move is read.
func TestMigrationsOfADryRun(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"much": "anon N0=0 N1=8589934592\n", "little": "anon N0=4096 N1=134217728\nfile N0=0 N1=8589934592\nfile_mapped N0=0 N1=0\n", "none": "anon N0=4096 N1=0\n", "burstable": "anon N0=0 N1=4096\n",
	} {
		cgroups.Fill(t, filepath.Join(root, "kubepods", name), map[string]string{"memory.numa_stat": text, "cpuset.mems": "\n", "cpuset.mems.effective": "0-1\n"})
	}
	tree, err := cgroupfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	view := viewOf("kubepods/much", "kubepods/little", "kubepods/none", "kubepods/ended", "kubepods/burstable")
	for i := range 4 {
		view.Pods[0].Containers[i].Nodes = nodeset.Of(0)
	}
	view.Pods[0].Containers[1].Nodes, view.Pods[0].Containers[1].Confined = 0, nodeset.Of(0)
	view.Config.Config = config.Default()
	view.Config.Config.Profile, view.Config.Machine.MemTotal = config.ProfileObserve, 64<<30
	s := Sources{View: func() *ledger.View { return view }, Usages: NewUsages(tree, cgroupfs.NewSampler(cgroupfs.FreshTime, tree.Counters))}
	want := map[string]string{
		"kubepods/much":   "a write of its cpuset.mems would move 8Gi from node 1 to node 0, more than maxMigrationBytes (256Mi)",
		"kubepods/little": "a write of its cpuset.mems would move 128Mi from node 1 to node 0",
	}
	if diff := cmp.Diff(want, texts(s.migrations(view))); diff != "" {
		t.Error(diff)
	}
	explained := s.Explain([]ledger.Explanation{{Pod: view.Pods[0], Container: view.Pods[0].Containers[1]}})
	if m := explained[0].Migration; m == nil || m.State != Planned {
		t.Errorf("explain has %+v", m)
	}
}
