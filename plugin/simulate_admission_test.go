package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// smallMachine has two NUMA nodes with 16 CPUs and 64Gi each, 1Gi of it in pages of 2Mi on node 0.
const smallMachine = "nodes: [{id: 0, memory: 64Gi, cpus: 0-15, hugepages: {2Mi: 512}}, {id: 1, memory: 64Gi, cpus: 16-31}]\n"

// podsOf is a manifest of pods by name, each with a spec.
func podsOf(specs ...string) string {
	var b strings.Builder
	for i, spec := range specs {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: pod-%d}\nspec: %s\n", i, spec)
	}
	return b.String()
}

// asking is the spec of a pod with one container.
func asking(resources string) string {
	return "{containers: [{name: app, resources: " + resources + "}]}"
}

func repeated(number int, spec string) []string { return slices.Repeat([]string{spec}, number) }

// What the kubelet does not admit is not created, for its reasons.
func TestSimulateAdmitsAsTheKubelet(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		machine, config string // beside smallMachine
		pods            []string
		admitted        int    // the first ones
		reason          string // of the first that is not
	}{
		"CPUs": {"", "", repeated(4, asking("{requests: {cpu: 12}}")), 2,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 12000, used: 24000, capacity: 32000 (12 needed, 8 of 32 allocatable free)"},
		"reserved CPUs": {"", "kubeReserved: {cpu: 1500m}\nsystemReserved: {cpu: 500m}\n", repeated(2, asking("{requests: {cpu: 16}}")), 1,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 16000, used: 16000, capacity: 30000 (16 needed, 14 of 30 allocatable free)"},
		"reservedSystemCPUs": {"reservedSystemCPUs: 0-3\n", "kubeReserved: {cpu: 10}\n", repeated(2, asking("{requests: {cpu: 14}}")), 2, ""},
		"limits are requests": {"", "", repeated(4, asking("{limits: {cpu: 12}}")), 2,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 12000, used: 24000, capacity: 32000 (12 needed, 8 of 32 allocatable free)"},
		"memory, less huge pages and reservations": {"", "kubeReserved: {memory: 1Gi}\nevictionHard: {memory.available: 1Gi}\n", repeated(4, asking("{requests: {memory: 62Gi}}")), 2,
			"OutOfmemory: Node didn't have enough resource: memory, requested: 66571993088, used: 133143986176, capacity: 134217728000 (62Gi needed, 1Gi of 125Gi allocatable free)"},
		"huge pages": {"", "", repeated(2, asking("{limits: {cpu: 1, memory: 1Gi, hugepages-2Mi: 600Mi}}")), 1,
			"OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 629145600, used: 629145600, capacity: 1073741824 (600Mi needed, 424Mi of 1Gi allocatable free)"},
		"reserved huge pages": {"", "kubeReserved: {hugepages-2Mi: 100Mi}\nsystemReserved: {hugepages-2Mi: 24Mi}\n", repeated(2, asking("{limits: {cpu: 1, memory: 1Gi, hugepages-2Mi: 500Mi}}")), 1,
			"OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 524288000, used: 524288000, capacity: 943718400 (500Mi needed, 400Mi of 900Mi allocatable free)"},
		"more reserved than the pool has": {"", "memoryManagerPolicy: None\nkubeReserved: {hugepages-2Mi: 2Gi}\n", repeated(1, asking("{limits: {cpu: 1, memory: 1Gi, hugepages-2Mi: 2Mi}}")), 0,
			"OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 2097152, used: 0, capacity: 0 (2Mi needed, 0 of 0 allocatable free)"},
		"memory beyond 64 bits": {"", "", []string{"{containers: [{name: a, resources: {requests: {memory: 7Ei}}}, {name: b, resources: {requests: {memory: 7Ei}}}]}"}, 0, "OutOfmemory: "},
		"maxPods": {"maxPods: 2\n", "", repeated(3, asking("{}")), 2,
			"OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2 (1 needed, 0 of 2 allocatable free)"},
		"an extended resource": {"resources: {nvidia.com/gpu: 3}\n", "", repeated(2, asking("{limits: {nvidia.com/gpu: 2}}")), 1,
			"OutOfnvidia.com/gpu: Node didn't have enough resource: nvidia.com/gpu, requested: 2, used: 2, capacity: 3 (2 needed, 1 of 3 allocatable free)"},
		"an extended resource that the machine has not": {"resources: {amd.com/gpu: 3}\n", "", repeated(1, asking("{limits: {nvidia.com/gpu: 1}}")), 0,
			"OutOfnvidia.com/gpu: Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 0, capacity: 0 (1 needed, the machine has none; a machine file names them under resources)"},
		"ephemeral storage is not looked at": {"", "", repeated(1, asking("{requests: {ephemeral-storage: 1Ei}}")), 1, ""},
		"an init container counts by its peak": {"", "", repeated(2, "{initContainers: [{name: i, resources: {requests: {cpu: 20}}}], containers: [{name: a, resources: {requests: {cpu: 4}}}]}"), 1,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 20000, used: 20000, capacity: 32000 (20 needed, 12 of 32 allocatable free)"},
		"a sidecar adds up": {"", "", repeated(2, "{initContainers: [{name: i, restartPolicy: Always, resources: {requests: {cpu: 10}}}], containers: [{name: a, resources: {requests: {cpu: 7}}}]}"), 1,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 17000, used: 17000, capacity: 32000 (17 needed, 15 of 32 allocatable free)"},
		"overhead": {"", "", repeated(2, "{overhead: {cpu: 2}, containers: [{name: a, resources: {requests: {cpu: 15}}}]}"), 1,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 17000, used: 17000, capacity: 32000 (17 needed, 15 of 32 allocatable free)"},
		"pod-level resources": {"", "", repeated(3, "{resources: {requests: {cpu: 15}}, containers: [{name: a, resources: {requests: {cpu: 1}}}]}"), 2,
			"OutOfcpu: Node didn't have enough resource: cpu, requested: 15000, used: 30000, capacity: 32000 (15 needed, 2 of 32 allocatable free)"},
		"Windows": {"", "", []string{"{os: {name: windows}, containers: [{name: a}]}"}, 0,
			"PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS (spec.os.name is windows, the node has linux)"},
		"Linux": {"", "", []string{"{os: {name: linux}, nodeSelector: {kubernetes.io/os: linux}, containers: [{name: a}]}"}, 1, ""},
		"Windows nodes, without labels": {"", "", []string{"{nodeSelector: {kubernetes.io/os: windows, disk: ssd}, containers: [{name: a}]}"}, 0,
			`NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector (kubernetes.io/os is to be "windows", the node's is "linux")`},
		"another node selector, without labels": {"", "", []string{"{nodeSelector: {disk: ssd}, containers: [{name: a}]}"}, 1, ""},
		"a node selector": {"labels: {disk: ssd, zone: a}\n", "", []string{"{nodeSelector: {disk: ssd}, containers: [{name: a}]}", "{nodeSelector: {disk: hdd, rack: '1'}, containers: [{name: a}]}"}, 1,
			`NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector (disk is to be "hdd", the node's is "ssd"; rack is to be "1", the node has no such label)`},
		"required node affinity": {"labels: {zone: a}\n", "", []string{affinity("{key: zone, operator: In, values: [a, b]}"), affinity("{key: zone, operator: NotIn, values: [a]}")}, 1,
			"NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		"no labels at all": {"labels: {}\n", "", []string{affinity("{key: zone, operator: Exists}")}, 0,
			"NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		"a machine without CPUs": {"", "", repeated(1, asking("{requests: {cpu: 1000}}")), 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := smallMachine
			if name == "a machine without CPUs" {
				text = "nodes: [{id: 0, memory: 64Gi}]\n"
			}
			flags := []string{"--machine", file(t, "machine.yaml", text+test.machine), "--config", file(t, "config.yaml", test.config)}
			code := exitOK
			if test.admitted < len(test.pods) {
				code = exitFailed
			}
			result := simulateJSON(t, podsOf(test.pods...), code, flags...)
			for _, c := range result.Containers {
				var number int
				_, err := fmt.Sscanf(c.Pod, "pod-%d", &number)
				must(t, err)
				if c.Admitted != (number < test.admitted) {
					t.Errorf("%s is admitted: %v, %s", c.Pod, c.Admitted, c.Reason)
				}
				if number == test.admitted && !strings.HasPrefix(c.Reason, test.reason) {
					t.Errorf("the reason of %s is\n%s, want\n%s", c.Pod, c.Reason, test.reason)
				}
			}
		})
	}
}

// affinity is the spec of a pod that requires a node.
func affinity(expression string) string {
	return "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [" + expression + "]}]}}}, containers: [{name: a}]}"
}

// A Deployment that is larger than the machine: what does not fit is neither placed nor protected.
func TestSimulateADeploymentLargerThanTheMachine(t *testing.T) {
	t.Parallel()
	manifest := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: big}\n" +
		"spec: {replicas: 20, selector: {}, template: {spec: {containers: [{name: a, resources: {limits: {cpu: 40, memory: 100Gi}}}]}}}\n"
	result := simulateJSON(t, manifest, exitFailed, "--machine", "../testdata/machines/demo.yaml")
	var admitted []string
	for _, c := range result.Containers {
		if c.Admitted {
			admitted = append(admitted, c.Pod)
		}
	}
	if want := []string{"big-0", "big-1", "big-2"}; !slices.Equal(admitted, want) {
		t.Errorf("admitted are %q, want %q", admitted, want)
	}
	if got, want := result.Ancestors[0]["memoryMin"], 3*98.0*(1<<30); len(result.Ancestors) != 4 || got != want {
		t.Errorf("kubepods has memory.min %v, want %v; the levels are %v", got, want, result.Ancestors)
	}
}

// Pages that the machine does not have are one answer, whatever the policy, the scope, and the page sizes that it does have.
func TestSimulateHugePagesThatTheMachineDoesNotHave(t *testing.T) {
	t.Parallel()
	const want = "OutOfhugepages-1Gi: Node didn't have enough resource: hugepages-1Gi, requested: 2147483648, used: 0, capacity: 0"
	for _, machine := range []string{"demo", "task-page"} { // pages of 2Mi only, and empty pools of both
		for _, policy := range []string{"none", "best-effort", "restricted", "single-numa-node"} {
			for _, scope := range []string{"container", "pod"} {
				config := file(t, "config.yaml", fmt.Sprintf("topologyManagerPolicy: %s\ntopologyManagerScope: %s\n", policy, scope))
				result := simulateJSON(t, pod("{limits: {cpu: 1, memory: 1Gi, hugepages-1Gi: 2Gi}}"), exitFailed,
					"--machine", "../testdata/machines/"+machine+".yaml", "--config", config)
				if c := result.Containers[0]; c.Admitted || !strings.HasPrefix(c.Reason, want) {
					t.Errorf("%s, %s, scope %s: %s", machine, policy, scope, c.Reason)
				}
			}
		}
	}
}

// A pod of which nothing runs holds nothing: no memory, no protection, and no room for those after it.
func TestSimulateARejectedPodHoldsNothing(t *testing.T) {
	t.Parallel()
	const guaranteed = "{limits: {cpu: 20, memory: %s}}"
	small, large := asking(fmt.Sprintf(guaranteed, "8Gi")), asking(fmt.Sprintf(guaranteed, "100Gi"))
	afterInit := "{initContainers: [{name: i, resources: {limits: {cpu: 20, memory: 1Gi}}}], containers: [{name: a, resources: {limits: {cpu: 20, memory: 100Gi}}}]}"
	for name, pods := range map[string][]string{
		"its only container": {large, large, small},
		"after its init":     {afterInit, afterInit, small},
		"its init":           {"{initContainers: [{name: i, resources: {limits: {cpu: 20, memory: 100Gi}}}], containers: [{name: a, resources: {limits: {cpu: 20, memory: 1Gi}}}]}", small},
		"by the kubelet":     {asking("{limits: {cpu: 40, memory: 8Gi}}"), small},
	} {
		t.Run(name, func(t *testing.T) {
			for _, policy := range []string{"restricted", "single-numa-node"} {
				// What nodes 0 and 1 have together would be needed.
				config := file(t, "config.yaml", "guaranteedHeadroom: 0\nonUnsatisfiable: Reject\ntopologyManagerPolicy: "+policy+"\nreservedMemory: 0:memory=30Gi;1:memory=30Gi\n")
				result := simulateJSON(t, podsOf(pods...), exitFailed, "--machine", file(t, "machine.yaml", smallMachine), "--config", config)
				for _, c := range result.Containers {
					last := c.Pod == fmt.Sprintf("pod-%d", len(pods)-1)
					if c.Container != "i" && c.Admitted != last {
						t.Errorf("%s: %s/%s is admitted: %v, %s", policy, c.Pod, c.Container, c.Admitted, c.Reason)
					}
				}
				var cgroups []string
				for _, a := range result.Ancestors {
					cgroups = append(cgroups, fmt.Sprintf("%v %v", a["cgroup"], a["memoryMin"]))
				}
				if len(cgroups) != 2 || cgroups[0] != "kubepods 8.589934592e+09" || !strings.HasSuffix(cgroups[1], " 8.589934592e+09") {
					t.Errorf("%s: the parents the containers are %q, want 8Gi for kubepods and one pod", policy, cgroups)
				}
			}
		})
	}
}

// A container without a limit of its own has its pod's, below which nothing above it throttles.
func TestSimulateShowsNoMemoryHighAboveTheLimit(t *testing.T) {
	t.Parallel()
	manifest := podsOf(
		"{resources: {limits: {cpu: 4, memory: 32Gi}}, containers: [{name: none}, {name: request, resources: {requests: {memory: 1Gi}}}, {name: limit, resources: {requests: {memory: 1Gi}, limits: {memory: 2Gi}}}]}",
		"{resources: {requests: {cpu: 2, memory: 8Gi}, limits: {cpu: 4, memory: 16Gi}}, containers: [{name: none}, {name: request, resources: {requests: {memory: 1Gi}}}]}",
		"{resources: {requests: {memory: 1Gi}, limits: {memory: 120Gi}}, containers: [{name: none}]}", // memory.high below the pod's limit
		// The kubelet takes the init container for one with a limit, and so limits the pod.
		"{initContainers: [{name: sidecar, restartPolicy: Always, resources: {limits: {memory: 1Gi}}}, {name: i}], containers: [{name: app, resources: {limits: {memory: 1Gi}}}]}",
	)
	flags := []string{"--machine", file(t, "machine.yaml", smallMachine)}
	result := simulateJSON(t, manifest, exitOK, flags...)
	highs := map[string]any{}
	for _, c := range result.Containers {
		highs[c.Pod+"/"+c.Container] = c.Memory["high"]
		if high, set := c.Memory["high"].(float64); set && c.Memory["max"] != nil && high > c.Memory["max"].(float64) {
			t.Errorf("%s/%s has memory.high %v over memory.max %v", c.Pod, c.Container, high, c.Memory["max"])
		}
	}
	want := map[string]any{
		"pod-0/none": nil, "pod-0/request": nil, "pod-0/limit": 2040107008.0, "pod-1/none": nil, "pod-1/request": nil,
		"pod-2/none": 123695054848.0, "pod-3/sidecar": nil, "pod-3/i": nil, "pod-3/app": nil,
	}
	if diff := cmp.Diff(want, highs); diff != "" {
		t.Error(diff)
	}
}

// The last line says what else a node may reject a pod for.
func TestSimulateSaysWhatItDidNotLookAt(t *testing.T) {
	t.Parallel()
	selecting := podsOf("{nodeSelector: {disk: ssd}, containers: [{name: a}]}", affinity("{key: zone, operator: Exists}"), "{nodeSelector: {kubernetes.io/os: linux}, containers: [{name: a}]}")
	for name, test := range map[string]struct {
		machine string
		flags   []string
		want    string
		warning string
	}{
		"nothing is known": {"", nil, "node labels but kubernetes.io/os (the machine has none), maxPods, exclusive CPUs (--cpu-manager-policy), ",
			"nri-memory-manager: the machine has no labels: node selector and node affinity of 2 pods were not looked at\n"},
		"all is known": {"labels: {disk: ssd, zone: a}\nmaxPods: 110\n", []string{"--cpu-manager-policy", "static", "--reserved-cpus", "0"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := run(t, selecting, append([]string{"simulate", "--machine", file(t, "machine.yaml", smallMachine+test.machine), "-"}, test.flags...)...)
			if want := "\n\nNOT LOOKED AT: " + test.want + "taints, host ports, volumes, ephemeral storage, devices, priority, LimitRanges\n"; code != exitOK || !strings.HasSuffix(out, want) {
				t.Errorf("exit %d, and the end is not %q:\n%s", code, want, out)
			}
			if errOut != test.warning {
				t.Errorf("the errors are %q, want %q", errOut, test.warning)
			}
		})
	}
}

// --strict is for scripts that must not go on where anything was rejected.
func TestSimulateStrict(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		resources string
		flags     []string
		want      int
	}{
		"admitted":               {"{}", []string{"--strict"}, exitOK},
		"rejected":               {"{limits: {nvidia.com/gpu: 1}}", []string{"--strict"}, exitFailed},
		"expected":               {"{limits: {nvidia.com/gpu: 1}}", []string{"--expect-rejected", "web/app"}, exitOK},
		"expected, and strictly": {"{limits: {nvidia.com/gpu: 1}}", []string{"--expect-rejected", "web/app", "--strict"}, exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			if code, _, errOut := run(t, pod(test.resources), append([]string{"simulate", "--machine", taskPageMachine, "-"}, test.flags...)...); code != test.want {
				t.Errorf("exit %d, want %d: %s", code, test.want, errOut)
			}
		})
	}
}
