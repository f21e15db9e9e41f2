package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Under the kubelet's static policy a Guaranteed container with whole CPUs has them for itself, and its memory beside them.
func TestSimulateExclusiveCPUs(t *testing.T) {
	t.Parallel()
	const cores = "threadsPerCore: 2\nreservedSystemCPUs: 0,8\n"
	guaranteed := func(cpus string) string { return asking("{limits: {cpu: " + cpus + ", memory: 4Gi}}") }
	for name, test := range map[string]struct {
		machine, policy string
		pods            []string
		want            []string // pod/container CPUs NUMA nodes reason
	}{
		"whole cores of one node": {cores, "best-effort", []string{guaranteed("4"), guaranteed("14"), guaranteed("10")}, []string{
			"pod-0/app 1-2,9-10 0", "pod-1/app 16-22,24-30 1", "pod-2/app 3-7,11-15 0"}},
		"two nodes where one has not enough": {cores, "best-effort", []string{guaranteed("10"), guaranteed("10"), guaranteed("8")}, []string{
			"pod-0/app 1-5,9-13 0", "pod-1/app 16-20,24-28 1", "pod-2/app 6-7,14-15,21-22,29-30 0"}},
		"a whole node": {cores, "restricted", []string{guaranteed("16"), guaranteed("8")}, []string{"pod-0/app 16-31 1", "pod-1/app 1-4,9-12 0"}},
		"a thread of a core that is in use": {cores, "restricted", []string{guaranteed("3"), guaranteed("1")}, []string{
			"pod-0/app 1-2,9 0", "pod-1/app 10 0"}},
		"no node has enough": {cores, "single-numa-node", []string{guaranteed("10"), guaranteed("10"), guaranteed("10")}, []string{
			"pod-0/app 1-5,9-13 0", "pod-1/app 16-20,24-28 1", "pod-2/app - - TopologyAffinityError"}},
		"without alignment": {cores, "none", []string{guaranteed("6"), guaranteed("10")}, []string{
			"pod-0/app 1-3,9-11 0", "pod-1/app 4-7,12-16,24 0"}},
		"the shared pool": {cores, "restricted", []string{guaranteed("16"), guaranteed("1500m"), asking("{requests: {cpu: 2}}"), asking("{}")}, []string{
			"pod-0/app 16-31 1", "pod-1/app 0-15 0", "pod-2/app 0-15 -", "pod-3/app 0-15 -"}},
		"an app has the CPUs of its init container": {cores, "restricted", []string{
			"{initContainers: [{name: i, resources: {limits: {cpu: 4, memory: 1Gi}}}], containers: [{name: a, resources: {limits: {cpu: 2, memory: 1Gi}}}, {name: b, resources: {limits: {cpu: 2, memory: 1Gi}}}]}"}, []string{
			"pod-0/i 1-2,9-10 0", "pod-0/a 1,9 0", "pod-0/b 2,10 0"}},
		"not those of its sidecar": {cores, "restricted", []string{
			"{initContainers: [{name: s, restartPolicy: Always, resources: {limits: {cpu: 2, memory: 1Gi}}}], containers: [{name: a, resources: {limits: {cpu: 2, memory: 1Gi}}}]}"}, []string{
			"pod-0/s 1,9 0", "pod-0/a 2,10 0"}},
		"a rejected pod gives them back": {cores, "restricted", []string{
			asking("{limits: {cpu: 14, memory: 100Gi}}"), guaranteed("14")}, []string{"pod-0/app - - container app of pod default/pod-0: policy restricted", "pod-1/app 1-7,9-15 0"}},
		"each CPU is a core": {"reservedSystemCPUs: 0-1\n", "restricted", []string{guaranteed("3")}, []string{"pod-0/app 2-4 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := file(t, "config.yaml", "onUnsatisfiable: Reject\ntopologyManagerPolicy: "+test.policy+"\n")
			code := exitOK
			if strings.Contains(strings.Join(test.want, "\n"), "- - ") {
				code = exitFailed
			}
			result := simulateJSON(t, podsOf(test.pods...), code, "--machine", file(t, "machine.yaml", smallMachine+test.machine),
				"--config", config, "--cpu-manager-policy", "static")
			var got []string
			for i, c := range result.Containers {
				cpus, nodes := "-", "-"
				if c.Admitted {
					cpus = c.OCI["cpu"].(map[string]any)["cpus"].(string)
				}
				if c.CpusetMems != "" {
					nodes = c.CpusetMems
				}
				line := c.Pod + "/" + c.Container + " " + cpus + " " + nodes
				if c.Reason != "" && i < len(test.want) { // as far as it is expected
					line += " " + c.Reason[:min(len(c.Reason), max(0, len(test.want[i])-len(line)-1))]
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Scope pod has one hint for all containers of a pod.
func TestSimulateExclusiveCPUsOfAWholePod(t *testing.T) {
	t.Parallel()
	two := "{containers: [{name: a, resources: {limits: {cpu: 10, memory: 1Gi}}}, {name: b, resources: {limits: {cpu: 4, memory: 1Gi}}}]}"
	for scope, want := range map[string][2]string{"container": {"1-10", "11-14"}, "pod": {"1-10", "11-14"}} {
		config := file(t, "config.yaml", "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: "+scope+"\n")
		flags := []string{"--machine", file(t, "machine.yaml", smallMachine), "--config", config, "--cpu-manager-policy", "static", "--reserved-cpus", "0"}
		result := simulateJSON(t, podsOf(two), exitOK, flags...)
		for i, c := range result.Containers {
			if got := c.OCI["cpu"].(map[string]any)["cpus"]; got != want[i] || c.CpusetMems != "0" {
				t.Errorf("scope %s: %s has CPUs %v and nodes %s, want %s", scope, c.Container, got, c.CpusetMems, want[i])
			}
		}
	}
	// 10 and 10 fit a node each, and no node has room for both.
	wide := strings.Replace(two, "cpu: 4", "cpu: 10", 1)
	for scope, code := range map[string]int{"container": exitOK, "pod": exitFailed} {
		config := file(t, "config.yaml", "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: "+scope+"\n")
		result := simulateJSON(t, podsOf(wide), code, "--machine", file(t, "machine.yaml", smallMachine), "--config", config,
			"--cpu-manager-policy", "static", "--reserved-cpus", "0")
		if reason := result.Containers[0].Reason; scope == "pod" && !strings.HasPrefix(reason, "TopologyAffinityError: Resources cannot be allocated with Topology locality (CPUs, policy single-numa-node: 20 needed, 31 of 32 free)") {
			t.Errorf("scope %s: the reason is %q", scope, reason)
		}
	}
}

func TestSimulateShowsExclusiveCPUs(t *testing.T) {
	t.Parallel()
	machine := file(t, "machine.yaml", smallMachine+"cpuManagerPolicy: static\nreservedSystemCPUs: 0\n")
	_, out, _ := run(t, pod("{limits: {cpu: 2, memory: 1Gi}}"), "simulate", "--machine", machine, "-")
	wantAll(t, out, "POD          CONTAINER  QOS         ADMITTED  CPUS  NODES  ", "default/web  app        Guaranteed  yes       1-2   0      ")
	if _, out, _ := run(t, pod("{limits: {cpu: 2, memory: 1Gi}}"), "simulate", "--machine", machine, "--cpu-manager-policy", "none", "-"); strings.Contains(out, "CPUS") {
		t.Errorf("there are CPUs without the static policy:\n%s", out)
	}
}

func TestNodesThatCannotBeSimulated(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		machine, config string
		flags           []string
		want            string
	}{
		"unknown policy":          {"", "", []string{"--cpu-manager-policy", "dynamic"}, `--cpu-manager-policy "dynamic": want one of none, static`},
		"static without CPUs":     {"cpuManagerPolicy: static\n", "", nil, "the CPU manager policy static needs reserved CPUs, without which no kubelet starts: want --reserved-cpus, reservedSystemCPUs"},
		"all CPUs reserved":       {"cpuManagerPolicy: static\n", "kubeReserved: {cpu: 32}\n", nil, "32000 thousandths of CPUs are reserved, and the machine has 32 CPUs"},
		"reserved is no list":     {"", "", []string{"--reserved-cpus", "a-b"}, `--reserved-cpus: CPU list "a-b" is not in the form 0-3,8`},
		"reserved is not there":   {"", "", []string{"--reserved-cpus", "99"}, `--reserved-cpus: CPU list "99": no NUMA node has CPU 99`},
		"reserved in the file":    {"reservedSystemCPUs: 0-99\n", "", nil, `machine.yaml:2: reservedSystemCPUs: CPU list "0-99": no NUMA node has CPU 32-99`},
		"reserved CPU is no CPU":  {"", "systemReserved: {cpu: many}\n", nil, `systemReserved: cpu "many" is not a number of CPUs; want for example 2 or 500m`},
		"unknown policy in file":  {"cpuManagerPolicy: Static\n", "", nil, `machine.yaml:2: cpuManagerPolicy: "Static": want none or static`},
		"threads that do not fit": {"threadsPerCore: 3\n", "", nil, "machine.yaml:2: threadsPerCore: the 16 CPUs of NUMA node 0 are no cores of 3 threads"},
		"no threads":              {"threadsPerCore: 0\n", "", nil, "machine.yaml:2: threadsPerCore: want 1 to 8, got 0"},
		"no pods":                 {"maxPods: 0\n", "", nil, "machine.yaml:2: maxPods: want a number of pods of at least 1, got 0"},
		"CPUs as a resource":      {"resources: {cpu: 3}\n", "", nil, `machine.yaml:2: resources: "cpu" is not an extended resource; want a name such as nvidia.com/gpu`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"simulate", "--machine", file(t, "machine.yaml", smallMachine+test.machine), "--config", file(t, "config.yaml", test.config), "-"}
			refused(t, pod("{}"), test.want, append(args, test.flags...)...)
		})
	}
}
