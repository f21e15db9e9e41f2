package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	nri "github.com/containerd/nri/pkg/adaptation"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// largestAnnotations is about what the API server admits for one pod.
const largestAnnotations = 250 << 10

// largest are annotations of that size: as many of ours as fit in a half, and one that is too long in the other.
func largest() map[string]string {
	annotations := map[string]string{}
	for i, size := 0, 0; size < largestAnnotations/2; i++ {
		key := fmt.Sprintf("a%d.memory-manager.nri.io/a", i)
		annotations[key] = ""
		size += len(key)
	}
	annotations[pods.ResourcesAnnotation] = `{"containers":{"app":{"requests":{"memory":"1060Mi"}}` +
		strings.Repeat(`,"x":{"requests":{"memory":"1060Mi"}}`, largestAnnotations/2/37) + `}}`
	return annotations
}

// The runtime waits for 2 seconds when a plugin registers: the annotations of one pod must not cost more.
func TestAPodWithTheLargestAnnotationsDoesNotKeepThePluginOut(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, operatorsConfig)
	tenant := burstable("tenant", 0, 968)
	tenant.annotations = largest()
	h.deploy(tenant)
	for i := range 150 {
		h.beside(tenant, fmt.Sprintf("c%d", i))
	}
	h.start()

	var document status.Document
	must(t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
	if len(document.Pods) != 1 || len(document.Pods[0].Containers) != 151 {
		t.Fatalf("status has %d pods, want 1 with 151 containers", len(document.Pods))
	}
	problems := document.Pods[0].Problems
	if len(problems) != 20 || !strings.Contains(problems[19], "this and all later keys are ignored") ||
		!strings.Contains(problems[19], "want at most 500 with 64Ki") {
		t.Errorf("problems of the pod's annotations: %q", problems)
	}
	if got := h.requests(tenant)["app"]; got != "oomscore 1048Mi" {
		t.Errorf("the request is %s, want the estimate, because an annotation of this size is not read", got)
	}
}

// What is ignored of a pod's annotations is in the log once, whatever happens to the pod, and is shown by status and verify.
func TestIgnoredAnnotationsAreNamedOnce(t *testing.T) {
	t.Parallel()
	const key = "metadata.annotations[numa.memory-manager.noderesource.dev"
	h := newHost(t, cri.Options{}, operatorsConfig)
	web, quiet := burstable("web", 2*gi, 968), burstable("quiet", 2*gi, 968)
	web.annotations = map[string]string{
		"numa.memory-manager.noderesource.dev": "near", "numa.memory-manager.noderesource.dev/container.app": "far",
		"numa.memory-manager.noderesource.dev/container.sidcar": "none", "numa.memory-manager.noderesource.dev/container.sidecar": "none",
	}
	quiet.annotations = map[string]string{"numa.memory-manager.noderesource.dev/container.app": "none"}
	api := h.podAPI()
	for _, p := range []*testPod{web, quiet} {
		api.put(p, `{spec: {containers: [{name: app, resources: {limits: {memory: 2Gi}}}, {name: sidecar}]}}`)
	}
	api.start()
	plugin := h.start()
	eventually(t, "the kubelet's pod API is connected", func() bool { return strings.Contains(plugin.log.String(), "the kubelet's pod API answers") })
	h.deploy(web, quiet)
	h.beside(web, "sidecar")
	must(t, h.stopContainer(web))
	web.tries++
	must(t, h.create(web))
	must(t, h.startContainer(web))
	must(t, h.resize(web, gi))

	problems := []string{
		key + `]: Unsupported value: "near": supported values: "none", "preferred", "required"`,
		key + `/container.app]: Unsupported value: "far": supported values: "none", "preferred", "required"`,
		key + `/container.sidcar]: Not found: "sidcar": the pod has no such container, did you mean "sidecar"?`,
	}
	text := "IGNORED ANNOTATIONS\n"
	for _, problem := range problems {
		text += "default/web: " + problem + "\n"
	}
	eventually(t, "status shows them", func() bool { return strings.Contains(h.ask(0, "status"), text+"\n") })
	audit := h.ask(1, "verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"))
	for _, problem := range problems {
		wantAll(t, audit, "WARNING  default/web: ignored: "+problem)
		if n := strings.Count(strings.ReplaceAll(plugin.log.String(), `\"`, `"`), problem); n != 1 {
			t.Errorf("%s is in the log %d times, want once", problem, n)
		}
	}
}

// A node full of such pods costs the plugin no more memory than one without, once it has read what is its own.
func TestPodsWithTheLargestAnnotationsLeaveNoMemoryBehind(t *testing.T) {
	nri.SetPluginRegistrationTimeout(bound) // 75 MB take NRI itself their time
	nri.SetPluginRequestTimeout(bound)
	t.Cleanup(func() {
		nri.SetPluginRegistrationTimeout(nri.DefaultPluginRegistrationTimeout)
		nri.SetPluginRequestTimeout(nri.DefaultPluginRequestTimeout)
	})
	h := newHost(t, cri.Options{}, testConfig)
	h.program = released(t)
	const pods = 150
	for i := range pods {
		pod := burstable(fmt.Sprintf("pod-%d", i), 64*mi, 999)
		pod.annotations = largest()
		h.deploy(pod)
	}
	plugin := h.start()
	var document status.Document
	must(t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
	if len(document.Pods) != pods {
		t.Fatalf("status has %d pods, want %d", len(document.Pods), pods)
	}
	for _, pod := range document.Pods {
		if n := len(pod.Problems); n != 20 {
			t.Errorf("%s has %d problems, want 20", pod.Name, n)
		}
	}
	eventually(t, "the process holds at most 64 MiB", func() bool { return plugin.memory("RssAnon") <= 64*mi })
}

// Whoever creates a pod writes its annotations: they are believed as far as oom_score_adj confirms them.
func TestFalseRequestsInAnAnnotation(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig+"memoryReservationPolicy: HardReservation\n")
	h.start()
	const containers = 60
	claim := 2*(32<<30)/1000 - 4096 // each asks for 1 byte in truth
	tenant, honest := burstable("tenant", 0, 999), burstable("honest", 2*gi, 968)
	var claims []string
	for i := range containers {
		claims = append(claims, fmt.Sprintf(`"c%d":{"requests":{"memory":"%d"}}`, i, claim))
	}
	tenant.annotations = map[string]string{pods.ResourcesAnnotation: `{"containers":{` + strings.Join(claims, ",") + `}}`}
	honest.annotations = map[string]string{pods.ResourcesAnnotation: `{"containers":{"app":{"requests":{"memory":"1060Mi"}}}}`}
	h.deploy(honest)
	must(t, h.runPod(tenant))
	for i := range containers {
		h.beside(tenant, fmt.Sprintf("c%d", i))
	}
	if got := h.requests(honest)["app"]; got != "annotation 1060Mi" {
		t.Errorf("an annotation that oom_score_adj confirms: %s", got)
	}
	for container, got := range h.requests(tenant) {
		if got != "oomscore 0Mi" {
			t.Errorf("container %s: %s, want no more than oom_score_adj confirms", container, got)
		}
	}
	if got := h.knob("kubepods", "memory.min"); got != fmt.Sprint(1060*mi) {
		t.Errorf("kubepods has memory.min %s, want the honest pod's %d", got, 1060*mi)
	}
}

// The rule that gives a pod what its annotations do not say is found by labels and namespace, and named by explain, and its values hold.
func TestDefaultsOfTheConfigurationAreExplained(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, operatorsConfig+`annotationRules:
- {name: databases, labels: {app: postgres*}, defaults: {memory-high: 1200Mi}}
- {name: teams, namespaces: [def*], allowedAnnotations: [memory-high], defaults: {reservation: none, memory-high: off}}
`)
	given, own, database := burstable("given", 0, 968), burstable("own", 0, 968), burstable("database", 0, 968)
	own.annotations = map[string]string{"memory-high.memory-manager.noderesource.dev": "1500Mi"}
	given.labels, database.labels = map[string]string{"app": "web"}, map[string]string{"app": "postgres-14", "tier": "db"}
	for _, p := range []*testPod{given, own, database} {
		h.deploy(p)
	}
	h.start()
	wantAll(t, h.ask(0, "explain", "given"), "annotationRules[1] (teams) stands for the annotations memory-high: off, reservation: none", "memory.high is not set")
	wantAll(t, h.ask(0, "explain", "own"), "annotationRules[1] (teams) stands for the annotations reservation: none\n", "memory.high = 1.465Gi")
	wantAll(t, h.ask(0, "explain", "database"), "annotationRules[0] (databases) stands for the annotations memory-high: 1200Mi\n", "memory.high = 1.172Gi")
}
