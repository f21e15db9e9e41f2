package main

import (
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// score is the oom_score_adj in the container's OCI spec.
func (h *host) score(p *testPod) int64 {
	h.t.Helper()
	for _, container := range h.runtime.Containers() {
		if container.Id == p.id() {
			return container.Linux.OomScoreAdj.GetValue()
		}
	}
	h.t.Fatalf("no container %s", p.id())
	return 0
}

const firstKilled = "oom-score-adj.memory-manager.noderesource.dev"

// TestWhoIsKilledFirst: a pod's annotation and a PriorityClass replace the kubelet's oom_score_adj in the OCI spec. The request follows from
// the kubelet's, also after a restart of the plugin, when the runtime shows the changed one.
func TestWhoIsKilledFirst(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, `
annotationRules:
- namespaces: [default]
  allowedAnnotations: [oom-score-adj]
  priorityClasses: {db: last}
  defaults: {oom-group: process, oom-score-adj: 990}
`)
	kubelet := h.podAPI()
	web, database, early := burstable("web", 2*gi, 968), burstable("database", 2*gi, 968), burstable("early", 2*gi, 968)
	web.annotations = map[string]string{firstKilled: "700"} // which would be another request
	const spec = "spec: {priorityClassName: db, containers: [{name: app, resources: {requests: {memory: 1050Mi}, limits: {memory: 2Gi}}}]}"
	kubelet.put(database, spec)
	plugin := h.start()
	h.deploy(web, early) // without a pod API
	kubelet.start()
	said(plugin, "the kubelet's pod API answers")
	h.deploy(database)
	for pod, want := range map[*testPod]int64{web: 700, database: -997, early: 968} {
		if got := h.score(pod); got != want {
			t.Errorf("oom_score_adj of %s is %d, want %d", pod.name, got, want)
		}
	}
	const unknown = "no pod API had reported its pod's PriorityClass when it was created"
	explained := func() {
		t.Helper()
		wantAll(t, h.ask(0, "explain", "web"), "started with oom_score_adj 700 by annotation, in place of the kubelet's 968")
		wantAll(t, h.ask(0, "explain", "database"), "annotationRules[0] stands for the annotations oom-group: process\n",
			"started with oom_score_adj -997 by PriorityClass db, in place of the kubelet's 968")
		if got := h.requests(web)["app"]; got != "oomscore 1048Mi" {
			t.Errorf("the request is %q, want it from the kubelet's oom_score_adj", got)
		}
	}
	explained()
	wantAll(t, h.ask(0, "explain", "early"), "started with the kubelet's oom_score_adj: "+unknown)
	wantAll(t, audit(t, h), "NOTE     default/early/app: its processes have the kubelet's oom_score_adj: "+unknown)

	plugin.kill()
	h.start()
	explained()

	// A kill for want of memory on the node: the verdict names the order.
	h.counts(web.cgroup(), "0", "0")
	container := web.cgroup() + "/" + web.id()
	h.counts(container, "0", "1")
	eventually(t, "there is a verdict", func() bool {
		h.counts(web.cgroup(), "0", "1") // again, until the daemon watches
		return len(h.verdicts("web")) > 0
	})
	wantAll(t, h.ask(0, "oom", "web"), "chosen by:", "its oom_score_adj 700 by annotation")

	// What starts after a rollback has the kubelet's value.
	h.ask(0, "rollback")
	for _, pod := range []*testPod{web, database} {
		must(t, h.stopContainer(pod))
		pod.tries++
		must(t, h.create(pod))
		if got := h.score(pod); got != 968 {
			t.Errorf("oom_score_adj of %s is %d after the rollback, want 968", pod.name, got)
		}
	}
}

func audit(t *testing.T, h *host) string {
	t.Helper()
	_, out, _ := run(t, "", "verify", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"))
	return out
}

// A runtime with an NRI that has no oom_score_adj would drop it silently.
func TestARuntimeThatSetsNoOOMScore(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{Name: "containerd", Version: "v1.7.20", NRI: nriplugin.Version{Minor: 6, Patch: 1}},
		"annotationRules: [{namespaces: ['*'], allowedAnnotations: [oom-score-adj]}]\n")
	h.start()
	web := burstable("web", 2*gi, 968)
	web.annotations = map[string]string{firstKilled: "last"}
	h.deploy(web)
	const want = "started with the kubelet's oom_score_adj: oom_score_adj -997 by annotation: containerd v1.7.20 applies none"
	if out := h.ask(0, "explain", "web"); h.score(web) != 968 || !strings.Contains(out, want) {
		t.Errorf("want %q in\n%s", want, out)
	}
}
