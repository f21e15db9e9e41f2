package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// pod returns a manifest of one container with these resources.
func pod(resources string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n    - name: app\n      image: app\n      resources: " + resources + "\n"
}

// Each wrong input has one clear error on one line and ends with exit code 2.
func refused(t *testing.T, stdin, want string, args ...string) {
	t.Helper()
	code, out, errOut := run(t, stdin, args...)
	if code != exitBadInput || out != "" {
		t.Errorf("exit %d with output %q, want %d and none; errors: %s", code, out, exitBadInput, errOut)
	}
	// Before it there may be warnings in the log.
	lines := strings.Split(strings.TrimSpace(errOut), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "nri-memory-manager: ") || !strings.Contains(last, want) || strings.Count(errOut, "nri-memory-manager: ") != 1 {
		t.Errorf("errors:\n%s\nwant one line with %q", errOut, want)
	}
}

func TestManifestsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ manifest, want string }{
		"empty":                         {"", "manager: standard input: no pods in it"},
		"only comments":                 {"# nothing\n---\n---\n", "no pods in it"},
		"not YAML":                      {"{", "standard input:1: "},
		"not an object":                 {"- 1\n", "not a Kubernetes object"},
		"a TAB":                         {"apiVersion: v1\nkind: Pod\nmetadata:\n\tname: web\n", "standard input:4: column 1: a TAB character; indent with spaces"},
		"a template of Helm":            {"apiVersion: v1\nkind: Pod\nmetadata:\n  {{- with .Values.labels }}\n  labels: {{ toYaml . | nindent 4 }}\n", `standard input:4: "{{- with .Values.labels }}" is of a Helm template that is not rendered; want the output of helm template`},
		"a template that is YAML":       {strings.Replace(pod("{}"), "web", "{{ .Release.Name }}", 1) + "---\nkind: {{ .Values.kind }}\n", `standard input:3: "{{ .Release.Name }}" is of a Helm`},
		"no template of Helm":           {"apiVersion: v1\nkind: Pod\nmetadata: {name: {{ $labels.pod }}}\n", "standard input:3: metadata"},
		"no kind":                       {"metadata: {name: a}\n", "apiVersion and kind are missing"},
		"not a pod":                     {"apiVersion: v1\nkind: Service\nmetadata: {name: a}\n", "no pods in it; want a Pod, Deployment, ReplicaSet, StatefulSet, DaemonSet, Job or CronJob; skipped what makes no pods: 1 Service"},
		"a kind in small letters":       {"apiVersion: v1\nkind: pod\nmetadata: {name: a}\n", `no pods in it; skipped kinds that are not known, and may make pods: 1 pod (did you mean "Pod"?)`},
		"no API version":                {"kind: Deployment\nmetadata: {name: a}\n", "standard input:1: apiVersion of the Deployment is missing; want apps/v1"},
		"no API version of another":     {"kind: Rollout\nmetadata: {name: a}\n", "standard input:1: apiVersion of the Rollout is missing"},
		"only an API version":           {"apiVersion: v1\nmetadata: {name: a}\n", "standard input:1: kind is missing; want a Pod, "},
		"0 replicas":                    {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: 0, selector: {}, template: {spec: {containers: [{name: a}]}}}\n", "no pods in it; skipped what has 0 replicas: 1 Deployment"},
		"negative parallelism":          {"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\nspec:\n  jobTemplate:\n    spec:\n      parallelism: -1\n      template: {spec: {containers: [{name: a}]}}\n", "standard input:7: spec.jobTemplate.spec.parallelism: want 0 to 10000, got -1"},
		"a number as an annotation":     {strings.Replace(pod("{}"), "name: web", "name: web, annotations: {throttling-factor.memory-manager.noderesource.dev: 0.7}", 1), "standard input:3: metadata.annotations.throttling-factor.memory-manager.noderesource.dev: want text, got 0.7 without quotes: write \"0.7\""},
		"a number as a name":            {strings.Replace(pod("{}"), "name: web", "name: 1", 1), "standard input:3: metadata.name: want text, got 1 without quotes: write \"1\""},
		"true as a label":               {strings.Replace(pod("{}"), "name: web", "name: web, labels: {a: true}", 1), "metadata.labels.a: want text, got true without quotes: write \"true\""},
		"off as an annotation":          {strings.Replace(pod("{}"), "name: web", "name: web, annotations: {memory-high.memory-manager.noderesource.dev: off}", 1), "standard input:3: metadata.annotations.memory-high.memory-manager.noderesource.dev: want text, got off without quotes: write \"off\""},
		"pods that have ended":          {pod("{}") + "status: {phase: Succeeded}\n", "CronJob; skipped pods that have ended: 1 Succeeded"},
		"the API version of a pod":      {"apiVersion: v1\nkind: Deployment\n", `standard input:1: apiVersion "v1" of a Deployment is not known; want apps/v1`},
		"another API version":           {strings.Replace(pod("{}"), "v1", "v2", 1), `standard input:1: apiVersion "v2" of a Pod is not known; want v1`},
		"second document wrong":         {pod("{}") + "---\n# web\n" + pod("{limits: {memory: 1GB}}"), `standard input:18: spec.containers[0].resources.limits.memory: "1GB" is not a quantity`},
		"item of a list wrong":          {"apiVersion: v1\nkind: List\nitems:\n  - apiVersion: v1\n    kind: Pod\n    metadata: {name: a}\n    spec:\n      contaners: []\n", `standard input:8: items[0].spec: unknown field "contaners", did you mean "containers"?`},
		"template wrong":                {"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\nspec:\n  jobTemplate:\n    spec:\n      template:\n        spec:\n          containers:\n            - name: a\n              resources:\n                requests: {memory: 2Gi}\n                limits: {memory: 1Gi}\n", "standard input:12: spec.jobTemplate.spec.template.spec.containers[0].resources.requests.memory: 2Gi is more than the limit of 1Gi"},
		"far more than there can be":    {pod("{limits: {memory: 99999999999999999999Ei}}"), "standard input:8: spec.containers[0].resources.limits.memory: 99999999999999999999Ei is more than any machine has"},
		"unknown field":                 {strings.Replace(pod("{}"), "image", "imgae", 1), `standard input:7: spec.containers[0]: unknown field "imgae", did you mean "image"?`},
		"a limit in a wrong place":      {strings.Replace(pod("{}"), "image: app", "image: app\n      limits: {memory: 1Gi}", 1), `standard input:8: spec.containers[0]: unknown field "limits"`},
		"unknown field of resources":    {pod("{tier: a}"), `standard input:8: spec.containers[0].resources: unknown field "tier"`},
		"no containers":                 {"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n", "spec.containers: is empty"},
		"no name":                       {strings.Replace(pod("{}"), "name: web", "labels: {}", 1), "standard input:3: metadata.name: is missing"},
		"no name of a controller":       {controller("Deployment", "labels: {}", ""), "standard input:1: metadata.name: is missing"},
		"name that is a path":           {strings.Replace(pod("{}"), "name: web", "name: ../web", 1), `metadata.name: "../web"`},
		"UID that is a path":            {strings.Replace(pod("{}"), "name: web", "name: web, uid: ../../x", 1), "metadata.uid"},
		"twice":                         {pod("{}") + "---\n" + pod("{}"), "pod default/web is there twice, first in standard input:1"},
		"a Deployment twice":            {controller("Deployment", "name: app", "") + controller("Deployment", "name: app, namespace: default", ""), "standard input:3: metadata.name: deployment default/app is there twice, first in standard input:1"},
		"negative":                      {pod("{limits: {memory: -1Gi}}"), "limits.memory: -1Gi is negative"},
		"negative request":              {pod("{requests: {memory: -5}}"), "requests.memory: -5 is negative"},
		"not a quantity":                {pod("{limits: {memory: 1Gib}}"), `"1Gib" is not a quantity`},
		"a list as quantity":            {pod("{limits: {memory: [1]}}"), "limits.memory: a list is not a quantity; want for example 64Mi"},
		"a list as port":                {strings.Replace(pod("{}"), "image: app", "image: app\n      livenessProbe: {tcpSocket: {port: [1]}}", 1), "standard input:8: spec.containers[0].livenessProbe.tcpSocket.port: want a number or a text, got a list"},
		"a word as time":                {strings.Replace(pod("{}"), "name: web", "name: web, creationTimestamp: yesterday", 1), `standard input:3: metadata.creationTimestamp: want a time such as 2026-01-02T15:04:05Z, got "yesterday"`},
		"overflowing":                   {pod("{limits: {memory: 8Ei}}"), "more than any machine has"},
		"overflowing far":               {pod("{limits: {memory: 1e30}}"), "more than any machine has"},
		"fraction of a byte":            {pod("{limits: {memory: 1500m}}"), "not a whole number of bytes"},
		"fraction of a device":          {pod("{limits: {nvidia.com/gpu: 1.5}}"), "standard input:8: spec.containers[0].resources.limits.nvidia.com/gpu: 1.5 is not a whole number"},
		"thousandths of a device":       {pod("{requests: {example.com/nic: 500m}}"), "standard input:8: spec.containers[0].resources.requests.example.com/nic: 500m is not a whole number"},
		"limit below request":           {pod("{requests: {memory: 2Gi}, limits: {memory: 1Gi}}"), "requests.memory: 2Gi is more than the limit of 1Gi"},
		"CPU limit below request":       {pod("{requests: {cpu: 2}, limits: {cpu: 500m}}"), "requests.cpu: 2 is more than the limit of 500m"},
		"huge pages alone":              {pod("{limits: {hugepages-2Mi: 4Mi}}"), "huge pages need a cpu or memory request"},
		"huge pages without a limit":    {pod("{requests: {memory: 1Gi, hugepages-2Mi: 4Mi}}"), "requests.hugepages-2Mi: 4Mi must equal its limit (none): huge pages and extended resources cannot be overcommitted"},
		"a misspelled resource":         {pod("{requests: {memroy: 1Gi}}"), `standard input:8: spec.containers[0].resources.requests.memroy: "memroy" is not a resource of Kubernetes, did you mean "memory"?`},
		"no resource":                   {pod("{limits: {foo: 1}}"), `resources.limits.foo: "foo" is not a resource of Kubernetes; want cpu, memory, ephemeral-storage, hugepages-<size> or DOMAIN/NAME`},
		"a quota's name":                {pod("{limits: {requests.nvidia.com/gpu: 1}}"), `standard input:8: spec.containers[0].resources.limits.requests.nvidia.com/gpu: "requests.nvidia.com/gpu" is how a ResourceQuota names "nvidia.com/gpu"; want that`},
		"a quota's name without a dot":  {pod("{requests: {requests.x/y: 1}}"), `resources.requests.requests.x/y: "requests.x/y" is how a ResourceQuota names "x/y"; want that`},
		"a space in a resource":         {pod("{limits: {Foo Bar/gpu: 1}}"), `resources.limits.Foo Bar/gpu: "Foo Bar/gpu" is not a DOMAIN/NAME such as nvidia.com/gpu: prefix part a lowercase RFC 1123 subdomain must consist of`},
		"a resource without a name":     {pod("{limits: {nvidia.com/: 1}}"), `"nvidia.com/" is not a DOMAIN/NAME such as nvidia.com/gpu: name part must be non-empty`},
		"a resource without a domain":   {pod("{limits: {/gpu: 1}}"), `"/gpu" is not a DOMAIN/NAME such as nvidia.com/gpu: `},
		"a resource of three parts":     {pod("{limits: {a/b/c: 1}}"), `"a/b/c" is not a DOMAIN/NAME such as nvidia.com/gpu: `},
		"a resource of a long name":     {pod("{limits: {nvidia.com/" + strings.Repeat("a", 64) + ": 1}}"), `is not a DOMAIN/NAME such as nvidia.com/gpu: name part must be no more than 63 `},
		"no resource of a pod":          {strings.Replace(pod("{}"), "spec:", "spec:\n  resources: {limits: {memory: 1Gi, mem: 1Gi}}", 1), `spec.resources.limits.mem: "mem" is not a resource of Kubernetes, did you mean "memory"?`},
		"no resource as overhead":       {strings.Replace(pod("{}"), "spec:", "spec:\n  overhead: {pods: 1}", 1), `spec.overhead.pods: "pods" is not a resource of Kubernetes; want`},
		"fewer devices than the limit":  {pod("{requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}"), "standard input:8: spec.containers[0].resources.requests.nvidia.com/gpu: 1 must equal its limit (2): huge pages and extended resources cannot be overcommitted"},
		"devices without a limit":       {pod("{requests: {nvidia.com/gpu: 1}}"), "requests.nvidia.com/gpu: 1 must equal its limit (none): "},
		"part of a huge page":           {pod("{limits: {memory: 1Gi, hugepages-2Mi: 3Mi}}"), "not a multiple of the page size"},
		"huge pages of no size":         {pod("{limits: {memory: 1Gi, hugepages-x: 3Mi}}"), "not a page size"},
		"negative overhead":             {strings.Replace(pod("{}"), "spec:", "spec:\n  overhead: {memory: -1}", 1), "spec.overhead.memory: -1 is negative"},
		"a claim that the pod lacks":    {pod("{claims: [{name: gpu}]}"), `standard input:8: spec.containers[0].resources.claims[0].name: "gpu" is not a name in spec.resourceClaims`},
		"a claim that is misspelled":    {strings.Replace(pod("{claims: [{name: gpus}]}"), "spec:", "spec:\n  resourceClaims: [{name: gpu, resourceClaimName: a}]", 1), `claims[0].name: "gpus" is not a name in spec.resourceClaims, did you mean "gpu"?`},
		"container name twice":          {strings.Replace(pod("{}"), "spec:", "spec:\n  initContainers: [{name: app, image: a}]", 1), `"app" is there twice`},
		"pod level below its sum":       {strings.Replace(pod("{requests: {memory: 2Gi}}"), "spec:", "spec:\n  resources: {requests: {memory: 1Gi}}", 1), "is less than the 2Gi of the containers"},
		"pod level limit below":         {strings.Replace(pod("{limits: {memory: 2Gi}}"), "spec:", "spec:\n  resources: {limits: {memory: 1Gi}}", 1), "is less than the limit 2Gi"},
		"negative replicas":             {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: -1, selector: {}, template: {spec: {containers: [{name: a}]}}}\n", "standard input:4: spec.replicas: want 0 to 10000, got -1"},
		"more replicas than make sense": {"apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: a}\nspec: {replicas: 1000000, selector: {}, template: {spec: {containers: [{name: a}]}}}\n", "standard input:4: spec.replicas: want 0 to 10000, got 1000000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, test.manifest, test.want, "simulate", "--machine", taskPageMachine, "-")
		})
	}
}

// Files and objects are read on after a mistake.
func TestSimulateNamesAllMistakes(t *testing.T) {
	t.Parallel()
	first := file(t, "first.yaml", strings.Replace(pod("{limits: {memory: 1GB}}"), "image: app", "imgae: app", 1)+"---\n"+controller("Deployment", "name: a", "replica: 1"))
	code, _, errOut := run(t, "{apiVersion: v1, kind: List, items: ["+strings.Repeat("{apiVersion: v2, kind: Pod},\n", 30)+"]}", "simulate", "--machine", taskPageMachine, first, first+".none", "-")
	for _, want := range []string{
		first + ":7: spec.containers[0]: unknown field \"imgae\"", first + ":8: spec.containers[0].resources.limits.memory: \"1GB\" is not", first + ":10: spec: unknown field \"replica\"",
		first + ".none: no such file", "standard input:1: items[0]: apiVersion \"v2\" of a Pod is not known", "standard input:2: items[1]: apiVersion", "more mistakes in the manifests\n",
	} {
		if code != exitBadInput || !strings.Contains(errOut, want) || strings.Count(errOut, "\n") != 21 {
			t.Errorf("exit %d, want %q in\n%s", code, want, errOut)
		}
	}
}

func TestFlagsOfSimulateThatAreRefused(t *testing.T) {
	t.Parallel()
	noNodes := t.TempDir()
	must(t, os.Mkdir(filepath.Join(noNodes, "sys"), 0o755))
	power9 := "../testdata/machines/power9"
	for want, args := range map[string][]string{
		`--expect-rejected "foo": want POD/CONTAINER`:                                                                       {"--machine", taskPageMachine, "--expect-rejected", "foo"},
		`--expect-rejected "web/": want POD/CONTAINER`:                                                                      {"--machine", taskPageMachine, "--expect-rejected", "web/"},
		`--expect-rejected "default/web/app": want POD/CONTAINER`:                                                           {"--machine", taskPageMachine, "--expect-rejected", "default/web/app"},
		"unknown shorthand flag: 'f' in -f; usage: nri-memory-manager simulate --machine FILE|SYSFS-ROOT MANIFEST… [flags]": {"-f", "web.yaml"},
		`--node "": want the name of a node`:                                                                                {"--machine", taskPageMachine, "--node", ""},
		power9 + ".txtar is an archive: want a machine file, or the folder that it was made of":                             {"--machine", power9 + ".txtar"},
		noNodes + "/sys has no NUMA nodes (devices/system/node/node0, …) and no proc":                                       {"--machine", noNodes},
		":2: nodesWithoutCPUs: NUMA node 252 cannot be placed on":                                                           {"--machine", power9 + ".yaml", "--config", file(t, "config.yaml", "\nnodesWithoutCPUs: Include\n")},
	} {
		refused(t, pod("{}"), want, append(args, "simulate", "-")...)
	}
}

// What a Burstable pod asks for in vain is named.
func TestSimulateNamesNUMARequiredOfABurstablePod(t *testing.T) {
	t.Parallel()
	burstable := strings.Replace(pod("{requests: {memory: 1Gi}}"), "name: web", "name: web, annotations: {numa.memory-manager.noderesource.dev: required}", 1)
	code, out, _ := run(t, burstable, "simulate", "--machine", taskPageMachine, "-")
	if want := "NOT PINNED\ndefault/web app:\n    not pinned: only Guaranteed pods are: its container app (app) has no CPU limit and no memory limit; the annotation numa: required has no effect\n"; code != exitOK || !strings.Contains(out, want) || strings.Contains(out, "IGNORED") {
		t.Errorf("exit %d, want %q in\n%s", code, want, out)
	}
	guaranteed := strings.Replace(burstable, "{requests: {memory: 1Gi}}", "{limits: {cpu: 1, memory: 1Gi}}", 1)
	if code, out, _ := run(t, guaranteed, "simulate", "--machine", taskPageMachine, "-"); code != exitOK || strings.Contains(out, "NOT PINNED") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

func TestManifestsThatAreRefusedWithStrict(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ manifest, want string }{
		"a kind that is not known":  {pod("{}") + "---\n---\napiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: a}\n", `standard input:11: kind "Rollout" of apiVersion "argoproj.io/v1alpha1" is not known, and may make pods; want a Pod, Deployment, ReplicaSet, StatefulSet, DaemonSet, Job or CronJob, a List of them, or a kind of Kubernetes that makes no pods`},
		"a misspelled kind":         {pod("{}") + "---\n" + strings.Replace(pod("{}"), "Pod", "Podd", 1), `standard input:10: kind "Podd" of apiVersion "v1" is not known, did you mean "Pod"?`},
		"an unknown field":          {strings.Replace(pod("{}"), "spec:", "spec:\n  brandNew: 1", 1), `standard input:5: spec: unknown field "brandNew"`},
		"memory without a unit":     {pod("{limits: {memory: 128}}"), "memory of less than 1Mi (default/web, container app: 128 bytes): is a unit missing?"},
		"an unknown kind in a list": {pod("{}") + "---\napiVersion: v1\nkind: List\nitems:\n  - {apiVersion: apps/v1, kind: Servce, metadata: {name: a}}\n", `standard input:13: items[0]: kind "Servce" of apiVersion "apps/v1" is not known`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, test.manifest, test.want, "simulate", "--machine", taskPageMachine, "--strict", "-")
		})
	}
	code, _, errOut := run(t, pod("{}")+"---\n{apiVersion: a.b/v1, kind: One, metadata: {name: a}}\n---\n{apiVersion: a.b/v1, kind: One, metadata: {name: b}}\n---\n{apiVersion: a.b/v1, kind: Two, metadata: {name: a}}\n",
		"simulate", "--machine", taskPageMachine, "--strict", "-")
	if code != exitBadInput || strings.Count(errOut, "\n") != 2 || !strings.Contains(errOut, `kind "One"`) || !strings.Contains(errOut, `kind "Two"`) {
		t.Errorf("exit %d, want both kinds once:\n%s", code, errOut)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ config, want string }{
		"a TAB":                       {"dra:\n\tenabled: true\n", "config.yaml:2: column 1: a TAB character; indent with spaces"},
		"unknown field":               {"memoryThrotlingFactor: 0.8\n", "memoryThrottlingFactor"},
		"wrong type":                  {"memoryThrottlingFactor: [1]\n", "memoryThrottlingFactor"},
		"factor 0":                    {"memoryThrottlingFactor: 0\n", "memoryThrottlingFactor"},
		"factor -1":                   {"memoryThrottlingFactor: -1\n", "memoryThrottlingFactor"},
		"factor 1.1":                  {"memoryThrottlingFactor: 1.1\n", "memoryThrottlingFactor"},
		"factor not a number":         {"memoryThrottlingFactor: .nan\n", "memoryThrottlingFactor"},
		"unknown policy":              {"topologyManagerPolicy: strict\n", "topologyManagerPolicy"},
		"reserved on an absent node":  {"reservedMemory: 7:memory=1Gi\n", "7"},
		"reserved twice":              {"reservedMemory: 0:memory=1Gi;0:memory=1Gi\n", "reservedMemory"},
		"reserved nothing":            {"reservedMemory: 0:memory=0\n", "reservedMemory"},
		"reserved more than there is": {"reservedMemory: 0:memory=500Gi\n", "reservedMemory"},
		"reserved sum is another":     {"kubeReserved: {memory: 4Gi}\nreservedMemory: 0:memory=1Gi\n", "reservedMemory"},
		"negative reservation":        {"kubeReserved: {memory: -1Gi}\n", "kubeReserved"},
		"overflowing reservation":     {"kubeReserved: {memory: 100Ei}\n", "kubeReserved"},
		"fraction of a byte":          {"kubeReserved: {memory: 100m}\n", "kubeReserved"},
		"kubelet's file is not there": {"kubeletConfig: /nowhere/config.yaml\n", "/nowhere/config.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := file(t, "config.yaml", test.config)
			refused(t, pod("{}"), test.want, "simulate", "--machine", taskPageMachine, "--config", path, "-")
			refused(t, "", test.want, "run", "--machine", taskPageMachine, "--config", path, "--nri-socket", filepath.Join(t.TempDir(), "nri.sock"),
				"--cgroups", t.TempDir(), "--plain-cgroups", "--state-dir", t.TempDir(), "--metrics-address", "")
		})
	}
}

func TestHostsAndFlagsThatAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v1 := filepath.Dir(filepath.Dir(file(t, "memory/memory.limit_in_bytes", "9223372036854771712\n")))
	plain := []string{"--machine", taskPageMachine, "--cgroups", dir, "--plain-cgroups", "--state-dir", filepath.Join(dir, "state"), "--metrics-address", ""}
	notASocket := file(t, "nri.sock", "")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"unknown command":       {[]string{"fly"}, `unknown command "fly"`},
		"command misspelt":      {[]string{"statsu"}, `unknown command "statsu" for "nri-memory-manager", did you mean "status"?`},
		"subcommand misspelt":   {[]string{"config", "chekc"}, `unknown command "chekc" for "nri-memory-manager config", did you mean "check"?`},
		"flag misspelt":         {[]string{"status", "--statedir", dir}, `unknown flag: --statedir, did you mean "--state-dir"?`},
		"driver misspelt":       {[]string{"simulate", "--machine", taskPageMachine, "--cgroup-driver", "sytemd", "-"}, `--cgroup-driver "sytemd": want one of cgroupfs, systemd, did you mean "systemd"?`},
		"unknown flag":          {[]string{"run", "--fast"}, "unknown flag: --fast"},
		"simulate nothing":      {[]string{"simulate", "--machine", taskPageMachine}, "no manifest"},
		"simulate nowhere":      {[]string{"simulate", "-"}, "--machine is missing"},
		"machine is not there":  {[]string{"simulate", "--machine", "/nowhere", "-"}, "/nowhere"},
		"manifest is not there": {[]string{"simulate", "--machine", taskPageMachine, "/nowhere.yaml"}, "/nowhere.yaml"},
		"unknown output":        {[]string{"simulate", "--machine", taskPageMachine, "-o", "xml", "-"}, `--output "xml"`},
		"unknown source":        {[]string{"simulate", "--machine", taskPageMachine, "--pod-info", "etcd", "-"}, `--pod-info "etcd"`},
		"not a socket":          {append([]string{"run", "--nri-socket", notASocket}, plain...), "is a regular file, not a socket"},
		"metrics without port":  {append([]string{"run"}, append(plain[:len(plain)-1:len(plain)-1], "8891")...), "--metrics-address 8891: listen tcp: address 8891: missing port"},
		"index of one digit":    {append([]string{"run", "--idx", "9"}, plain...), `--idx "9"`},
		"cgroup v1":             {[]string{"run", "--machine", taskPageMachine, "--cgroups", v1, "--metrics-address", ""}, "cgroup v1"},
		"no cgroups":            {[]string{"run", "--machine", taskPageMachine, "--cgroups", dir, "--metrics-address", ""}, "no cgroup v2"},
		"rollback on cgroup v1": {[]string{"rollback", "--cgroups", v1}, "cgroup v1"},
		"state in a device":     {append([]string{"run", "--nri-socket", filepath.Join(dir, "nri.sock")}, append(plain, "--state-dir", "/dev/null")...), "--state-dir /dev/null: want a folder: mkdir /dev/null: not a directory"},
		"state below a file":    {append([]string{"run", "--nri-socket", filepath.Join(dir, "nri.sock")}, append(plain, "--state-dir", notASocket+"/state")...), "--state-dir " + notASocket + "/state: want a folder: mkdir " + notASocket + ": not a directory"},
		"metrics address":       {append([]string{"run", "--nri-socket", filepath.Join(dir, "nri.sock")}, append(plain, "--metrics-address", "here")...), "metrics"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, pod("{}"), test.want, test.args...)
		})
	}
}

func TestWithoutARuntimeThePluginWaits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := &host{t: t, dir: dir, flags: []string{"run", "--nri-socket", filepath.Join(dir, "nri.sock"), "--machine", taskPageMachine,
		"--cgroups", dir, "--plain-cgroups", "--state-dir", filepath.Join(dir, "state"), "--metrics-address", "127.0.0.1:0"}}
	plugin := h.launch()
	eventually(t, "the log says what it waits for", func() bool {
		return strings.Contains(plugin.log.String(), "waiting for the NRI socket")
	})
	if ready := plugin.get("/readyz"); !strings.Contains(ready, "[-] connected") {
		t.Errorf("readiness does not name the connection:\n%s", ready)
	}
	if code := plugin.stop(); code != exitOK {
		t.Errorf("SIGTERM ended the plugin with %d", code)
	}
	if told := strings.Count(plugin.log.String(), "waiting for the NRI socket"); told != 1 {
		t.Errorf("told %d times", told)
	}
}
