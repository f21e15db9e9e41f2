package simulator

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

// read returns the pods of a manifest that must be good.
func read(t testing.TB, manifest string) []*corev1.Pod {
	t.Helper()
	read, err := ReadFiles([]string{"-"}, strings.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	return read.Pods
}

func podOf(t testing.TB, spec string) *corev1.Pod {
	t.Helper()
	return read(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: 1234-abcd}\nspec: "+spec+"\n")[0]
}

// The expected values are those of the kubelet's own code (pkg/kubelet/qos, v1.36.3) for 8 GiB of memory.
func TestOOMScoreAdj(t *testing.T) {
	for name, test := range map[string]struct {
		spec      string
		container int // among init containers, then apps
		want      int64
	}{
		"Guaranteed":              {"{containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}]}", 0, -997},
		"BestEffort":              {"{containers: [{name: a}]}", 0, 1000},
		"Burstable, half":         {"{containers: [{name: a, resources: {requests: {memory: 4Gi}}}]}", 0, 500},
		"Burstable, one eighth":   {"{containers: [{name: a, resources: {requests: {memory: 1Gi}}}]}", 0, 875},
		"Burstable, no request":   {"{containers: [{name: a}, {name: b, resources: {requests: {memory: 1Gi}}}]}", 0, 999},
		"Burstable, all there is": {"{containers: [{name: a, resources: {requests: {memory: 8Gi}}}]}", 0, 3},
		"node-critical":           {"{priorityClassName: system-node-critical, containers: [{name: a}]}", 0, -997},
		"sidecar below its app": {"{initContainers: [{name: s, restartPolicy: Always, resources: {requests: {memory: 512Mi}}}], " +
			"containers: [{name: a, resources: {requests: {memory: 1Gi}}}, {name: b, resources: {requests: {memory: 4Gi}}}]}", 0, 875},
		"sidecar above its app": {"{initContainers: [{name: s, restartPolicy: Always, resources: {requests: {memory: 4Gi}}}], " +
			"containers: [{name: a, resources: {requests: {memory: 1Gi}}}]}", 0, 500},
		"pod-level request shared": {"{resources: {requests: {memory: 4Gi}}, containers: [{name: a, resources: {requests: {memory: 1Gi}}}, {name: b}]}", 1, 812 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf(t, test.spec)
			all := append(append([]corev1.Container{}, pod.Spec.InitContainers...), pod.Spec.Containers...)
			k := kubelet{machine: machine.Machine{MemTotal: 8 * gi}}
			if got := k.oomScoreAdj(pod, &all[test.container]); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestCgroupPaths(t *testing.T) {
	for name, test := range map[string]struct {
		resources        string
		systemd          bool
		parent, leafPath string
	}{
		"Guaranteed, cgroupfs": {"{limits: {cpu: 1, memory: 1Gi}}", false, "/kubepods/pod1234-abcd", "/kubepods/pod1234-abcd/id"},
		"Burstable, cgroupfs":  {"{limits: {memory: 1Gi}}", false, "/kubepods/burstable/pod1234-abcd", "/kubepods/burstable/pod1234-abcd/id"},
		"BestEffort, cgroupfs": {"{}", false, "/kubepods/besteffort/pod1234-abcd", "/kubepods/besteffort/pod1234-abcd/id"},
		"Guaranteed, systemd": {"{limits: {cpu: 1, memory: 1Gi}}", true, "/kubepods.slice/kubepods-pod1234_abcd.slice",
			"kubepods-pod1234_abcd.slice:cri-containerd:id"},
		"Burstable, systemd": {"{limits: {memory: 1Gi}}", true, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd.slice",
			"kubepods-burstable-pod1234_abcd.slice:cri-containerd:id"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf(t, "{containers: [{name: a, resources: "+test.resources+"}]}")
			k := kubelet{systemd: test.systemd}
			if got := k.cgroupParent(pod); got != test.parent {
				t.Errorf("parent %s, want %s", got, test.parent)
			}
			if got := k.cgroupsPath(pod, "id"); got != test.leafPath {
				t.Errorf("cgroupsPath %s, want %s", got, test.leafPath)
			}
		})
	}
}

func TestHugepageLimitsNameEveryPageSizeOfTheMachine(t *testing.T) {
	k := kubelet{machine: machine.Machine{Nodes: []machine.Node{
		{Hugepages: []machine.Pool{{PageSize: 2 * mi}, {PageSize: gi}}}, {ID: 1, Hugepages: []machine.Pool{{PageSize: 2 * mi}}},
	}}}
	pod := podOf(t, "{containers: [{name: a, resources: {limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}}]}")
	got := map[string]uint64{}
	for _, limit := range k.hugepageLimits(pod, &pod.Spec.Containers[0]) {
		got[limit.PageSize] = limit.Limit
	}
	if diff := cmp.Diff(map[string]uint64{"2MB": 4 * mi, "1GB": 0}, got); diff != "" {
		t.Error(diff)
	}
}

func TestAPodIsLimitedWhereAllItsContainersAre(t *testing.T) {
	for name, test := range map[string]struct {
		spec  string
		limit int64 // 0: none
	}{
		"apps add up":            {"{containers: [{name: a, resources: {limits: {memory: 1Gi}}}, {name: b, resources: {limits: {memory: 2Gi}}}]}", 3 * gi},
		"overhead":               {"{overhead: {memory: 1Gi}, containers: [{name: a, resources: {limits: {memory: 1Gi}}}]}", 2 * gi},
		"a large init container": {"{initContainers: [{name: i, resources: {limits: {memory: 5Gi}}}], containers: [{name: a, resources: {limits: {memory: 1Gi}}}]}", 5 * gi},
		"init after a sidecar": {"{initContainers: [{name: s, restartPolicy: Always, resources: {limits: {memory: 1Gi}}}, {name: i, resources: {limits: {memory: 5Gi}}}], " +
			"containers: [{name: a, resources: {limits: {memory: 1Gi}}}]}", 6 * gi},
		"init without a limit": {"{initContainers: [{name: i}], containers: [{name: a, resources: {limits: {memory: 1Gi}}}]}", 0},
		"init without a limit after a sidecar": {"{initContainers: [{name: s, restartPolicy: Always, resources: {limits: {memory: 1Gi}}}, {name: i}], " +
			"containers: [{name: a, resources: {limits: {memory: 1Gi}}}]}", 2 * gi},
		"one without a limit": {"{containers: [{name: a, resources: {limits: {memory: 1Gi}}}, {name: b}]}", 0},
		"pod level":           {"{resources: {requests: {memory: 3Gi}, limits: {memory: 4Gi}}, containers: [{name: a, resources: {requests: {memory: 1Gi}}}]}", 4 * gi},
	} {
		t.Run(name, func(t *testing.T) {
			if got, limited := memoryLimit(podOf(t, test.spec)); got != test.limit || limited != (test.limit > 0) {
				t.Errorf("got %d, %v, want %d", got, limited, test.limit)
			}
		})
	}
}

// As in the kubelet, a container without a limit has its pod's, and its CPU shares are those of the limit where it asks for none.
func TestContainersHaveTheLimitsOfTheirPod(t *testing.T) {
	pod := podOf(t, "{resources: {limits: {cpu: 2, memory: 4Gi}}, containers: [{name: a}, {name: b, resources: {requests: {cpu: 500m}, limits: {memory: 1Gi}}}]}")
	type values struct {
		limit, quota int64
		shares       uint64
	}
	var got []values
	for i := range pod.Spec.Containers {
		resources := (kubelet{}).container(pod, &pod.Spec.Containers[i]).Linux.Resources
		got = append(got, values{resources.Memory.Limit.GetValue(), resources.Cpu.Quota.GetValue(), resources.Cpu.Shares.GetValue()})
	}
	if want := []values{{4 * gi, 200000, 2048}, {gi, 200000, 512}}; !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestControllersBecomeTheirPods(t *testing.T) {
	const template = "template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a}]}}"
	for name, test := range map[string]struct {
		manifest string
		want     []string
	}{
		"Deployment":       {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w, namespace: ns}\nspec: {replicas: 2, selector: {}, " + template + "}\n", []string{"ns/w-0", "ns/w-1"}},
		"without a number": {"apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: w}\nspec: {selector: {}, " + template + "}\n", []string{"default/w-0"}},
		"StatefulSet":      {"apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: w}\nspec: {replicas: 1, selector: {}, " + template + "}\n", []string{"default/w-0"}},
		"its ordinals":     {"apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: w}\nspec: {replicas: 2, ordinals: {start: 3}, selector: {}, " + template + "}\n", []string{"default/w-3", "default/w-4"}},
		"DaemonSet":        {"apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: w}\nspec: {selector: {}, " + template + "}\n", []string{"default/w-0"}},
		"Job":              {"apiVersion: batch/v1\nkind: Job\nmetadata: {name: w}\nspec: {parallelism: 3, completions: 2, " + template + "}\n", []string{"default/w-0", "default/w-1"}},
		"CronJob":          {"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: w}\nspec: {schedule: '@daily', jobTemplate: {spec: {parallelism: 2, " + template + "}}}\n", []string{"default/w-0", "default/w-1"}},
		"List":             {"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: a}]}}]\n", []string{"default/x"}},
		"more than one":    {"---\n# nothing\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a}]}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: z}\nspec: {containers: [{name: a}]}\n", []string{"default/x", "default/z"}},
		"JSON":             {`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{"name":"a"}]}}`, []string{"default/x"}},
		"a generated name": {"apiVersion: v1\nkind: Pod\nmetadata: {generateName: x-}\nspec: {containers: [{name: a}]}\n", []string{"default/x-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			uids := map[string]bool{}
			for _, pod := range read(t, test.manifest) {
				got = append(got, pod.Namespace+"/"+pod.Name)
				uids[string(pod.UID)] = true
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if len(uids) != len(got) {
				t.Errorf("%d pods have %d UIDs", len(got), len(uids))
			}
		})
	}
}

// Whatever a manifest holds, reading it ends with pods that can be simulated or with an error.
func FuzzRead(f *testing.F) {
	f.Add("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a, resources: {limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}}]}\n")
	f.Add("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {overhead: {memory: 1}, resources: {limits: {memory: 9e18}}, initContainers: [{name: i, restartPolicy: Always}], containers: [{name: a}]}\n")
	f.Add("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: w}\nspec: {replicas: 2, selector: {}, template: {spec: {containers: [{name: a}]}}}\n")
	f.Add("apiVersion: v1\nkind: List\nitems: [1, {}]\n---\n[]\n")
	k := kubelet{machine: machine.Machine{MemTotal: 8 * gi, Nodes: []machine.Node{{Hugepages: []machine.Pool{{PageSize: 2 * mi}}}}}}
	f.Fuzz(func(t *testing.T, manifest string) {
		read, err := ReadFiles([]string{"-"}, strings.NewReader(manifest))
		if err != nil {
			return
		}
		pods := read.Pods
		if len(pods) == 0 {
			t.Fatal("neither pods nor an error")
		}
		for _, pod := range pods[:min(len(pods), 10)] {
			sandbox := k.sandbox(pod)
			if limit := sandbox.Linux.PodResources.Memory.Limit; limit != nil && limit.Value < 0 {
				t.Errorf("a pod's limit is %d", limit.Value)
			}
			for i := range pod.Spec.Containers {
				if adj := k.container(pod, &pod.Spec.Containers[i]).Linux.OomScoreAdj.Value; adj < -997 || adj > 1000 {
					t.Errorf("oom_score_adj %d", adj)
				}
			}
		}
	})
}
