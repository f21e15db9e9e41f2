package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// beside writes a KubeletConfiguration and a file of ours that names it, and returns the path of ours.
func beside(t *testing.T, kubeletText, ours string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range map[string]string{"kubelet.yaml": kubeletText, "c.yaml": "kubeletConfig: kubelet.yaml\n" + ours} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(folder, "c.yaml")
}

// TestKubeletConfigurationIsTakenOver writes the file with the kubelet's own published type.
func TestKubeletConfigurationIsTakenOver(t *testing.T) {
	factor := 0.8
	text, err := yaml.Marshal(kubelet.KubeletConfiguration{
		TypeMeta:              metav1.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration"},
		CgroupDriver:          "systemd",
		MemoryManagerPolicy:   "Static",
		TopologyManagerPolicy: "restricted",
		TopologyManagerScope:  "pod",
		TopologyManagerPolicyOptions: map[string]string{"prefer-closest-numa-nodes": "true", "an-option-of-tomorrow": "true",
			"numa-allocation-strategy": "most-allocated", "numa-score-weights": "cpu=3,memory=1"},
		ReservedMemory: []kubelet.MemoryReservation{
			{NumaNode: 0, Limits: corev1.ResourceList{"memory": resource.MustParse("3Gi")}},
			{NumaNode: 1, Limits: corev1.ResourceList{"memory": resource.MustParse("2148Mi"), "hugepages-2Mi": resource.MustParse("4194304")}},
		},
		KubeReserved:            map[string]string{"cpu": "4", "memory": "4Gi"},
		SystemReserved:          map[string]string{"cpu": "1", "memory": "1Gi", "a-resource-of-tomorrow": "1"},
		EvictionHard:            map[string]string{"memory.available": "5%", "nodefs.available": "10%"},
		MemoryThrottlingFactor:  &factor,
		MemoryReservationPolicy: kubelet.NoneMemoryReservationPolicy,
		FeatureGates:            map[string]bool{"MemoryQoS": true, "PodLevelResourceManagers": true},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := beside(t, string(text), "topologyManagerScope: container\nkubeReserved: {memory: 2Gi}\n")
	got, err := Files(os.ReadFile).Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.KubeletConfig = "kubelet.yaml"
	want.TopologyManagerPolicy = topologymanager.Restricted
	want.TopologyManagerPolicyOptions = map[string]string{"prefer-closest-numa-nodes": "true",
		"numa-allocation-strategy": "most-allocated", "numa-score-weights": "cpu=3,memory=1"}
	want.ReservedMemory = ReservedMemory{{0, map[string]ReservedBytes{"memory": 3 << 30}}, {1, map[string]ReservedBytes{"memory": 2148 << 20, "hugepages-2Mi": 4 << 20}}}
	want.KubeReserved = map[string]string{"memory": "2Gi"}
	want.SystemReserved = map[string]string{"cpu": "1", "memory": "1Gi"}
	want.EvictionHard = map[string]string{"memory.available": "5%"}
	want.MemoryThrottlingFactor = &factor
	want.MemoryReservationPolicy = memoryqos.None
	want.PodLevelResourceManagers = true
	if diff := cmp.Diff(want, got, sameConfig); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	folder := filepath.Dir(path)
	if diff := cmp.Diff([]string{
		folder + "/kubelet.yaml: the kubelet's own Memory Manager is Static, so that two would pin containers: set memoryManagerPolicy None there",
		folder + "/kubelet.yaml: the kubelet's own MemoryQoS is on and writes the same cgroup files: turn the feature gate off there",
	}, got.Origin.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

const kubeletHead = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func TestNullInOurFileTurnsTheKubeletsFactorOff(t *testing.T) {
	c, err := Files(os.ReadFile).Load(beside(t, kubeletHead+"memoryThrottlingFactor: 0.5", "memoryThrottlingFactor: null"))
	if err != nil || c.MemoryThrottlingFactor != nil {
		t.Errorf("factor = %v, %v, want none", c.MemoryThrottlingFactor, err)
	}
}

// TestAFactorThatTheKubeletDoesNotSetStaysOurs: from Kubernetes 1.37 unset means no memory.high there, and the feature gate MemoryQoS
// is on where the file does not name it. Neither changes what our file says.
func TestAFactorThatTheKubeletDoesNotSetStaysOurs(t *testing.T) {
	const unset = "/kubelet.yaml: memoryThrottlingFactor is not set, with which a kubelet from 1.37 sets no memory.high; ours is 0.9: set memoryThrottlingFactor in our file, null for no memory.high"
	for name, test := range map[string]struct {
		kubelet, ours string
		want          float64 // 0 for none
		warning       string
	}{
		"unset in both":             {"", "", 0.9, unset},
		"unset, the gate is on":     {"featureGates: {OtherGate: true}", "", 0.9, unset},
		"null there":                {"memoryThrottlingFactor: null", "", 0.9, unset},
		"set there":                 {"memoryThrottlingFactor: 0.8", "", 0.8, ""},
		"set in ours":               {"", "memoryThrottlingFactor: 0.7", 0.7, ""},
		"null in ours":              {"", "memoryThrottlingFactor: null", 0, ""},
		"set there and in ours":     {"memoryThrottlingFactor: 0.8", "memoryThrottlingFactor: 0.7", 0.7, ""},
		"set in ours, the gate off": {"featureGates: {MemoryQoS: false}", "memoryThrottlingFactor: 0.7", 0.7, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := beside(t, kubeletHead+test.kubelet, test.ours)
			c, err := Files(os.ReadFile).Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.MemoryThrottlingFactor; (got != nil) != (test.want > 0) || got != nil && *got != test.want {
				t.Errorf("factor %v, want %g", got, test.want)
			}
			if c.MemoryReservationPolicy != memoryqos.TieredReservation {
				t.Errorf("memoryReservationPolicy %s", c.MemoryReservationPolicy)
			}
			var want []string
			if test.warning != "" {
				want = []string{filepath.Dir(path) + test.warning}
			}
			if diff := cmp.Diff(want, c.Origin.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEvictionOfTheKubelet(t *testing.T) {
	for name, tc := range map[string]struct {
		text       string
		want, soft map[string]string
	}{
		"not set":              {"", map[string]string{"memory.available": "100Mi"}, nil},
		"without memory":       {"evictionHard: {nodefs.available: 10%}", nil, nil},
		"merged with defaults": {"mergeDefaultEvictionSettings: true\nevictionHard: {nodefs.available: 10%}", map[string]string{"memory.available": "100Mi"}, nil},
		"soft": {"evictionSoft: {memory.available: 1Gi, nodefs.available: 10%}\nevictionSoftGracePeriod: {memory.available: 1m}",
			map[string]string{"memory.available": "100Mi"}, map[string]string{"memory.available": "1Gi"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Files(os.ReadFile).Load(beside(t, kubeletHead+tc.text, ""))
			if err != nil {
				t.Fatal(err)
			}
			got := []map[string]string{c.EvictionHard, c.Origin.EvictionSoft}
			if diff := cmp.Diff([]map[string]string{tc.want, tc.soft}, got, sameConfig); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSwapOfTheKubelet(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "memorySwap: {}": false, "memorySwap: {swapBehavior: LimitedSwap}": false, "memorySwap: {swapBehavior: NoSwap}": false,
		"memorySwap: {swapBehavior: WorkloadControlledSwap}": true,
	} {
		c, err := Files(os.ReadFile).Load(beside(t, kubeletHead+text, "reservedMemory: 0:memory=1Gi"))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := c.Resolve(fixture(t, "task-page")); err != nil || r.WorkloadSwap != want {
			t.Errorf("%q: %v, %v, want %v", text, r.WorkloadSwap, err, want)
		}
	}
}

func TestToleranceOfTheKubelet(t *testing.T) {
	static := func(value string) string {
		return kubeletHead + "memoryManagerPolicy: Static\nmemoryManagerPolicyOptions: {memory-drift-tolerance: " + value + "}"
	}
	for name, tc := range map[string]struct {
		kubelet, ours string
		want          Tolerance
	}{
		"not set":      {kubeletHead + "memoryManagerPolicy: Static\nmemoryManagerPolicyOptions: {}", "", 64 << 20},
		"auto":         {static("auto"), "", AutoTolerance},
		"off":          {static(`"off"`), "", 0},
		"a quantity":   {static("128Mi"), "", 128 << 20},
		"ours on top":  {static("auto"), "stateTolerance: 1Mi", 1 << 20},
		"ours is auto": {static("128Mi"), "stateTolerance: auto", AutoTolerance},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Files(os.ReadFile).Load(beside(t, tc.kubelet, tc.ours))
			if err != nil || c.StateTolerance != tc.want {
				t.Errorf("%d, %v, want %d", c.StateTolerance, err, tc.want)
			}
		})
	}
}

func TestPolicyNoneOfTheKubeletSwitchesNothingOff(t *testing.T) {
	for ours, want := range map[string]MemoryManagerPolicy{
		"": MemoryManagerStatic, "profile: NUMA": MemoryManagerStatic, "profile: Observe": MemoryManagerStatic, "memoryManagerPolicy: Static": MemoryManagerStatic,
		"profile: QoS": MemoryManagerNone, "memoryManagerPolicy: None": MemoryManagerNone,
	} {
		c, err := Files(os.ReadFile).Load(beside(t, kubeletHead+"memoryManagerPolicy: None\nmemoryThrottlingFactor: 0.9", ours))
		if err != nil || c.MemoryManagerPolicy != want || len(c.Origin.Warnings) != 0 {
			t.Errorf("%q: %v, policy %s, want %s, warnings %q", ours, err, c.MemoryManagerPolicy, want, c.Origin.Warnings)
		}
	}
}

func TestCPUsThatTheKubeletMayAssignAnywhere(t *testing.T) {
	const static = "cpuManagerPolicy: static\n"
	for name, test := range map[string]struct{ kubelet, ours, want string }{
		"restricted":          {static, "topologyManagerPolicy: restricted", "kubelet.yaml: cpuManagerPolicy is static and topologyManagerPolicy none, ours is restricted: a container whose exclusive CPUs are on more NUMA nodes than ours admits has its memory on the nodes of its CPUs (onConflict CPUs); set topologyManagerPolicy restricted there"},
		"restricted, Reject":  {static + "topologyManagerPolicy: best-effort", "topologyManagerPolicy: restricted\nonConflict: Kubelet", "topologyManagerPolicy best-effort, ours is restricted: a container whose exclusive CPUs are on more NUMA nodes than ours admits is rejected"},
		"single-numa-node":    {static, "topologyManagerPolicy: single-numa-node", "admits is rejected; set topologyManagerPolicy single-numa-node there"},
		"the same":            {static + "topologyManagerPolicy: restricted", "topologyManagerPolicy: restricted", ""},
		"taken over":          {static + "topologyManagerPolicy: restricted", "", ""},
		"ours is best-effort": {static, "topologyManagerPolicy: best-effort", ""},
		"no exclusive CPUs":   {"cpuManagerPolicy: none", "topologyManagerPolicy: restricted", ""},
		"nothing is placed":   {static, "memoryManagerPolicy: None", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Files(os.ReadFile).Load(beside(t, kubeletHead+test.kubelet, test.ours+"\nmemoryThrottlingFactor: 0.9"))
			if err != nil {
				t.Fatal(err)
			}
			r, err := c.Resolve(fixture(t, "task-page"))
			if err != nil || test.want == "" && len(r.Warnings) > 0 || test.want != "" && (len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], test.want)) {
				t.Errorf("%v, warnings %q, want %q", err, r.Warnings, test.want)
			}
		})
	}
}

// TestErrorNamesTheFileThatIsWrong: %s stands for the folder of both files.
func TestErrorNamesTheFileThatIsWrong(t *testing.T) {
	tests := map[string]struct{ kubelet, ours, want string }{
		"another kind":         {"kind: Pod\napiVersion: v1", "", `%s/c.yaml:1: kubeletConfig: %s/kubelet.yaml: want a KubeletConfiguration of kubelet.config.k8s.io, got kind "Pod" of "v1"`},
		"not YAML":             {"[", "", "%s/c.yaml:1: kubeletConfig: %s/kubelet.yaml: error converting YAML to JSON: yaml: line 1: did not find expected node content"},
		"kubelet's value":      {kubeletHead + "topologyManagerPolicy: x", "", `%s/kubelet.yaml: topologyManagerPolicy: want none, best-effort, restricted or single-numa-node, got "x"`},
		"kubelet's strategy":   {kubeletHead + "topologyManagerPolicyOptions: {numa-allocation-strategy: x}", "", `%s/kubelet.yaml: topologyManagerPolicyOptions.numa-allocation-strategy: want none, most-allocated, least-allocated or least-used, got "x"`},
		"kubelet's quantity":   {kubeletHead + "kubeReserved: {memory: -1}", "", `%s/kubelet.yaml: kubeReserved.memory: "-1" is negative`},
		"kubelet's CPUs":       {kubeletHead + "kubeReserved: {cpu: foo}", "", `%s/kubelet.yaml: kubeReserved.cpu: "foo" is not a quantity such as 64Mi, 2G or 4096`},
		"kubelet's reserved":   {kubeletHead + "reservedMemory: [{numaNode: 0, limits: {memory: -1}}]", "", `%s/c.yaml:1: kubeletConfig: %s/kubelet.yaml: reservedMemory[0].limits.memory: "-1" is negative`},
		"unknown option":       {kubeletHead + "memoryManagerPolicy: Static\nmemoryManagerPolicyOptions: {memory-drift: auto}", "", `%s/c.yaml:1: kubeletConfig: %s/kubelet.yaml: memoryManagerPolicyOptions: unknown option "memory-drift", did you mean "memory-drift-tolerance"?`},
		"no tolerance":         {kubeletHead + "memoryManagerPolicy: Static\nmemoryManagerPolicyOptions: {memory-drift-tolerance: some}", "", `%s/c.yaml:1: kubeletConfig: %s/kubelet.yaml: memoryManagerPolicyOptions.memory-drift-tolerance: want auto, off or a quantity such as 128Mi, got "some"`},
		"negative tolerance":   {kubeletHead + "memoryManagerPolicy: Static\nmemoryManagerPolicyOptions: {memory-drift-tolerance: -1Mi}", "", `%s/c.yaml:1: kubeletConfig: %s/kubelet.yaml: memoryManagerPolicyOptions.memory-drift-tolerance: "-1Mi" is negative`},
		"option of None":       {kubeletHead + "memoryManagerPolicy: None\nmemoryManagerPolicyOptions: {memory-drift-tolerance: auto}", "memoryManagerPolicy: Static", `%s/c.yaml:1: kubeletConfig: %s/kubelet.yaml: memoryManagerPolicyOptions.memory-drift-tolerance: only memoryManagerPolicy Static has options, got "None"`},
		"ours above kubelet's": {kubeletHead + "kubeReserved: {memory: 1Gi}", "kubeReserved: {memory: -1}", `%s/c.yaml:2: kubeReserved.memory: "-1" is negative`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := beside(t, tc.kubelet, tc.ours)
			want := strings.ReplaceAll(tc.want, "%s", filepath.Dir(path))
			if _, err := Files(os.ReadFile).Load(path); err == nil || err.Error() != want {
				t.Errorf("error = %v\nwant    %s", err, want)
			}
		})
	}
}
