package nriplugin

import (
	"fmt"
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

func pointer[T any](value T) *T { return &value }

func TestPodOf(t *testing.T) {
	for name, test := range map[string]struct {
		from *api.PodSandbox
		want ledger.Pod
	}{
		"nothing": {nil, ledger.Pod{}},
		"all": {
			&api.PodSandbox{
				Id: "sandbox", Uid: "uid", Namespace: "ns", Name: "name",
				Annotations: map[string]string{"a": "1"},
				Linux: &api.LinuxPodSandbox{
					CgroupParent: "/kubepods/poduid",
					PodOverhead:  &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(64)}},
					PodResources: &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(128)}},
				},
			},
			ledger.Pod{
				ID: "sandbox", UID: "uid", Namespace: "ns", Name: "name", CgroupParent: "/kubepods/poduid",
				Annotations: map[string]string{"a": "1"},
				Overhead:    64, MemoryLimit: 128,
			},
		},
		"limits that mean none": {
			&api.PodSandbox{Linux: &api.LinuxPodSandbox{PodResources: &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(-1)}}}},
			ledger.Pod{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, PodOf(test.from)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// scored is a container with the oom_score_adj -500 and the annotation about the kubelet's.
func scored(id, text string) *api.Container {
	return &api.Container{Id: id, Annotations: map[string]string{"kubelet-oom-score-adj.memory-manager.noderesource.dev": text},
		Linux: &api.LinuxContainer{OomScoreAdj: &api.OptionalInt{Value: -500}}}
}

func TestContainerOf(t *testing.T) {
	for name, test := range map[string]struct {
		from *api.Container
		want ledger.Container
	}{
		"nothing": {nil, ledger.Container{}},
		"all": {
			&api.Container{
				Id: "id", PodSandboxId: "sandbox", Name: "app", State: api.ContainerState_CONTAINER_RUNNING,
				Annotations: map[string]string{"a": "1"},
				Linux: &api.LinuxContainer{
					CgroupsPath: "/kubepods/poduid/id",
					OomScoreAdj: &api.OptionalInt{Value: -997},
					Resources: &api.LinuxResources{
						Memory:         &api.LinuxMemory{Limit: api.Int64(1024)},
						Cpu:            &api.LinuxCPU{Cpus: "0-3", Mems: "0"},
						HugepageLimits: []*api.HugepageLimit{{PageSize: "2MB", Limit: 4096}},
						Unified:        map[string]string{"memory.high": "max", "memory.oom.group": "1", "pids.max": "8"},
					},
				},
			},
			ledger.Container{
				ID: "id", PodID: "sandbox", Name: "app", State: ledger.Running, CgroupsPath: "/kubepods/poduid/id",
				Resources: ledger.Resources{
					MemoryLimit: pointer(int64(1024)), OOMScoreAdj: pointer(int64(-997)), CPUs: "0-3", Mems: "0",
					Hugepages: []ledger.HugepageLimit{{PageSize: "2MB", Limit: 4096}},
					Unified:   map[string]string{"memory.high": "max"}, OOMGroup: "1",
				},
			},
		},
		"devices": {
			&api.Container{
				CDIDevices: []*api.CDIDevice{{Name: "vendor.com/gpu=0"}},
				Linux: &api.LinuxContainer{
					Devices: []*api.LinuxDevice{
						{Path: "/dev/dri/card0", Type: "c", Major: 226}, {Path: "/dev/nvme0n1", Type: "b", Major: 259, Minor: 1}, {Path: "/dev/pipe", Type: "p"},
					},
					Resources: &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Access: "rwm"}, {Allow: true, Type: "c", Major: api.Int64(int64(226))}}},
				},
			},
			ledger.Container{
				CDIDevices:  []string{"vendor.com/gpu=0"},
				DeviceNodes: []ledger.DeviceNode{{Path: "/dev/dri/card0", Major: 226}, {Path: "/dev/nvme0n1", Block: true, Major: 259, Minor: 1}},
			},
		},
		"privileged": {
			&api.Container{Linux: &api.LinuxContainer{
				Devices:   []*api.LinuxDevice{{Path: "/dev/dri/card0", Type: "c", Major: 226}},
				Resources: &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
			}},
			ledger.Container{},
		},
		"the SR-IOV network device plugin's variables": {
			&api.Container{Env: []string{"PATH=/bin", "PCIDEVICE_INTEL_COM_SRIOV=0000:03:02.1,0000:03:04.3"}},
			ledger.Container{PCIDevices: true},
		},
		"an oom_score_adj of this plugin's": {scored("id", "id 968 PriorityClass db"), ledger.Container{
			ID: "id", Resources: ledger.Resources{OOMScoreAdj: pointer(int64(968))},
			OOMScore: &ledger.OOMScore{Value: -500, From: "PriorityClass db", Kubelet: pointer(int64(968))},
		}},
		"in place of none":                        {scored("id", "id - annotation"), ledger.Container{ID: "id", OOMScore: &ledger.OOMScore{Value: -500, From: "annotation"}}},
		"a tenant's, by an annotation of its pod": {scored("id", "other 3 annotation"), ledger.Container{ID: "id", Resources: ledger.Resources{OOMScoreAdj: pointer(int64(-500))}}},
		"a text": {scored("id", "id"), ledger.Container{ID: "id", Resources: ledger.Resources{OOMScoreAdj: pointer(int64(-500))}}},
		"the NUMA nodes as somebody else tells them": {&api.Container{Env: []string{"A=b", "ASSIGNED_MEMSET="}}, ledger.Container{HasMemset: true}},
		"a variable with a longer name":              {&api.Container{Env: []string{"ASSIGNED_MEMSETS=0"}}, ledger.Container{}},
		"other variables":                            {&api.Container{Env: []string{"PCIDEVICE=0000:03:02.1", "A=PCIDEVICE_B", "pcidevice_a="}}, ledger.Container{}},
		"a variable beyond those that are read": {
			&api.Container{Env: append(slices.Repeat([]string{"A=b"}, maxVariables), "PCIDEVICE_A=0000:03:02.1")}, ledger.Container{},
		},
		"no limit named": {
			&api.Container{State: api.ContainerState_CONTAINER_PAUSED, Linux: &api.LinuxContainer{Resources: &api.LinuxResources{}}},
			ledger.Container{State: ledger.Paused},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, ContainerOf(test.from)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTheEnvironmentIsBounded: a tenant writes as many variables as the API server takes, 1 MB or so.
func TestTheEnvironmentIsBounded(t *testing.T) {
	named := func(number int) []string {
		env := make([]string, number)
		for i := range env {
			env[i] = fmt.Sprintf("NUMA_MEMORY_CLAIM_A_%d=", i)
		}
		return env
	}
	other := slices.Repeat([]string{"A=b"}, 40_000)
	ours := []string{"NUMA_MEMORY_CLAIM_B_1="}
	for name, test := range map[string]struct {
		env  []string
		want int
	}{
		"as many as a container may name": {named(claims.MaxRefs), claims.MaxRefs},
		"one more":                        {named(claims.MaxRefs + 1), claims.MaxRefs + 1},
		"40,000":                          {named(40_000), claims.MaxRefs + 1},
		"one before many others":          {slices.Concat(ours, other), 1},
		"one behind many others":          {slices.Concat(other, ours), 1},
		"one among many others":           {slices.Concat(other, ours, other), 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := ContainerOf(&api.Container{Env: test.env})
			if len(c.Claims) != test.want {
				t.Errorf("%d claims are read, want %d", len(c.Claims), test.want)
			}
		})
	}
	cost := func(env []string) float64 {
		container := &api.Container{Env: env}
		return testing.AllocsPerRun(10, func() { ContainerOf(container) })
	}
	few, most := cost(named(3*maxVariables)), cost(named(40_000))
	if most > 2*few {
		t.Errorf("40,000 variables take %v allocations, %d take %v", most, 3*maxVariables, few)
	}
}

func TestAdjustmentOf(t *testing.T) {
	if got := adjustmentOf("id", ledger.Adjustment{}); got != nil {
		t.Errorf("an empty adjustment became %v", got)
	}
	policy := adjustmentOf("id", ledger.Adjustment{MemoryPolicy: ledger.MemoryPolicy{Mode: ledger.PreferredMany, Nodes: nodeset.Of(1, 3)}}).GetLinux().GetMemoryPolicy()
	if policy.GetMode() != api.MpolMode_MPOL_PREFERRED_MANY || policy.GetNodes() != "1,3" {
		t.Errorf("the memory policy is %v", policy)
	}
	got := adjustmentOf("id", ledger.Adjustment{CpusetMems: "0-1", Unified: map[string]string{"memory.high": "4096"}})
	if got.GetLinux().GetMemoryPolicy() != nil {
		t.Error("a container has a memory policy")
	}
	if mems := got.GetLinux().GetResources().GetCpu().GetMems(); mems != "0-1" {
		t.Errorf("cpuset.mems is %q, want it in its field", mems)
	}
	for text, kubelet := range map[string]*int64{"id 968 annotation": pointer(int64(968)), "id - annotation": nil} {
		score := adjustmentOf("id", ledger.Adjustment{OOMScore: &ledger.OOMScore{Value: -500, From: "annotation", Kubelet: kubelet}})
		if score.GetLinux().GetOomScoreAdj().GetValue() != -500 || score.GetAnnotations()[oomScoreAnnotation] != text {
			t.Errorf("got %v, want -500 and the annotation %q", score, text)
		}
	}
	env := adjustmentOf("id", ledger.Adjustment{Memset: "0-1"}).GetEnv()
	if len(env) != 1 || env[0].GetKey() != "ASSIGNED_MEMSET" || env[0].GetValue() != "0-1" || got.GetEnv() != nil {
		t.Errorf("the variables are %v and %v, want ASSIGNED_MEMSET=0-1 and none", env, got.GetEnv())
	}
	if diff := cmp.Diff(map[string]string{"memory.high": "4096"}, got.GetLinux().GetResources().GetUnified()); diff != "" {
		t.Error(diff)
	}
}

func TestUpdatesNeverFailTheirRequest(t *testing.T) {
	updates := updatesOf([]ledger.Update{
		{ContainerID: "a", Adjustment: ledger.Adjustment{CpusetMems: "0"}},
		{ContainerID: "b"},
		{Adjustment: ledger.Adjustment{CpusetMems: "0"}},
	})
	if len(updates) != 1 || updates[0].ContainerId != "a" || !updates[0].IgnoreFailure {
		t.Errorf("got %v, want one update of a that may fail", updates)
	}
}
