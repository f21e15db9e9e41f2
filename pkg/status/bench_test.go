package status

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// BenchmarkDocument is one /status of a node with 1,000 running containers. The files are a folder's, which are read faster
// than a kernel's.
func BenchmarkDocument(b *testing.B) {
	root := b.TempDir()
	view := &ledger.View{}
	var numa strings.Builder
	for _, kind := range strings.Fields("anon file kernel_stack pagetables sec_pagetables shmem file_mapped file_dirty file_writeback swapcached " +
		"anon_thp file_thp shmem_thp inactive_anon active_anon inactive_file active_file unevictable slab_reclaimable slab_unreclaimable " +
		"workingset_refault_anon workingset_refault_file workingset_activate_anon workingset_activate_file workingset_restore_anon " +
		"workingset_restore_file workingset_nodereclaim") {
		fmt.Fprintf(&numa, "%s N0=123456789 N1=123456789\n", kind)
	}
	for i := range 1000 {
		name := fmt.Sprintf("kubepods/burstable/pod%d/app", i)
		cgroups.Fill(b, filepath.Join(root, name), map[string]string{
			"memory.events":    "low 0\nhigh 766\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
			"memory.pressure":  "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n",
			"memory.current":   "4096\n",
			"memory.numa_stat": numa.String(),
		})
		view.Pods = append(view.Pods, &ledger.PodView{Namespace: "default", Name: fmt.Sprintf("web-%d", i), Class: memoryqos.Burstable,
			Containers: []ledger.ContainerView{{Name: "app", State: ledger.Running, Cgroup: name}}})
	}
	tree, err := cgroupfs.Open(root)
	if err != nil {
		b.Fatal(err)
	}
	defer tree.Close()
	for name, fresh := range map[string]time.Duration{"read": 0, "fresh": time.Hour} {
		b.Run(name, func(b *testing.B) {
			sources := Sources{View: func() *ledger.View { return view }, Tree: tree,
				Usages: &Usages{cgroupfs.NewSampler(fresh, tree.Counters), cgroupfs.NewSampler(fresh, perNode(tree)), nil}}
			cpu := cpuTime(b)
			for b.Loop() {
				sources.Make()
			}
			b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/1000/float64(b.N), "ms-cpu/op")
		})
	}
}

// cpuTime is what this process has had of the CPUs, whatever else the machine does.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
