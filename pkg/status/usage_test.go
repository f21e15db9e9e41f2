package status

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

func viewOf(cgroups ...string) *ledger.View {
	pod := &ledger.PodView{}
	for _, name := range cgroups {
		pod.Containers = append(pod.Containers, ledger.ContainerView{State: ledger.Running, Cgroup: name})
	}
	return &ledger.View{Pods: []*ledger.PodView{pod}}
}

func TestUsagesAreTheCountersOfTheKernel(t *testing.T) {
	root := t.TempDir()
	cgroups.Fill(t, filepath.Join(root, "kubepods"), map[string]string{
		"app/memory.current":   "4096\n",
		"app/memory.events":    "low 0\nhigh 766\nmax 0\n",
		"app/memory.pressure":  "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n",
		"app/memory.numa_stat": "anon N0=100 N1=20\nfile N0=3 N1=0\nshmem N0=1000 N1=0\n",
		"plain/memory.current": "8192\n", // a kernel without pressure and NUMA nodes
		"plain/memory.events":  "high 1\n",
	})
	tree, err := cgroupfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	view := viewOf("kubepods/app", "kubepods/plain", "kubepods/ended", "")
	got := NewUsages(tree, cgroupfs.NewSampler(cgroupfs.FreshTime, tree.Counters)).read(view)
	want := map[string]*Usage{
		"kubepods/app":   {Current: 4096, HighEvents: 766, FullStall: 2.5, PerNode: map[int]uint64{0: 103, 1: 20}},
		"kubepods/plain": {Current: 8192, HighEvents: 1},
	}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Error(difference)
	}
}

func TestAContainerWhoseTurnDoesNotComeIsShownAsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var takes time.Duration
		u := &Usages{
			cgroupfs.NewSampler(0, func(string) (c cgroupfs.Counters, err error) {
				time.Sleep(takes)
				return cgroupfs.Counters{Current: 1}, nil
			}),
			cgroupfs.NewSampler(0, func(string) (map[int]uint64, error) {
				time.Sleep(takes)
				return map[int]uint64{0: 1}, nil
			}),
			nil,
		}
		before := u.read(viewOf("a", "b"))
		takes = time.Hour
		time.Sleep(time.Second)
		began := time.Now()
		after := u.read(viewOf("a", "b", "c"))
		if took := time.Since(began); took != 2*readingTime {
			t.Errorf("the document waited for %v, want %v", took, 2*readingTime)
		}
		if difference := cmp.Diff(before, after); difference != "" || len(after) != 2 {
			t.Errorf("%d usages, want those of a and b as before: %s", len(after), difference)
		}
		time.Sleep(time.Hour) // for the reads that were left behind
	})
}
