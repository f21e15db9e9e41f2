package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator"
)

const taskPageConfig = "../testdata/config/task-page.yaml"

// simulated is simulate's JSON as a program reads it.
type simulatedJSON struct {
	Containers []struct {
		Namespace, Pod, Container, QOSClass, Reason, CpusetMems, AssignedMemset string
		Admitted                                                                bool
		NUMANodes                                                               []int
		OOMScoreAdj                                                             int64
		WithoutEffect                                                           []string
		Memory                                                                  map[string]any
		OCI                                                                     map[string]any
	}
	Ancestors          []map[string]any
	IgnoredAnnotations []map[string]string
	State              json.RawMessage
}

func simulateJSON(t *testing.T, manifest string, wantCode int, flags ...string) simulatedJSON {
	t.Helper()
	code, out, errOut := run(t, manifest, append([]string{"simulate", "-o", "json", "-"}, flags...)...)
	if code != wantCode {
		t.Fatalf("exit %d, want %d; errors: %s", code, wantCode, errOut)
	}
	var result simulatedJSON
	must(t, json.Unmarshal([]byte(out), &result))
	return result
}

func TestSimulateShowsAssignedMemset(t *testing.T) {
	t.Parallel()
	placed := pod("{limits: {cpu: 1, memory: 1Gi}}")
	own := strings.Replace(placed, "image: app", "image: app\n      env: [{name: ASSIGNED_MEMSET, value: mine}]", 1)
	const exposed, hidden = "exposeAssignedMemset: true", "{}"
	for name, test := range map[string]struct{ manifest, config, want string }{
		"a placed container":    {placed, exposed, "0"},
		"its spec has its own":  {own, exposed, "mine"},
		"it is not placed":      {pod("{}"), exposed, ""},
		"it is not exposed":     {placed, hidden, ""},
		"only the spec has one": {own, hidden, ""},
	} {
		container := simulateJSON(t, test.manifest, exitOK, "--machine", taskPageMachine, "--config", file(t, "config.yaml", test.config)).Containers[0]
		if container.AssignedMemset != test.want {
			t.Errorf("%s: ASSIGNED_MEMSET is %q, want %q", name, container.AssignedMemset, test.want)
		}
	}
}

// What jq prints of a list: one object after the other, on a line each or on several.
func TestSimulateReadsAStreamOfJSON(t *testing.T) {
	t.Parallel()
	one := func(name, more string) string {
		return `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "` + name + `"},` + "\n" + ` "spec": {"containers": [{"name": "app"` + more + `}]}}` + "\n"
	}
	stream := one("a", "") + `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}} ` + one("b", "")
	ended := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}, "spec": {"containers": []}, "status": {"phase": "Failed"}}`
	code, out, errOut := run(t, stream+ended, "simulate", "-o", "json", "--machine", taskPageMachine, "-")
	var result struct {
		Containers []struct{ Pod string }
		Skipped    []string
	}
	must(t, json.Unmarshal([]byte(out), &result))
	if want := []string{"skipped what makes no pods: 1 Service", "skipped pods that have ended: 1 Failed"}; code != exitOK || !slices.Equal(result.Skipped, want) ||
		errOut != "nri-memory-manager: "+strings.Join(want, "\nnri-memory-manager: ")+"\n" {
		t.Errorf("exit %d, skipped %q, errors %q", code, result.Skipped, errOut)
	}
	if len(result.Containers) != 2 || result.Containers[0].Pod != "a" || result.Containers[1].Pod != "b" {
		t.Errorf("the containers are %+v", result.Containers)
	}
	if code, out, _ := run(t, one("a", ""), "simulate", "-o", "json", "--machine", taskPageMachine, "-"); code != exitOK || !strings.Contains(out, `"skipped": [],`) {
		t.Errorf("exit %d, and skipped is not empty in\n%s", code, out)
	}
	refused(t, stream+one("d", `, "resources": {"limit": {}}`), `standard input:6: spec.containers[0].resources: unknown field "limit"`, "simulate", "--machine", taskPageMachine, "-")
	refused(t, stream+"\n"+`{"kind": "Pod", "metadata": {"name": "cut`, "standard input:6: the JSON object that begins here: unexpected EOF", "simulate", "--machine", taskPageMachine, "-")
	refused(t, "["+one("a", "")+"]", "standard input:1: a list without a kind is not a Kubernetes object; want its objects one after the other (jq '.[]'), or the items of a List",
		"simulate", "--machine", taskPageMachine, "-")
	if code, _, errOut := run(t, one("a", "")+"---\n"+one("b", ""), "simulate", "--machine", taskPageMachine, "-"); code != exitOK {
		t.Errorf("YAML documents of JSON: exit %d, errors %q", code, errOut)
	}
}

// The task page of the Kubernetes documentation: a Guaranteed pod of 150Gi on two nodes of 126Gi.
func TestSimulateTheTaskPage(t *testing.T) {
	t.Parallel()
	result := simulateJSON(t, pod("{limits: {cpu: 2, memory: 150Gi}}"), exitOK, "--machine", taskPageMachine, "--config", taskPageConfig)
	container := result.Containers[0]
	if !container.Admitted || !slices.Equal(container.NUMANodes, []int{0, 1}) || container.CpusetMems != "0-1" {
		t.Errorf("the container is %+v", container)
	}
	file, err := checkpoint.Decode(result.State)
	must(t, err)
	for i, want := range []struct{ reserved, free uint64 }{{131766128640, 0}, {29295144960, 103739236352}} {
		for _, memory := range file.State.Nodes[i].Memory {
			if memory.Type == "memory" && (memory.Reserved != want.reserved || memory.Free != want.free) {
				t.Errorf("node %d: %+v, want %+v", i, memory, want)
			}
		}
	}
	if got := result.Ancestors[0]; got["cgroup"] != "kubepods" || got["memoryMin"] != container.Memory["min"] {
		t.Errorf("the first ancestor is %v, the container has %v", got, container.Memory)
	}
}

// TestSimulateWhoIsKilledFirst: a PriorityClass counts where the daemon would know it.
func TestSimulateWhoIsKilledFirst(t *testing.T) {
	t.Parallel()
	manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: db}\nspec: {priorityClassName: db, containers: [{name: app, image: i}]}\n"
	const rule = "annotationRules: [{namespaces: ['*'], priorityClasses: {db: last}}]\n"
	for name, test := range map[string]struct {
		config string
		flags  []string
		want   int64
	}{
		"by PriorityClass": {config: rule, want: -997},
		"no pod API":       {config: rule, flags: []string{"--pod-info", "none"}, want: 1000},
		"none configured":  {config: rule + "requestSources: [oomscore]\n", want: 1000},
		"profile NUMA":     {config: rule + "profile: NUMA\n", want: 1000},
		"no rule":          {want: 1000},
	} {
		flags := append([]string{"--machine", taskPageMachine, "--config", file(t, "config.yaml", test.config)}, test.flags...)
		if got := simulateJSON(t, manifest, exitOK, flags...).Containers[0].OOMScoreAdj; got != test.want {
			t.Errorf("%s: oom_score_adj is %d, want %d", name, got, test.want)
		}
	}
}

// What an init container had is free for other pods once the app container has started, unless its role is not known.
func TestSimulateAnEndedInitContainer(t *testing.T) {
	t.Parallel()
	machine := file(t, "machine.yaml", "nodes:\n- {id: 0, memory: 50Gi, cpus: 0-7, distances: [10, 21]}\n- {id: 1, memory: 100Gi, cpus: 8-15, distances: [21, 10]}\n")
	config := file(t, "config.yaml", "topologyManagerPolicy: single-numa-node\n")
	const resources = "image: i, resources: {limits: {cpu: 1, memory: %s}}}]\n"
	manifest := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: first}\nspec:\n  initContainers: [{name: init, "+resources+
		"  containers: [{name: app, "+resources+"---\napiVersion: v1\nkind: Pod\nmetadata: {name: late}\nspec:\n  containers: [{name: app, "+resources,
		"30Gi", "60Gi", "40Gi")
	late := func(code int, flags ...string) any {
		result := simulateJSON(t, manifest, code, append(flags, "--machine", machine, "--config", config)...)
		return result.Containers[2].NUMANodes
	}
	if got := fmt.Sprint(late(exitOK), late(exitFailed, "--pod-info", "none")); got != "[0] []" {
		t.Errorf("the late pod is on nodes %s, want [0] [] (with and without the init container's role)", got)
	}
}

func TestSimulateARejection(t *testing.T) {
	t.Parallel()
	config := file(t, "config.yaml", "kubeReserved: {memory: 4Gi}\nsystemReserved: {memory: 1Gi}\nreservedMemory: 0:memory=3Gi;1:memory=2148Mi\ntopologyManagerPolicy: single-numa-node\n")
	manifest := pod("{limits: {cpu: 2, memory: 150Gi}}")
	result := simulateJSON(t, manifest, exitFailed, "--machine", taskPageMachine, "--config", config)
	container := result.Containers[0]
	for _, want := range []string{"; node 1: 123.9Gi of 123.9Gi free, 150Gi needed", "node 0: 122.7Gi of 122.7Gi free, 150Gi needed", "single-numa-node"} {
		if container.Admitted || !strings.Contains(container.Reason, want) {
			t.Errorf("the reason is %q, want %s in it", container.Reason, want)
		}
	}
	code, out, errOut := run(t, manifest, "simulate", "--machine", taskPageMachine, "--config", config, "--expect-rejected", "web/app", "-")
	if code != exitOK {
		t.Errorf("an expected rejection ends with %d: %s", code, errOut)
	}
	if want := "default/web  app        Guaranteed  NO        -      150Gi    -     -    -    -     150Gi\n"; !strings.Contains(out, want) {
		t.Errorf("the table has not %s:\n%s", want, out)
	}
	if code, _, _ := run(t, pod("{}"), "simulate", "--machine", taskPageMachine, "--expect-rejected", "web/app", "-"); code != exitFailed {
		t.Errorf("a rejection that did not come ends with %d", code)
	}
}

// A container that is confined may use NUMA nodes of which it has none of its own.
func TestSimulateConfinesContainersWithoutAllocation(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{"Exclude": "", "Confine": "0-1"} {
		result := simulateJSON(t, pod("{requests: {memory: 512Mi}, limits: {memory: 1Gi}}"), exitOK,
			"--machine", "../testdata/machines/four-unequal.yaml", "--config", file(t, "config.yaml", "nodesWithoutCPUs: "+key))
		if c := result.Containers[0]; !c.Admitted || len(c.NUMANodes) > 0 || c.CpusetMems != want {
			t.Errorf("%s: the container is %+v, want cpuset.mems %q", key, c, want)
		}
	}
}

// The keys and types of the JSON are a contract.
func TestTheKeysOfSimulatesJSON(t *testing.T) {
	t.Parallel()
	code, out, errOut := run(t, pod("{requests: {memory: 512Mi}, limits: {memory: 1Gi}}"),
		"simulate", "--machine", taskPageMachine, "--pod-info", "kubelet", "-o", "json", "-")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errOut)
	}
	var got map[string]any
	must(t, json.Unmarshal([]byte(out), &got))
	delete(got, "state")
	want := map[string]any{
		"containers": []any{map[string]any{
			"namespace": "default", "pod": "web", "container": "app", "qosClass": "Burstable", "admitted": true, "reason": "",
			"numaNodes": []any{}, "cpusetMems": "", "oomScoreAdj": 999.0,
			"memory": map[string]any{"request": 536870912.0, "requestSource": "kubelet", "low": 536870912.0, "high": 1020051456.0, "max": 1073741824.0},
			"oci": map[string]any{
				"cpu":            map[string]any{"shares": 2.0, "period": 100000.0},
				"memory":         map[string]any{"limit": 1073741824.0, "swap": 1073741824.0},
				"hugepageLimits": []any{map[string]any{"pageSize": "2MB", "limit": 0.0}, map[string]any{"pageSize": "1GB", "limit": 0.0}},
				"unified":        map[string]any{"memory.high": "1020051456", "memory.low": "536870912", "memory.oom.group": "1"},
			},
		}},
		"ancestors": []any{
			map[string]any{"cgroup": "kubepods", "memoryMin": 536870912.0, "memoryLow": 536870912.0},
			map[string]any{"cgroup": "kubepods/burstable", "memoryLow": 536870912.0},
			map[string]any{"cgroup": "kubepods/burstable/pod82b3ade9-d00c-8164-aa4d-420e670d6cd9", "memoryLow": 536870912.0, "memoryMax": 1073741824.0},
		},
		"skipped": []any{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A container has its pod's limits where it has none, and counts with its share of what the pod asks for beyond its containers.
func TestSimulateAPodWithResourcesOfItsOwn(t *testing.T) {
	t.Parallel()
	result := simulateJSON(t, `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  resources: {limits: {cpu: 2, memory: 100Gi}}
  containers: [{name: app}, {name: limited, resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m, memory: 1Gi}}}]
`, exitOK, "--machine", taskPageMachine, "--pod-info", "kubelet")
	type values struct{ limit, quota, shares any }
	for i, want := range []values{{107374182400.0, 200000.0, 2048.0}, {1073741824.0, 100000.0, 512.0}} {
		container := result.Containers[i]
		cpu := container.OCI["cpu"].(map[string]any)
		if got := (values{container.Memory["max"], cpu["quota"], cpu["shares"]}); got != want {
			t.Errorf("%s: got %v, want %v", container.Container, got, want)
		}
	}
	if pod := result.Ancestors[2]; pod["memoryMax"] != 107374182400.0 || pod["memoryLow"] != 1073741824.0 {
		t.Errorf("the pod's cgroup is %v", pod)
	}
}

func TestSimulateTheDemo(t *testing.T) {
	t.Parallel()
	args := []string{"simulate", "--machine", "../testdata/machines/demo.yaml", "--config", "../testdata/config/demo.yaml",
		"--pod-info", "kubelet", "--expect-rejected", "too-large/app", "../testdata/pods/1-database.yaml", "../testdata/pods/2-cache.yaml",
		"../testdata/pods/3-web.yaml", "../testdata/pods/4-report.yaml", "../testdata/pods/5-packet-router.yaml", "../testdata/pods/6-api.yaml",
		"../testdata/pods/7-too-large.yaml"}
	for _, driver := range []string{"cgroupfs", "systemd"} {
		code, out, errOut := run(t, "", append(args, "--cgroup-driver", driver)...)
		if code != exitOK || errOut != "" {
			t.Fatalf("exit %d: %s", code, errOut)
		}
		for _, want := range []string{"default/database-0", "150Gi", "migrate (init, ended)", "proxy (sidecar)", "hugepages-2Mi", "REJECTED\ndefault/too-large app (UnexpectedAdmissionError):\n    policy ", "    in the way: default/cache-0, container redis, on node 2; default/cache-1, container redis, on node 2; default/packet-router, container router, on node 2; and 2 more on node 2\n", "\n    what helps: all of these containers end, or a request that one NUMA node has free, or, ", "nodes 2-3 together have room, but containers use node 2 already", "these nodes:\n    node 0 (group 0-1): 0 of 122.7Gi free, 130Gi needed\n    node 1 "} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: %q is not in\n%s", driver, want, out)
			}
		}
		for pod, nodes := range map[string]string{"database-0": "0-1", "cache-0": "2", "packet-router": "2", "web-0": "-"} {
			if row := regexp.MustCompile(`default/` + pod + ` .* yes +(\S+)`).FindStringSubmatch(out); row == nil || row[1] != nodes {
				t.Errorf("%s: %s is placed as %q, want nodes %s:\n%s", driver, pod, row, nodes, out)
			}
		}
	}
}

// After an init container that is rejected nothing of its pod follows, and its memory is not taken.
func TestSimulateAnInitContainerThatDoesNotFit(t *testing.T) {
	t.Parallel()
	config := file(t, "config.yaml", "topologyManagerPolicy: single-numa-node\n")
	result := simulateJSON(t, `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  initContainers: [{name: init, resources: {limits: {cpu: 1, memory: 150Gi}}}]
  containers: [{name: app, resources: {limits: {cpu: 1, memory: 1Gi}}}]
`, exitFailed, "--machine", taskPageMachine, "--config", config)
	if app := result.Containers[1]; app.Admitted || !strings.Contains(app.Reason, "init container init did not start") {
		t.Errorf("the app container is %+v", app)
	}
}

// The demo (make run) sends the same pods through NRI's own runtime side and its socket into the plugin's process. What
// simulate does in place of NRI and the runtime must have the same result.
func TestSimulateAgreesWithNRI(t *testing.T) {
	t.Parallel()
	demo := filepath.Join(t.TempDir(), "demo")
	must(t, build(demo, "./demo"))
	manifests, err := filepath.Glob("../testdata/pods/*.yaml")
	must(t, err)
	for _, driver := range []string{"cgroupfs", "systemd"} {
		t.Run(driver, func(t *testing.T) {
			args := append([]string{"--machine", "../testdata/machines/demo.yaml", "--config", "../testdata/config/demo.yaml",
				"--expect-rejected", "too-large/app", "--cgroup-driver", driver, "--pod-info", "kubelet", "-o", "json"}, manifests...)
			code, simulated, errOut := run(t, "", append([]string{"simulate"}, args...)...)
			if code != exitOK {
				t.Fatalf("simulate: exit %d: %s", code, errOut)
			}
			demonstrated, err := exec.Command(demo, append([]string{"--plugin", binary, "--once"}, args...)...).Output()
			if err != nil {
				t.Fatalf("demo: %v", err)
			}
			if diff := cmp.Diff(string(demonstrated), simulated); diff != "" {
				t.Errorf("NRI (-) and simulate (+) differ:\n%s", diff)
			}
		})
	}
}

// Whatever lies in a folder or comes from "helm template" is read; what makes no pods is named once.
func TestSimulateReadsWhatPeopleHave(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"b.yml":     strings.Replace(pod("{requests: , limits: {cpu: }}"), "web", "b", 1),
		"a.yaml":    "---\n# Source: chart/templates/web.yaml\n" + strings.Replace(pod("{}"), "web", "a", 1) + "---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\n",
		"c.json":    `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}, "spec": {"containers": [{"name": "app"}]}}`,
		"d.yaml":    "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: d}\nspec: {schedule: '@daily', jobTemplate: {spec: {template: {spec: {containers: [{name: app}]}}}}}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: b}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n",
		"README.md": "no manifest",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	code, out, errOut := run(t, "", "simulate", "--machine", taskPageMachine, "-o", "json", dir)
	if want := "nri-memory-manager: skipped what makes no pods: 1 ConfigMap, 2 Service\n"; code != exitOK || errOut != want {
		t.Errorf("exit %d, errors %q, want %q", code, errOut, want)
	}
	var result simulatedJSON
	must(t, json.Unmarshal([]byte(out), &result))
	var pods []string
	for _, container := range result.Containers {
		pods = append(pods, container.Pod)
	}
	if want := []string{"a", "b", "c", "d-0"}; !slices.Equal(pods, want) {
		t.Errorf("the pods are %q, want %q", pods, want)
	}
}

// owned is an item of a list that another one owns; "" is none.
func owned(version, id, spec, owner string) string {
	name, value, _ := strings.Cut(id, ": ")
	if name != "uid" {
		value = name
	}
	template := spec + ", selector: {}, template: {spec: {containers: [{name: app}]}}"
	if strings.Contains(version, "Pod") {
		template = "containers: [{name: app}]"
	}
	if owner != "" {
		id += ", ownerReferences: [{apiVersion: v1, kind: A, name: a, uid: " + owner + "}]"
	}
	return "- {apiVersion: " + version + ", metadata: {name: a" + value + ", " + id + "}, spec: {" + strings.TrimPrefix(template, ", ") + "}}\n"
}

// controller is a document with a controller of pods.
func controller(kind, meta, spec string) string {
	template := "template: {spec: {containers: [{name: app}]}}, " + spec
	version := "batch/v1"
	switch kind {
	case "CronJob":
		template = "schedule: '@daily', jobTemplate: {spec: {template: {spec: {containers: [{name: app}]}}}}, " + spec
	case "Deployment":
		version, template = "apps/v1", "selector: {}, "+template
	}
	return "{apiVersion: " + version + ", kind: " + kind + ", metadata: {" + meta + "}, spec: {" + strings.TrimSuffix(template, ", ") + "}}\n---\n"
}

// ended is a Job with a status.
func ended(name, status string) string {
	return strings.Replace(controller("Job", "name: "+name, ""), "}\n---", ", status: "+status+"}\n---", 1)
}

// What people pipe into simulate: the lists of kubectl and of the API server, kinds of others, pods that have ended or are on other nodes.
func TestSimulateReadsWhatPeoplePipe(t *testing.T) {
	t.Parallel()
	const spec = `spec: {nodeName: %q, containers: [{name: app}]}, status: {phase: %s, ofLaterVersions: 1}}`
	of := func(name, node, phase string) string {
		return fmt.Sprintf("{metadata: {name: "+name+"}, "+spec, node, phase)
	}
	others := ""
	for _, kind := range []string{
		"v1 Service", "apps/v1 ControllerRevision", "policy/v1 PodDisruptionBudget", "gateway.networking.k8s.io/v1 HTTPRoute",
		"monitoring.coreos.com/v1 ServiceMonitor", "cert-manager.io/v1 Certificate", "monitoring.coreos.com/v1 ServiceMonitor", "apps/v1 Deploymet", "sparkoperator.k8s.io/v1beta2 SparkApplication",
	} {
		version, name, _ := strings.Cut(kind, " ")
		others += "---\n{apiVersion: " + version + ", kind: " + name + ", metadata: {name: a}}\n"
	}
	pods := "[" + strings.Join([]string{of("a", "w1", "Running"), of("b", "w2", "Running"), of("c", "", "Pending"), of("d", "w1", "Succeeded"), of("e", "w3", "Failed")}, ", ") + "]\n"
	said := func(lines ...string) (text string) {
		for _, line := range lines {
			text += "nri-memory-manager: " + line + "\n"
		}
		return text
	}
	const endedPods = "skipped pods that have ended: 1 Failed, 1 Succeeded"
	for name, test := range map[string]struct {
		manifest string
		flags    []string
		pods     string
		said     string
	}{
		"kinds of others": {pod("{}") + others, nil, "[web]", said(
			"skipped what makes no pods: 1 Certificate, 1 ControllerRevision, 1 HTTPRoute, 1 PodDisruptionBudget, 1 Service, 2 ServiceMonitor",
			"skipped kinds that are not known, and may make pods: 1 Deploymet (did you mean \"Deployment\"?), 1 SparkApplication")},
		"fields of a newer Kubernetes": {strings.Replace(strings.Replace(pod("{}"), "image: app", "image: app\n      brandNew: {a: [1]}", 1), "spec:", "spec:\n  brandNew: 1\n  initContainers: [{name: a, newer: 1}, {name: b, newer: 2}]", 1), nil, "[web web web]",
			said("skipped fields that are not known: 1 spec.brandNew, 1 spec.containers[].brandNew, 2 spec.initContainers[].newer")},
		"a field of a newer Kubernetes near to a known one": {strings.NewReplacer("name: web", "name: web, resourceVersion: '1'", "image: app", "images: app").Replace(pod("{}")), nil, "[web]",
			said("skipped fields that are not known: 1 spec.containers[].images")},
		"no unit": {pod("{requests: {memory: 128}, limits: {memory: 128}}"), nil, "[web]", said("memory of less than 1Mi (default/web, container app: 128 bytes): is a unit missing?")},
		"no units": {pod("{limits: {memory: 128}}") + "---\n" + strings.Replace(pod("{limits: {memory: 64k}}"), "web", "two", 1), nil, "[web two]",
			said("memory of less than 1Mi (default/web, container app: 128 bytes, and 1 more): is a unit missing?")},
		"a PodList": {"apiVersion: v1\nkind: PodList\nitems: " + pods, nil, "[a b c]", said(
			"the pods are on 2 nodes (as w1, w2) and were simulated on one machine: --node takes those of one", endedPods)},
		"one node":                   {"apiVersion: v1\nkind: PodList\nitems: " + pods, []string{"--node", "w2"}, "[b c]", said(endedPods)},
		"a list in a list":           {"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: PodList, items: " + pods + "}]\n", []string{"--node", "w1"}, "[a c]", said(endedPods)},
		"a DeploymentList":           {"apiVersion: apps/v1\nkind: DeploymentList\nitems: [{metadata: {name: d}, spec: {selector: {}, template: {spec: {containers: [{name: app}]}}}}]\n", nil, "[d-0]", ""},
		"a kind with a name of List": {pod("{}") + "---\n{apiVersion: example.com/v1, kind: AllowList, metadata: {name: a}}\n", nil, "[web]", said("skipped kinds that are not known, and may make pods: 1 AllowList")},
		"kubectl get all": {"apiVersion: v1\nkind: List\nitems:\n" + owned("apps/v1, kind: Deployment", "uid: d", "replicas: 2", "") + owned("apps/v1, kind: ReplicaSet", "uid: r", "replicas: 2", "d") +
			owned("apps/v1, kind: ReplicaSet", "uid: old", "replicas: 0", "d") + owned("v1, kind: Pod", "uid: p", "", "r") + owned("batch/v1, kind: Job", "uid: j", "parallelism: 3", "c") +
			owned("apps/v1, kind: DaemonSet", "generation: 1", "", ""), nil, "[ap aj-0 aj-1 aj-2 ageneration-0]",
			said("skipped what has 0 replicas: 1 ReplicaSet", "skipped owners of others in the list: 1 Deployment, 1 ReplicaSet")},
		"a name of several kinds": {controller("Deployment", "name: app", "replicas: 2") + controller("CronJob", "name: app", "") + controller("Job", "name: web", "") + strings.Replace(pod("{}"), "web", "web-0", 1),
			nil, "[app-0 app-1 app-cronjob-0 web-job-0 web-0]", ""},
		"generated names": {controller("Job", "generateName: run-", "parallelism: 2") + controller("Job", "generateName: run-", "") + controller("Deployment", "generateName: web", "") +
			strings.Repeat(strings.Replace(pod("{}"), "name: web", "generateName: p-", 1)+"---\n", 2), nil, "[run-0 run-1 run-2 web-0 p-0 p-1]", ""},
		"hooks of Helm": {pod("{}") + "---\n" + controller("Job", "name: a, annotations: {helm.sh/hook: pre-upgrade}", "") +
			strings.Replace(pod("{}"), "name: web", "name: test, annotations: {helm.sh/hook: test}", 1), nil, "[web]",
			said("skipped hooks of Helm, which do not run beside the rest: 1 Job, 1 Pod")},
		"Jobs that are suspended": {pod("{}") + "---\n" + controller("Job", "name: a", "suspend: true") + controller("CronJob", "name: b", "suspend: true"), nil, "[web]",
			said("skipped what has 0 replicas: 1 CronJob, 1 Job")},
		"Jobs that have ended": {pod("{}") + "---\n" + ended("a", "{completionTime: 2026-01-01T00:00:00Z}") + ended("b", "{conditions: [{type: Failed, status: 'True'}]}") +
			ended("c", "{conditions: [{type: SuccessCriteriaMet, status: 'True'}, {type: Complete, status: 'True'}]}") + ended("d", "{active: 1, conditions: [{type: Failed, status: 'False'}]}"),
			nil, "[web d-0]", said("skipped pods that have ended: 3 Job")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out, errOut := run(t, test.manifest, append(test.flags, "simulate", "--machine", taskPageMachine, "-o", "json", "-")...)
			var result simulatedJSON
			if code == exitOK {
				must(t, json.Unmarshal([]byte(out), &result))
			}
			var names []string
			for _, container := range result.Containers {
				names = append(names, container.Pod)
			}
			if fmt.Sprint(names) != test.pods || errOut != test.said {
				t.Errorf("exit %d, pods %v, want %s; it says\n%swant\n%s", code, names, test.pods, errOut, test.said)
			}
		})
	}
	refused(t, "apiVersion: v1\nkind: PodList\nitems: "+pods, `--node: no pod is on node "w9"`, "simulate", "--machine", taskPageMachine, "--node", "w9", "-")
}

// How far it is stands on a terminal, and nowhere else.
func TestSimulateShowsItsProgressOnATerminal(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	defer terminal.Close()
	must(t, unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	must(t, err)
	stderr, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	cmd := exec.Command(binary, "simulate", "--machine", taskPageMachine, "-")
	cmd.Stdin, cmd.Stderr = strings.NewReader("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: 200, selector: {}, template: {spec: {containers: [{name: a}]}}}\n"), stderr
	must(t, cmd.Run())
	must(t, stderr.Close())
	shown, _ := io.ReadAll(terminal) // EIO once the other side is closed
	if want := "0 of 200 pods\x1b[K\r100 of 200 pods\x1b[K\r"; string(shown) != want {
		t.Errorf("the terminal shows %q, want %q", shown, want)
	}
}

// Requests are exact unless the node is to have no pod API.
func TestSimulateHasExactRequestsByDefault(t *testing.T) {
	t.Parallel()
	manifest := pod("{requests: {memory: 512Mi}, limits: {memory: 1Gi}}")
	for want, flags := range map[string][]string{"kubelet": nil, "oomscore": {"--pod-info", "none"}} {
		memory := simulateJSON(t, manifest, exitOK, append(flags, "--machine", taskPageMachine)...).Containers[0].Memory
		if memory["requestSource"] != want {
			t.Errorf("%q: the request is %v", flags, memory)
		}
	}
}

func TestSimulateShowsIgnoredAnnotations(t *testing.T) {
	t.Parallel()
	manifest := strings.Replace(pod("{}"), "name: web", "name: web, annotations: {numa.memory-manager.nri.io: always}", 1)
	_, out, _ := run(t, manifest, "simulate", "--machine", taskPageMachine, "-")
	const want = `metadata.annotations[numa.memory-manager.nri.io]: Unsupported value: "always": supported values: "none", "preferred", "required"`
	if !strings.Contains(out, "IGNORED ANNOTATIONS\ndefault/web: "+want+"\n") {
		t.Errorf("the annotation is not in\n%s", out)
	}
	ignored := simulateJSON(t, manifest, exitOK, "--machine", taskPageMachine).IgnoredAnnotations
	if diff := cmp.Diff([]map[string]string{{"namespace": "default", "pod": "web", "annotation": "numa.memory-manager.nri.io", "message": want}}, ignored); diff != "" {
		t.Error(diff)
	}
}

// Annotations that are valid and do nothing are named with explain's reason; defaults of the configuration are not.
func TestSimulateShowsAnnotationsWithoutEffect(t *testing.T) {
	t.Parallel()
	defaults := file(t, "config.yaml", "annotationRules:\n- namespaces: ['*']\n  defaults: {throttling-factor: '0.7'}\n")
	const high, atLimit = "memory.high is not set: the pod's annotation memory-high, in whole pages, does not exceed the request", "memory.high is not set: the container asks for its limit"
	for name, test := range map[string]struct {
		annotations, resources, config string
		want                           []string
	}{
		"below the request":  {"memory-high.memory-manager.nri.io: 64Mi", "{requests: {memory: 64Mi}, limits: {memory: 1Gi}}", "", []string{"memory-high: " + high}},
		"above the request":  {"memory-high.memory-manager.nri.io: 65Mi", "{requests: {memory: 64Mi}, limits: {memory: 1Gi}}", "", nil},
		"at its limit":       {"memory-high.memory-manager.nri.io: 2Gi, throttling-factor.memory-manager.nri.io: '0.5'", "{limits: {memory: 1Gi, cpu: 1}}", "", []string{"memory-high: " + atLimit, "throttling-factor: " + atLimit}},
		"nothing to protect": {"reservation.memory-manager.nri.io: min", "{}", "", []string{"reservation: no memory.min and no memory.low: the container has no request, or none that is known"}},
		"a default":          {"", "{limits: {memory: 1Gi}}", defaults, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manifest := strings.Replace(pod(test.resources), "name: web", "name: web, annotations: {"+test.annotations+"}", 1)
			flags := []string{"--machine", taskPageMachine, "--config", test.config}
			if diff := cmp.Diff(test.want, simulateJSON(t, manifest, exitOK, flags...).Containers[0].WithoutEffect); diff != "" {
				t.Error(diff)
			}
			want := ""
			if test.want != nil {
				want = "\n\nANNOTATIONS WITHOUT EFFECT\ndefault/web app: " + strings.Join(test.want, "; ") + "\n\n"
			}
			if _, out, _ := run(t, manifest, append(flags, "simulate", "-")...); !strings.Contains(out, want) || strings.Contains(out, "WITHOUT") != (want != "") {
				t.Errorf("want %q in\n%s", want, out)
			}
		})
	}
}

func TestSimulateShowsAnnotationsForNoContainer(t *testing.T) {
	t.Parallel()
	manifest := strings.Replace(pod("{}"), "name: web", "name: web, annotations: {numa.memory-manager.nri.io/container.proxy: none, numa.memory-manager.nri.io/container.app: none}", 1)
	const want = `metadata.annotations[numa.memory-manager.nri.io/container.proxy]: Not found: "proxy": the pod has no such container`
	if code, out, _ := run(t, manifest, "simulate", "--machine", taskPageMachine, "-"); code != exitOK || !strings.Contains(out, "IGNORED ANNOTATIONS\ndefault/web: "+want+"\n\n") {
		t.Errorf("exit %d, and the annotation is not in\n%s", code, out)
	}
}

func TestSimulateShowsHugePages(t *testing.T) {
	t.Parallel()
	_, out, _ := run(t, "", "simulate", "--machine", "../testdata/machines/demo.yaml", "--config", "../testdata/config/demo.yaml", "../testdata/pods/5-packet-router.yaml")
	if !regexp.MustCompile(`HUGE PAGES\nPOD +CONTAINER +PAGE SIZE +LIMIT\ndefault/packet-router +\S+ +2Mi +\S+`).MatchString(out) {
		t.Errorf("the huge pages are not in\n%s", out)
	}
}

// What --keep names is written only where nothing is: nothing else is touched.
func TestSimulateKeepsOnlyInANewOrEmptyFolder(t *testing.T) {
	dir, temporary := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	simulate := func() (int, string) {
		code, _, errOut := run(t, pod("{}"), "simulate", "--machine", taskPageMachine, "--keep", dir, "-")
		return code, errOut
	}
	must(t, os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o644))
	if code, errOut := simulate(); code != exitBadInput || !strings.Contains(errOut, dir+" is not empty: it has notes.txt; want a new or empty folder") {
		t.Errorf("exit %d: %s", code, errOut)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
	must(t, os.Remove(filepath.Join(dir, "notes.txt")))
	if code, errOut := simulate(); code != exitOK {
		t.Errorf("exit %d: %s", code, errOut)
	}
	// What only a daemon reads again, and what nobody has written, is not there: of 1,000 pods it was most of the time.
	var files []string
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if !d.IsDir() {
			files = append(files, d.Name())
		}
		return err
	}))
	if want := []string{"cgroup.controllers", "cgroup.procs", "memory.high", "memory.oom.group", "memory_manager_state"}; !slices.Equal(files, want) {
		t.Errorf("it keeps %q, want %q", files, want)
	}
	if file, err := checkpoint.ReadFile(filepath.Join(dir, "state", checkpoint.FileName)); err != nil || len(file.State.Nodes) != 2 {
		t.Errorf("the state file has %+v, %v", file, err)
	}
	if code, _, errOut := run(t, pod("{}"), "simulate", "--machine", taskPageMachine, "-"); code != exitOK {
		t.Errorf("exit %d: %s", code, errOut)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}

// The scheduler chooses the NUMA nodes of claims: a pod with some is not placed, and keeps what the kubelet admitted it with.
func TestSimulateLeavesClaimsToTheScheduler(t *testing.T) {
	t.Parallel()
	const manifests = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: half}
spec: {spec: {devices: {requests: [{name: mem, exactly: {deviceClassName: numa-memory, capacity: {requests: {memory: 40Gi}}}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  resourceClaims: [{name: mem, resourceClaimTemplateName: half}]
  containers: [{name: app, image: i, resources: {limits: {cpu: 1, memory: 100Gi}, claims: [{name: mem}]}}]
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: app, image: i, resources: {limits: {cpu: 1, memory: 1Gi}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: large}
spec:
  containers: [{name: app, image: i, resources: {limits: {cpu: 1, memory: 160Gi}}}]
`
	const pending = "db false : not simulated: with dra.enabled the scheduler may choose the NUMA nodes of a pod with resource claims; status shows them on the node where it runs"
	without := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(without, []byte("reservedMemory: 0:memory=1Gi;1:memory=1Gi\nevictionHard: {memory.available: 2Gi}\n"), 0o600))
	for config, want := range map[string][]string{
		"../testdata/config/dra.yaml": {pending, "web true 0: ", "large false : OutOfmemory: "},
		without:                       {"db true 0: ", "web true 0: ", "large false : OutOfmemory: "},
	} {
		code, out, errOut := run(t, manifests, "simulate", "--machine", "../testdata/machines/task-page.yaml", "--config", config, "-o", "json", "-")
		var result simulator.Result
		must(t, json.Unmarshal([]byte(out), &result))
		var got []string
		for i, c := range result.Containers {
			line := fmt.Sprintf("%s %v %s: %s", c.Pod, c.Admitted, c.CpusetMems, c.Reason)
			got = append(got, line[:min(len(line), len(want[i]))])
		}
		if diff := cmp.Diff(want, got); diff != "" || code != 1 || !strings.Contains(errOut, "skipped what makes no pods: 1 ResourceClaimTemplate\n") {
			t.Errorf("%s: exit status %d, %s\n%s\n%s", config, code, errOut, diff, out)
		}
		if ignored := strings.Contains(errOut, "dra.enabled is false in the configuration: resource claims are ignored"); ignored != (config == without) {
			t.Errorf("%s: %s", config, errOut)
		}
	}
}

// Ctrl-C, twice, ends a command that waits for its input.
func TestACommandThatReadsIsInterrupted(t *testing.T) {
	t.Parallel()
	in, keep, err := os.Pipe()
	must(t, err)
	defer keep.Close()
	cmd := exec.Command(binary, "simulate", "--machine", "../testdata/machines/task-page.yaml", "-")
	cmd.Stdin = in
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	eventually(t, "its end", func() bool {
		_ = cmd.Process.Signal(os.Interrupt)
		return len(ended) > 0
	})
}
