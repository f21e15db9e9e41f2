package verify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

func TestGather(t *testing.T) {
	root := t.TempDir()
	cgroups.Fill(t, root, map[string]string{
		"cgroup/init.scope/memory.min":                                            "0\n",
		"cgroup/kubepods/memory.min":                                              "1048576\n",
		"cgroup/kubepods/memory.pressure":                                         "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
		"cgroup/kubepods/pod1/memory.min":                                         "1048576\n",
		"cgroup/kubepods/pod1/app/memory.min":                                     "4096\n",
		"cgroup/kubepods/pod1/app/memory.high":                                    "max\n",
		"cgroup/kubepods/pod1/app/cpuset.mems":                                    "0\n",
		"cgroup/kubepods/pod1/app/memory.numa_stat":                               "anon N0=4096 N1=0\nfile N0=0 N1=8192\nshmem N0=0 N1=0\n",
		"cgroup/kubepods/pod1/app/container/memory.low":                           "7\n",
		"cgroup/kubepods/pod2/memory.low":                                         "max\n",
		"sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages":   "4\n",
		"sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages": "1\n",
		"proc/sys/kernel/numa_balancing":                                          "1\n",
		"proc/sys/kernel/osrelease":                                               "6.12.41\n",
		"proc/self/mounts":                                                        "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,memory_localevents,memory_recursiveprot 0 0\n",
		"kubelet.yaml":                                                            "kind: KubeletConfiguration\nmemoryManagerPolicy: Static\nmemoryThrottlingFactor: 0.8\nfeatureGates: {MemoryQoS: true}\nmaxPods: 110\n",
		"state/memory_manager_state.corrupt-2026":                                 "{",
		"state/memory_manager_state":                                              "{}",
	})
	tree, err := cgroupfs.Open(filepath.Join(root, "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	document := status.Document{
		Ancestors: []status.Ancestor{{Cgroup: "kubepods"}}, Nodes: []status.Node{{NodeState: memorymanager.NodeState{ID: 0}}},
		Pods: []status.Pod{{PodView: ledger.PodView{Namespace: "default", Name: "web"}, Containers: []status.Container{
			runs(ledger.ContainerView{Name: "app", Cgroup: "kubepods/pod1/app"}), runs(ledger.ContainerView{Name: "gone", Cgroup: "kubepods/pod9/gone"})}}},
	}
	places := Places{Tree: tree, Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc"), StateDir: filepath.Join(root, "state"),
		KubeletConfig: filepath.Join(root, "kubelet.yaml")}
	got, err := places.Gather(document)
	if err != nil {
		t.Fatal(err)
	}
	factor := 0.8
	want := Node{
		Document: document,
		Cgroups: map[string]Cgroup{
			"init.scope":                  {High: cgroup.Max},
			"kubepods":                    {Min: 1048576, High: cgroup.Max},
			"kubepods/pod1":               {Min: 1048576, High: cgroup.Max},
			"kubepods/pod2":               {Low: cgroup.Max, High: cgroup.Max},
			"kubepods/pod1/app":           {Min: 4096, High: cgroup.Max, Mems: "0", Pages: pages(map[int]uint64{0: 4096, 1: 0}, map[int]uint64{0: 0, 1: 8192}, map[int]uint64{0: 0, 1: 0})},
			"kubepods/pod1/app/container": {Low: 7, High: cgroup.Max},
		},
		PageSize: uint64(os.Getpagesize()),
		Pools:    []sysfs.Pool{{PageSize: 2 << 20, Count: 4, Free: 1}},
		Kubelet:  &Kubelet{File: places.KubeletConfig, MemoryManagerPolicy: "Static", MemoryThrottlingFactor: &factor, FeatureGates: map[string]bool{"MemoryQoS": true}},
		Kernel:   &Kernel{Release: "6.12.41", Pressure: true, RecursiveProtection: true, LocalEvents: true, NUMABalancing: true},
		SetAside: []string{filepath.Join(root, "state/memory_manager_state.corrupt-2026")},
		Skipped:  []string{"container default/web/gone: no cgroup kubepods/pod9/gone; it may just have ended"},
	}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Error(difference)
	}
}

func TestTheKubeletsFile(t *testing.T) {
	root := t.TempDir()
	cgroups.Fill(t, root, map[string]string{"bad.yaml": "featureGates: [MemoryQoS]\n", "empty.yaml": ""})
	tree, err := cgroupfs.Open(root, cgroupfs.Plain())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	for name, test := range map[string]struct {
		file, err, skipped string
		wanted             bool
	}{
		"asked for, and there is none": {file: "none.yaml", wanted: true, err: "read the kubelet's configuration: open"},
		"none at the usual place":      {file: "none.yaml", skipped: "name its file with --kubelet-config"},
		"wrong":                        {file: "bad.yaml", err: "bad.yaml"},
		"empty":                        {file: "empty.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := Places{Tree: tree, Plain: true, KubeletConfig: filepath.Join(root, test.file), KubeletWanted: test.wanted}.Gather(status.Document{})
			if test.err == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
			if got := strings.Join(n.Skipped, "\n"); !strings.Contains(got, test.skipped) || test.skipped == "" && got != "" {
				t.Errorf("skipped %q, want %q", got, test.skipped)
			}
		})
	}
}
