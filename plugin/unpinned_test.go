package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/verify"
)

const unpinnedSeries = `nri_memory_manager_unpinned_containers{reason="UnexpectedAdmissionError"} `

// audited are verify's findings of containers that run unpinned.
func audited(t *testing.T, h *host, code int) (objects []string) {
	t.Helper()
	h.write("kubelet.yaml", "memoryManagerPolicy: None\nfeatureGates: {MemoryQoS: false}\n")
	var report verify.Report
	must(t, json.Unmarshal([]byte(h.ask(code, "verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"),
		"--kubelet-config", h.path("kubelet.yaml"), "-o", "json")), &report))
	for _, f := range report.Findings {
		if f.ID != "unpinned" {
			continue
		}
		wantAll(t, string(f.Severity)+" "+f.What+" "+f.Do, "warning", "no set of NUMA nodes has room", "onUnsatisfiable: Reject")
		objects = append(objects, f.Object)
	}
	return objects
}

// Under best-effort, the default, a container that finds no place runs all the same: every view says so, and why, until it has
// one.
func TestAContainerThatFoundNoPlaceIsShownUntilItHasOne(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, "kubeReserved: {memory: 924Mi}\ntopologyManagerPolicy: best-effort\n")
	plugin := h.start()
	first, second := guaranteed("first", 24*gi), guaranteed("second", 24*gi)
	byRule := guaranteed("by-rule", 24*gi)
	byRule.annotations = map[string]string{"numa.memory-manager.nri.io/pod": "none"}
	h.deploy(first, second, byRule, burstable("web", 2*gi, 968))

	const why = "no set of NUMA nodes has room"
	for _, output := range []string{"table", "wide"} {
		wantAll(t, h.ask(0, "status", "-o", output), "app (unpinned)", "default/second app, runs unpinned (UnexpectedAdmissionError):\n", why)
	}
	wantAll(t, h.ask(0, "status", "-o", "wide"), "not pinned: UnexpectedAdmissionError")
	wantAll(t, h.ask(0, "explain", "second"), "not pinned: UnexpectedAdmissionError", why)
	unplaced := func() (pods []string) {
		var document status.Document
		must(t, json.Unmarshal([]byte(plugin.get("/status")), &document)) // which the page draws
		for _, p := range document.Pods {
			for _, c := range p.Containers {
				if c.Unplaced != "" {
					wantAll(t, c.Unplaced, why)
					pods = append(pods, p.Name)
				}
			}
		}
		return pods
	}
	if pods := strings.Join(unplaced(), " "); pods != "second" {
		t.Errorf("unplaced are %q, want second", pods)
	}
	if objects := strings.Join(audited(t, h, 1), " "); objects != "default/second/app" {
		t.Errorf("verify finds %q unpinned, want default/second/app", objects)
	}
	wantAll(t, plugin.get("/metrics"), unpinnedSeries+"1\n")

	wantAll(t, h.ask(0, "explain", "first"), "considered now, without its own allocation:", "nodes 0-1  preferred  where it is")

	// The first one goes, and the second one starts again.
	must(t, h.endPod(first))
	must(t, h.stopContainer(second))
	second.tries++
	must(t, h.create(second))
	must(t, h.startContainer(second))
	if pods := unplaced(); len(pods) > 0 {
		t.Errorf("unplaced are %q after the restart", pods)
	}
	if objects := audited(t, h, 0); len(objects) > 0 {
		t.Errorf("verify finds %q after the restart", objects)
	}
	for name, text := range map[string]string{"status": h.ask(0, "status"), "explain": h.ask(0, "explain", "second"), "metrics": plugin.get("/metrics")} {
		for _, old := range []string{why, unpinnedSeries, "unpinned)"} {
			if strings.Contains(text, old) {
				t.Errorf("%s has %q after the restart:\n%s", name, old, text)
			}
		}
	}
}

// Without the log, too, what simulate leaves out of the machine is named, and what the configuration cannot have.
func TestSimulateWarnsAsConfigCheckDoes(t *testing.T) {
	t.Parallel()
	expander := file(t, "machine.yaml", "nodes: [{id: 0, memory: 8Gi, cpus: 0-3}, {id: 1, memory: 64Gi}]\n")
	code, _, errOut := run(t, pod("{}"), "simulate", "--machine", expander, "--config", file(t, "config.yaml", "stallGuard: false\ncacheRoom: 0.1\n"), "-")
	wantAll(t, errOut, "config.yaml:2: cacheRoom: has no effect: without stallGuard", "\nnri-memory-manager: NUMA nodes without CPUs are left out (nodesWithoutCPUs: Exclude): 1\n")
	if code != exitOK || strings.Count(errOut, "nri-memory-manager: ") != 2 {
		t.Errorf("exit %d with the errors %s", code, errOut)
	}
}

// A Guaranteed pod without NUMA nodes is no riddle either.
func TestSimulateSaysWhyAGuaranteedPodIsNotPinned(t *testing.T) {
	t.Parallel()
	level := strings.Replace(pod("{limits: {cpu: 1, memory: 1Gi}}"), "spec:", "spec:\n  resources: {requests: {cpu: 2, memory: 2Gi}, limits: {cpu: 2, memory: 2Gi}}", 1) + "    - {name: rest, image: app}\n"
	as := func(numa, manifest string) string {
		return strings.Replace(manifest, "name: web", "name: web, annotations: {numa.memory-manager.noderesource.dev: "+numa+"}", 1)
	}
	const vain = "; the annotation numa: required has no effect"
	for name, test := range map[string]struct{ config, manifest, want, rest string }{
		"resources of its own": {"", level, "not pinned: the pod's resources are its own, not its containers' (pod-level resources)",
			"not pinned: the pod's resources are its own, not its containers' (pod-level resources)"},
		"they are required": {"", as("required", level), "not pinned: the pod's resources are its own, not its containers' (pod-level resources)" + vain,
			"not pinned: the pod's resources are its own, not its containers' (pod-level resources)" + vain},
		"a share of them is required": {"podLevelResourceManagers: true", as("required", level), "",
			"not pinned: the container shares its pod's resources, and only scope pod allocates these" + vain},
		"it wants none":                   {"", as("none", level), "", ""},
		"nothing is placed":               {"profile: QoS", level, "", ""},
		"nothing is placed, and required": {"profile: QoS", as("required", pod("{limits: {cpu: 1, memory: 1Gi}}")), "not pinned: memoryManagerPolicy is None" + vain, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			containers := simulateJSON(t, test.manifest, exitOK, "--machine", taskPageMachine, "--config", file(t, "config.yaml", test.config)).Containers
			if containers[0].Reason != test.want || containers[len(containers)-1].Reason != test.rest && len(containers) > 1 {
				t.Errorf("the containers are %+v and %+v", containers[0], containers[len(containers)-1])
			}
		})
	}
}

func TestSimulateSaysWhyAContainerIsNotPinned(t *testing.T) {
	t.Parallel()
	// Much of the memory is reserved for others than the kubelet.
	flags := []string{"--machine", taskPageMachine, "--config", file(t, "config.yaml", "reservedMemory: 0:memory=100Gi;1:memory=100Gi\n")}
	manifest := pod("{limits: {cpu: 2, memory: 150Gi}}")
	container := simulateJSON(t, manifest, exitOK, flags...).Containers[0]
	if !container.Admitted || container.CpusetMems != "" || !strings.HasPrefix(container.Reason, "runs unpinned: policy best-effort, scope container: no set of NUMA nodes has room: node 0: 25.72Gi of 25.72Gi free, 150Gi needed; node 1: ") {
		t.Errorf("the container is %+v", container)
	}
	_, table, _ := run(t, manifest, append([]string{"simulate", "-"}, flags...)...)
	wantAll(t, table, "NOT PINNED\ndefault/web app (UnexpectedAdmissionError):\n    policy best-effort, scope container: no set of NUMA nodes has room:\n    node 0: ")
	manifest = strings.Replace(pod("{limits: {cpu: 1, memory: 1Gi}}"), "spec:", "spec:\n  initContainers: [{name: setup}]", 1)
	_, table, _ = run(t, manifest, append([]string{"simulate", "-"}, flags...)...)
	wantAll(t, table, "NOT PINNED\ndefault/web app:\n    not pinned: only Guaranteed pods are: its container setup (init) has no CPU limit and no memory limit\n")
	container = simulateJSON(t, pod("{requests: {cpu: 1}, limits: {memory: 1Gi}}"), exitOK, flags...).Containers[0]
	if want := "not pinned: only Guaranteed pods are: its container app (app) has no CPU limit"; container.Reason != want {
		t.Errorf("without a CPU limit the reason is %q, want %q", container.Reason, want)
	}
	for _, byRule := range []string{"{}", "{limits: {memory: 7Ei}, requests: {memory: 1Gi}}"} {
		if reason := simulateJSON(t, pod(byRule), exitOK, flags...).Containers[0].Reason; reason != "" {
			t.Errorf("%s has the reason %q", byRule, reason)
		}
	}
}
