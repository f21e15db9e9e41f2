// Package chart tests the Helm chart and the kustomizations: they hold no code of their own.
package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	ours "github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const folder = "../helm/nri-memory-manager"

var update = flag.Bool("update", false, "write the golden files, the chart's README, the comments of its values and the schema of its config")

// valueSets are what users set, and what must come out.
var valueSets = map[string]string{
	"default":      `{}`,
	"kubelet":      `{config: {requestSources: [kubelet, unified, annotation, swap, oomscore]}, systemdSocket: false, kubeletConfig: /var/lib/kubelet/config.yaml, kubeletState: /var/lib/kubelet/memory_manager_state}`,
	"kubelet-root": `{config: {requestSources: [kubelet, unified, annotation, swap, oomscore]}, kubeletPodsSocket: /data/kubelet/pods-api/pods.sock}`,
	"no-sources":   `{config: {requestSources: [unified, annotation, swap, oomscore], onTermination: Rollback, memoryThrottlingFactor: 0.8}, podSecurityContext: {seLinuxOptions: {type: spc_t}}}`,
	"sources":      `{config: {requestSources: [kubelet, oomscore]}}`,
	"overrides": `{nameOverride: numa, commonLabels: {team: node, app.kubernetes.io/version: mine}, podLabels: {app.kubernetes.io/name: other, tier: a},
podAnnotations: {memory-high.memory-manager.noderesource.dev: 64Mi}, image: {digest: "sha256:` + strings.Repeat("ab", 32) + `"},
serviceAccount: {create: false, name: mine}, rbac: {create: false}, priorityClassName: high, startupProbe: {periodSeconds: 1, failureThreshold: 60},
livenessProbe: {periodSeconds: 30}, readinessProbe: {httpGet: {path: /healthz}}, extraArgs: [--systemd-socket=, --kubeconfig=/etc/api/config], extraEnv: [{name: NODE_NAME, value: worker}, {name: GOGC, value: "50"}],
extraVolumes: [{name: api, secret: {secretName: api}}], extraVolumeMounts: [{name: api, mountPath: /etc/api}], config: {logLevel: debug},
podSecurityContext: {seccompProfile: {type: Localhost, localhostProfile: daemon.json}}, securityContext: {seccompProfile: {type: Unconfined}}, terminationGracePeriodSeconds: 45, revisionHistoryLimit: 2,
metrics: {podMonitor: {enabled: true, labels: {app.kubernetes.io/name: other}}}, networkPolicy: {enabled: true, from: [{namespaceSelector: {}}]}}`,
	"node-groups": `{config: {profile: Observe, memoryThrottlingFactor: 0.8, events: true, kubeReserved: {memory: 1Gi}, requestSources: [unified, annotation, swap, oomscore], onTermination: Rollback},
cgroupDriver: cgroupfs, networkPolicy: {enabled: true}, nodeGroups: [
{name: large, nodeSelector: {size: large, zone: a}, config: {profile: Full, memoryThrottlingFactor: null, stallGuard: false, requestSources: [kubelet]}},
{name: gpu, nodeSelector: {gpu: "true"}, cgroupDriver: systemd, config: {requestSources: [apiserver], nodeResourceTopology: true, resourceSlices: true}}]}`,
	"everything": `{config: {events: true, evictRejectedAfter: 5m, nodeResourceTopology: true, resourceSlices: true, dra: {enabled: true}, logLevel: debug}, recording: true, securityContext: {capabilities: {add: [SYS_RESOURCE]}}, nri: {runtime: {patchConfig: true}},
metrics: {serviceMonitor: {enabled: true, labels: {release: prometheus}}},
imagePullSecrets: [{name: registry}], podLabels: {team: node}, podAnnotations: {a: b}}`,
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	loaded, err := loader.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func render(t *testing.T, values string) (string, error) {
	t.Helper()
	return renderChart(load(t), read(t, values))
}

// read reads values as Helm does.
func read(t *testing.T, values string) chartutil.Values {
	t.Helper()
	parsed, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// renderFiles renders each template as Helm does at an installation.
func renderFiles(loaded *chart.Chart, values chartutil.Values) (map[string]string, error) {
	return renderFor("v1.37.2", loaded, values)
}

// renderFor is renderFiles for a version of Kubernetes.
func renderFor(version string, loaded *chart.Chart, values chartutil.Values) (map[string]string, error) {
	cluster := *chartutil.DefaultCapabilities
	cluster.KubeVersion = chartutil.KubeVersion{Version: version}
	toRender, err := chartutil.ToRenderValues(loaded, values,
		chartutil.ReleaseOptions{Name: "nri-memory-manager", Namespace: "kube-system", IsInstall: true}, &cluster)
	if err != nil {
		return nil, err
	}
	return engine.Render(loaded, toRender)
}

func renderChart(loaded *chart.Chart, values chartutil.Values) (string, error) {
	files, err := renderFiles(loaded, values)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := strings.TrimPrefix(strings.TrimSpace(files[name]), "---\n")
		if strings.HasSuffix(name, ".yaml") && text != "" {
			fmt.Fprintf(&out, "---\n# Source: %s\n%s\n", name, text)
		}
	}
	return out.String(), nil
}

// flags returns the values of --set flags as Helm reads them.
func flags(t *testing.T, set ...string) string {
	t.Helper()
	values := map[string]any{}
	for _, flag := range set {
		if err := strvals.ParseInto(flag, values); err != nil {
			t.Fatal(err)
		}
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestLint(t *testing.T) {
	linter := lint.All(folder, map[string]interface{}{}, "kube-system", true)
	for _, message := range linter.Messages {
		if message.Severity >= support.InfoSev {
			t.Error(message)
		}
	}
}

func TestRendersAsBefore(t *testing.T) {
	for name, values := range valueSets {
		t.Run(name, func(t *testing.T) {
			got, err := render(t, values)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, filepath.Join("testdata", name+".yaml"), got)
			decodeStrictly(t, got)
		})
	}
}

// TestConfigurationOnTheCommandLine renders what --set makes of the configuration's types. The tests of the binary read it.
func TestConfigurationOnTheCommandLine(t *testing.T) {
	got, err := render(t, flags(t, "config.memoryThrottlingFactor=0.8", "config.guaranteedHeadroom=0.05", "config.stallGuard=false",
		"config.maxMigrationBytes=1Gi", "config.profile=Observe", `config.evictionHard.memory\.available=5%`, "config.dra.enabled=true",
		"config.stateTolerance=1000000", "config.kubeReserved.memory=1073741824", "config.annotationRules[0].namespaces={a*,b}",
		"config.nodeResourceTopology=true,config.events=true", "config.annotationRules[0].minimumThrottlingFactor=0.5"))
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "testdata/set-flags.yaml", got)
	if configuration := config(t, got, "nri-memory-manager"); !configuration.Events || configuration.StallGuard || configuration.AnnotationRules[0].MinimumThrottlingFactor != 0.5 {
		t.Errorf("the configuration is %+v", configuration)
	}
}

// config is the configuration in a rendered ConfigMap, as the daemon reads it.
func config(t *testing.T, manifests, name string) ours.Config {
	t.Helper()
	text, ok := objects[corev1.ConfigMap](t, manifests, "ConfigMap")[name]
	if !ok {
		t.Fatalf("no ConfigMap %s was rendered", name)
	}
	parsed, err := ours.Files(nil).Parse(name, []byte(text.Data["config.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// objects are the rendered objects of a kind, by name. A key that is there twice is an error.
func objects[T any](t *testing.T, manifests, kind string) map[string]T {
	t.Helper()
	found := map[string]T{}
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var about metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &about); err != nil {
			t.Fatal(err)
		}
		if about.Kind != kind {
			continue
		}
		var object T
		if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		if _, twice := found[about.Name]; twice {
			t.Errorf("%s %s is there twice", kind, about.Name)
		}
		found[about.Name] = object
	}
	return found
}

// TestOverridesGiveNoKeyTwice decodes every object strictly: overridden labels and annotations are there once, and what
// selectors need stays.
func TestOverridesGiveNoKeyTwice(t *testing.T) {
	got, err := render(t, valueSets["overrides"])
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(got, "\n---\n") {
		if err := yaml.UnmarshalStrict([]byte(document), &map[string]any{}); err != nil {
			t.Errorf("%v in:\n%s", err, document)
		}
	}
	set := objects[appsv1.DaemonSet](t, got, "DaemonSet")["nri-memory-manager-numa"]
	pod := set.Spec.Template
	if high := pod.Annotations["memory-high.memory-manager.noderesource.dev"]; high != "64Mi" {
		t.Errorf("the pod's annotation memory-high is %q, want the user's", high)
	}
	for key, value := range set.Spec.Selector.MatchLabels {
		if pod.Labels[key] != value {
			t.Errorf("the pod's label %s is %q, its DaemonSet selects %q", key, pod.Labels[key], value)
		}
	}
	if pod.Labels["tier"] != "a" || pod.Labels["team"] != "node" || pod.Labels["app.kubernetes.io/version"] != "mine" {
		t.Errorf("the pod's labels are %v", pod.Labels)
	}
	if env := pod.Spec.Containers[0].Env; len(env) != 2 || env[0].Value != "worker" {
		t.Errorf("the environment is %v, want each variable once", env)
	}
}

// TestImagesCanComeFromElsewhere renders the references of both images of the pod.
func TestImagesCanComeFromElsewhere(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	version := load(t).Metadata.AppVersion
	for values, want := range map[string]string{
		`{}`: "ghcr.io/nri-memory-manager/nri-memory-manager:" + version,
		`{registry: "registry.example.com:5000"}`:            "registry.example.com:5000/nri-memory-manager/nri-memory-manager:" + version,
		`{registry: "", repository: localhost/a, tag: test}`: "localhost/a:test",
		`{tag: test, digest: "` + digest + `"}`:              "ghcr.io/nri-memory-manager/nri-memory-manager@" + digest,
	} {
		got, err := render(t, `{image: `+values+`, nri: {runtime: {patchConfig: true, configManager: `+values+`}}}`)
		if err != nil {
			t.Fatal(err)
		}
		pod := daemonSet(t, got).Spec.Template.Spec
		if image := pod.Containers[0].Image; image != want {
			t.Errorf("values %s: the image is %s, want %s", values, image, want)
		}
		want = strings.NewReplacer("nri-memory-manager/nri-memory-manager", "containers/nri-plugins/nri-config-manager", version, "v0.10.1").Replace(want)
		if image := pod.InitContainers[0].Image; image != want {
			t.Errorf("values %s: the init container's image is %s, want %s", values, image, want)
		}
	}
}

// TestSecurityContextsCanBeOverridden merges what users set over the chart's security contexts, and keeps the rest.
func TestSecurityContextsCanBeOverridden(t *testing.T) {
	const rest = "allowPrivilegeEscalation: false, privileged: false, readOnlyRootFilesystem: true, runAsUser: 0"
	for values, want := range map[string]struct{ pod, container string }{
		`{}`: {"{seccompProfile: {type: RuntimeDefault}}", "{" + rest + ", runAsGroup: 0, capabilities: {drop: [ALL]}}"},
		`{podSecurityContext: {seLinuxOptions: {type: spc_t}}, securityContext: {capabilities: {add: [SYS_RESOURCE]}}}`: {
			"{seccompProfile: {type: RuntimeDefault}, seLinuxOptions: {type: spc_t}}",
			"{" + rest + ", runAsGroup: 0, capabilities: {drop: [ALL], add: [SYS_RESOURCE]}}"},
		`{podSecurityContext: {fsGroup: 7, seccompProfile: null}, securityContext: {runAsGroup: 7}}`: {
			"{fsGroup: 7}", "{" + rest + ", runAsGroup: 7, capabilities: {drop: [ALL]}}"},
		`{securityContext: {runAsGroup: null, capabilities: {drop: null}}}`: {"{seccompProfile: {type: RuntimeDefault}}", "{" + rest + ", capabilities: {}}"},
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		var pod corev1.PodSecurityContext
		var container corev1.SecurityContext
		if err := errors.Join(yaml.UnmarshalStrict([]byte(want.pod), &pod), yaml.UnmarshalStrict([]byte(want.container), &container)); err != nil {
			t.Fatal(err)
		}
		spec := daemonSet(t, got).Spec.Template.Spec
		if difference := cmp.Diff(&pod, spec.SecurityContext) + cmp.Diff(&container, spec.Containers[0].SecurityContext); difference != "" {
			t.Errorf("values %s: what is wanted (-) and the pod's security contexts (+) differ:\n%s", values, difference)
		}
	}
}

// TestNamesCanBeChosen renders every kind of object with names that are set, and with ones as long as they may be.
func TestNamesCanBeChosen(t *testing.T) {
	long := strings.Repeat("x", 63)
	for values, want := range map[string][]string{
		`{nameOverride: memory}`:                       {"nri-memory-manager"}, // the release's name has it
		`{nameOverride: numa}`:                         {"nri-memory-manager-numa"},
		`{nameOverride: numa, fullnameOverride: mine}`: {"mine"},
		`{fullnameOverride: mine, nodeGroups: [{name: a, nodeSelector: {a: b}}]}`:                            {"mine", "mine-a"},
		`{fullnameOverride: ` + long + `, nodeGroups: [{name: twenty-characters-xx, nodeSelector: {a: b}}]}`: {long[:42] + "-twenty-characters-xx", long},
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		if names := slices.Sorted(maps.Keys(objects[appsv1.DaemonSet](t, got, "DaemonSet"))); !slices.Equal(names, want) {
			t.Errorf("values %s: the DaemonSets are %q, want %q", values, names, want)
		}
		for document := range strings.SplitSeq(got, "\n---\n") {
			var about metav1.PartialObjectMetadata
			if err := yaml.Unmarshal([]byte(document), &about); err != nil {
				t.Fatal(err)
			}
			if len(about.Name) > 63 || !strings.HasPrefix(about.Name, want[0][:4]) {
				t.Errorf("values %s: %s %s, want at most 63 characters that begin with %q", values, about.Kind, about.Name, want[0])
			}
		}
	}
}

// TestNamesThatYAMLReadsOtherwiseAreTexts renders names that are a number or a boolean without quotes, and no startup probe.
func TestNamesThatYAMLReadsOtherwiseAreTexts(t *testing.T) {
	for _, name := range []string{"on", "no", "null", "2", "1e3", "y"} {
		got, err := render(t, `{fullnameOverride: mine, nameOverride: "`+name+`", startupProbe: false, nodeGroups: [{name: "`+name+`", nodeSelector: {a: b}}], networkPolicy: {enabled: true}, metrics: {podMonitor: {enabled: true}}}`)
		if err != nil {
			t.Fatal(err)
		}
		decodeStrictly(t, got)
		set := objects[appsv1.DaemonSet](t, got, "DaemonSet")["mine-"+name]
		want := map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/component": name, "app.kubernetes.io/instance": "nri-memory-manager"}
		if difference := cmp.Diff(want, set.Spec.Selector.MatchLabels); difference != "" {
			t.Errorf("name %s: what is wanted (-) and the selector (+) differ:\n%s", name, difference)
		}
		if probe := set.Spec.Template.Spec.Containers[0].StartupProbe; probe != nil {
			t.Errorf("the startup probe is %v, want none", probe)
		}
	}
}

// TestEachNodeRunsOneDaemon asks the scheduler's question of nodes with some labels.
func TestEachNodeRunsOneDaemon(t *testing.T) {
	for affinity, nodes := range map[string]map[string]string{
		"": {"": "nri-memory-manager", "size=large": "nri-memory-manager", "size=small,zone=a": "nri-memory-manager",
			"size=large,zone=a": "nri-memory-manager-large", "gpu=true": "nri-memory-manager-gpu", "gpu=true,zone=a": "nri-memory-manager-gpu",
			"gpu=true,size=large,zone=a": "nri-memory-manager-large"},
		", affinity: {nodeAffinity: null}":                                                   {"": "nri-memory-manager", "size=large,zone=a": "nri-memory-manager-large"},
		", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: null}}": {"": "nri-memory-manager", "gpu=true": "nri-memory-manager-gpu"},
		", affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: Exists}]}, {matchExpressions: [{key: gpu, operator: In, values: [\"true\"]}]}]}}}": {
			"": "", "pool=a": "nri-memory-manager", "gpu=true": "nri-memory-manager-gpu", "gpu=true,pool=a": "nri-memory-manager-gpu",
			"size=large,zone=a": "", "size=large,zone=a,pool=a": "nri-memory-manager-large"},
	} {
		got, err := render(t, strings.TrimSuffix(valueSets["node-groups"], "}")+affinity+"}")
		if err != nil {
			t.Fatal(err)
		}
		sets := objects[appsv1.DaemonSet](t, got, "DaemonSet")
		for text, want := range nodes {
			node, err := labels.ConvertSelectorToLabelsMap(text)
			if err != nil {
				t.Fatal(err)
			}
			node["kubernetes.io/os"] = "linux"
			var runs []string
			for _, name := range slices.Sorted(maps.Keys(sets)) {
				if admits(t, sets[name].Spec.Template.Spec, node) {
					runs = append(runs, name)
				}
			}
			if strings.Join(runs, ",") != want {
				t.Errorf("a node with the labels %q runs %q, want %q%s", text, runs, want, affinity)
			}
		}
	}
}

// admits reports whether a node has the labels that a pod requires.
func admits(t *testing.T, pod corev1.PodSpec, node labels.Set) bool {
	t.Helper()
	if !labels.SelectorFromSet(pod.NodeSelector).Matches(node) {
		return false
	}
	if pod.Affinity == nil || pod.Affinity.NodeAffinity == nil || pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn, corev1.NodeSelectorOpExists: selection.Exists}
	return slices.ContainsFunc(pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			requirement, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
			if err != nil {
				t.Fatal(err)
			}
			return !requirement.Matches(node)
		})
	})
}

// TestNodeGroupsHaveTheirOwnConfiguration looks at what each group's daemon reads, mounts and may do.
func TestNodeGroupsHaveTheirOwnConfiguration(t *testing.T) {
	got, err := render(t, valueSets["node-groups"])
	if err != nil {
		t.Fatal(err)
	}
	everyone, large, gpu := config(t, got, "nri-memory-manager"), config(t, got, "nri-memory-manager-large"), config(t, got, "nri-memory-manager-gpu")
	if !everyone.DryRun() || *everyone.MemoryThrottlingFactor != 0.8 || !everyone.StallGuard || everyone.NodeResourceTopology {
		t.Errorf("nodes of no group have %+v", everyone)
	}
	if large.DryRun() || large.MemoryThrottlingFactor != nil || large.StallGuard || !large.Events || large.KubeReserved["memory"] != "1Gi" {
		t.Errorf("the nodes of large have %+v", large)
	}
	if !gpu.DryRun() || gpu.NodeResourceTopology || !slices.Equal(gpu.RequestSources, []memoryqos.Source{memoryqos.SourceAPIServer}) {
		t.Errorf("the nodes of gpu have %+v", gpu)
	}
	for name, set := range objects[appsv1.DaemonSet](t, got, "DaemonSet") {
		pod, container := set.Spec.Template.Spec, set.Spec.Template.Spec.Containers[0]
		if i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "config" }); pod.Volumes[i].ConfigMap.Name != name {
			t.Errorf("%s reads the ConfigMap %s", name, pod.Volumes[i].ConfigMap.Name)
		}
		if mounts := strings.Contains(fmt.Sprint(container.VolumeMounts), "kubelet-pods-api"); mounts != (name == "nri-memory-manager-large") {
			t.Errorf("%s mounts the kubelet's pod API: %t", name, mounts)
		}
		if own := "--daemonset=kube-system/" + name; !slices.Contains(container.Args, own) {
			t.Errorf("%s has the arguments %q, want %s", name, container.Args, own)
		}
	}
	role := objects[rbacv1.Role](t, got, "Role")["nri-memory-manager"]
	if names := role.Rules[0].ResourceNames; !slices.Equal(names, []string{"nri-memory-manager", "nri-memory-manager-large", "nri-memory-manager-gpu"}) {
		t.Errorf("rights for the DaemonSets %q", names)
	}
}

func compareGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: the output changed; look at it and run: go -C deploy test ./chart -update\n%s", path, got)
	}
}

// decodeStrictly decodes every manifest into its API type; an unknown field is an error.
func decodeStrictly(t *testing.T, manifests string) {
	t.Helper()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	count := 0
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		count++
		if strings.Contains(document, "apiVersion: monitoring.coreos.com/") || strings.Contains(document, "apiVersion: security.openshift.io/") {
			continue // not in Kubernetes' own types
		}
		if _, _, err := strict.Decode([]byte(document), nil, nil); err != nil {
			t.Errorf("%v in:\n%s", err, document)
		}
	}
	if count == 0 {
		t.Error("nothing was rendered")
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	for values, want := range map[string]string{
		`{cgroupDriver: cgroup}`: "cgroupDriver",
		`{updateStrategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}}`: "maxSurge",
		`{nri: {plugin: {index: "9"}}}`:                                       "index",
		`{image: {repository: ""}}`:                                           "repository",
		`{image: {registry: "ghcr.io/"}}`:                                     "registry",
		`{image: {name: example.com/a}}`:                                      "image.registry and image.repository replace it",
		`{nri: {runtime: {configManager: {name: example.com/a}}}}`:            "registry and repository beside it replace it",
		`{nri: {runtime: {configManager: {digest: abc}}}}`:                    "digest",
		`{resource: {}}`:                                            "resource",
		`{metrics: {port: 0}}`:                                      "port",
		`{stateDir: var/lib}`:                                       "stateDir",
		`{metrics: {port: 65536}}`:                                  "/metrics/port",
		`{metrics: {port: "8891"}}`:                                 "/metrics/port",
		`{metrics: {podMonitor: {interval: 0s}}}`:                   "/metrics/podMonitor/interval",
		`{metrics: {serviceMonitor: {interval: 30}}}`:               "/metrics/serviceMonitor/interval",
		`{networkPolicy: {apiServerPorts: []}}`:                     "/networkPolicy/apiServerPorts", // no port would be all ports
		`{networkPolicy: {apiServerPorts: [0]}}`:                    "/networkPolicy/apiServerPorts/0",
		`{networkPolicy: {apiServerPorts: [443, 65536]}}`:           "/networkPolicy/apiServerPorts/1",
		`{startupProbe: {timeoutSeconds: 0}}`:                       "/startupProbe/timeoutSeconds",
		`{livenessProbe: {periodSeconds: 0}}`:                       "/livenessProbe/periodSeconds",
		`{livenessProbe: {failureThreshold: 1.5}}`:                  "/livenessProbe/failureThreshold",
		`{readinessProbe: {initialDelaySeconds: -1}}`:               "/readinessProbe/initialDelaySeconds",
		`{readinessProbe: true}`:                                    "/readinessProbe",
		`{resources: {limits: {memory: 128MB}}}`:                    "/resources/limits/memory",
		`{resources: {limits: {memory: -128Mi}}}`:                   "/resources/limits/memory",
		`{resources: {requests: {cpu: -1}}}`:                        "/resources/requests/cpu",
		`{resources: {requests: {cpu: 10 m}}}`:                      "/resources/requests/cpu",
		`{resources: {limit: {memory: 1Gi}}}`:                       "limit",
		`{updateStrategy: {type: Recreate}}`:                        "/updateStrategy/type",
		`{updateStrategy: {rollingUpdate: {maxUnavailable: 0}}}`:    "/updateStrategy/rollingUpdate/maxUnavailable",
		`{updateStrategy: {rollingUpdate: {maxUnavailable: 0%}}}`:   "/updateStrategy/rollingUpdate/maxUnavailable",
		`{updateStrategy: {rollingUpdate: {maxUnavailable: 101%}}}`: "/updateStrategy/rollingUpdate/maxUnavailable",
		`{updateStrategy: {rollingUpdate: {maxUnavailable: "1"}}}`:  "/updateStrategy/rollingUpdate/maxUnavailable",
		`{terminationGracePeriodSeconds: 0}`:                        "terminationGracePeriodSeconds",
		`{revisionHistoryLimit: -1}`:                                "revisionHistoryLimit",
		`{kubeletPodsSocket: /}`:                                    "kubeletPodsSocket",
		`{kubeletPodsDir: /pods}`:                                   "kubeletPodsDir",
		`{requestSource: kubelet}`:                                  "config.requestSources replaces it",
		`{rollbackOnDelete: true}`:                                  "config.onTermination replaces it",
		`{capabilities: [SYS_ADMIN]}`:                               "securityContext.capabilities.add replaces it",
		`{seLinuxType: spc_t}`:                                      "podSecurityContext.seLinuxOptions.type replaces it",
		`{image: {digest: abc}}`:                                    "digest",

		`{startupProbe: true}`:                                    "at '/startupProbe': value must be false",
		`{extraEnv: [{name: GOGC, value: 50}]}`:                   "at '/extraEnv/0/value': got number, want string",
		`{fullnameOverride: 1e3}`:                                 "/fullnameOverride",
		`{fullnameOverride: "1e3"}`:                               "at '/fullnameOverride': value must be 'a lower-case letter, then",
		`{nodeGroups: [{name: dashboard, nodeSelector: {a: b}}]}`: "and not dashboard, for another ConfigMap has that name",
		`{config: {annotationRules: [{namespaces: [a], priorityClasses: {Db_: first}}]}}`: "at '/config/annotationRules/0/priorityClasses/Db_': value must be 'left out: names of PriorityClasses are such as team-db'",
		`{namespaceOverride: Nodes}`:                                                                               "at '/namespaceOverride': value must be 'lower-case letters",
		`{reloadConfig: "true"}`:                                                                                   "/reloadConfig",
		`{stateDir: /}`:                                                                                            "at '/stateDir': value must be 'the absolute path of a folder without .., and not /'",
		`{metrics: {podMonitor: {interval: 30sec}}}`:                                                               "at '/metrics/podMonitor/interval': value must be 'a time such as 30s'",
		`{metrics: {podMonitor: {scrapeTimeout: 10}}}`:                                                             "/metrics/podMonitor/scrapeTimeout",
		`{metrics: {podMonitor: {relabelings: [{source_labels: [a]}]}}}`:                                           "source_labels",
		`{metrics: {serviceMonitor: {metricRelabelings: [{action: 1}]}}}`:                                          "/metrics/serviceMonitor/metricRelabelings/0/action",
		`{global: {imagePullSecrets: [{secret: a}]}}`:                                                              "/global/imagePullSecrets/0",
		`{imagePullSecrets: [{secret: a}]}`:                                                                        "/imagePullSecrets/0",
		`{global: {imageRegistry: a/}}`:                                                                            "at '/global/imageRegistry': value must be 'a registry without a slash at its ends and without https://",
		`{extraContainers: [{name: side}]}`:                                                                        "missing property 'image'",
		`{extraContainers: [{name: nri-memory-manager, image: a}]}`:                                                "and not nri-memory-manager",
		`{extraContainers: [{name: a, image: a}, {name: a, image: b}]}`:                                            `extraContainers: the name "a" is taken`,
		`{extraVolumes: [{name: config, emptyDir: {}}]}`:                                                           `extraVolumes: the name "config" is taken, by the chart's own or by another of these`,
		`{extraVolumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]}`:                                       `extraVolumes: the name "a" is taken`,
		`{extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: /var/run/nri/}]}`:      `extraVolumeMounts: the mountPath "/var/run/nri" is taken`,
		`{extraVolumeMounts: [{name: state, mountPath: /a}]}`:                                                      `extraVolumeMounts: no entry of extraVolumes has the name "state"`,
		`{kubeletState: /a, nodeGroups: [{name: a, nodeSelector: {a: b}}], extraVolumes: [{name: kubelet-state}]}`: `extraVolumes: the name "kubelet-state" is taken`,
		`{nri: {runtime: {patchConfig: true}}, extraContainers: [{name: enable-nri, image: a}]}`:                   `extraContainers: the name "enable-nri" is taken`,
		`{extraEnv: [{value: a}]}`:                                                                                 "missing property 'name'",
		`{extraVolumeMounts: [{name: a}]}`:                                                                         "missing property 'mountPath'",
		`{securityContextConstraints: {enabled: true}}`:                                                            "enabled",
		`{nodeSelector: {numa: true}}`:                                                                             "at '/nodeSelector/numa': got boolean, want string",
		`{commonLabels: {team: a b}}`:                                                                              "/commonLabels/team",
		`{tolerations: [Exists]}`:                                                                                  "/tolerations/0",
		`{podSecurityContext: {runAsUser: root}}`:                                                                  "/podSecurityContext/runAsUser",
		`{securityContext: {capabilities: [SYS_RESOURCE]}}`:                                                        "/securityContext/capabilities",
		`{dra: {deviceClass: NUMA_memory}}`:                                                                        "/dra/deviceClass",
		`{livenessProbe: {exec: {command: [a]}}}`:                                                                  "at '/livenessProbe/exec': value must be 'left out: a probe here is an httpGet with times and thresholds'",
		`{startupProbe: {tcpSocket: {port: 8891}}}`:                                                                "at '/startupProbe/tcpSocket': value must be 'left out",
		`{readinessProbe: {periodSecond: 5}}`:                                                                      "at '/readinessProbe/periodSecond': value must be 'left out",
		`{livenessProbe: {successThreshold: 2}}`:                                                                   "at '/livenessProbe/successThreshold': value must be 1",
		`{startupProbe: {successThreshold: 2}}`:                                                                    "at '/startupProbe/successThreshold': value must be 1",
		`{readinessProbe: {terminationGracePeriodSeconds: 5}}`:                                                     "at '/readinessProbe/terminationGracePeriodSeconds': value must be 'left out",
		`{securityContext: {privileged: true}}`:                                                                    "at '/securityContext/allowPrivilegeEscalation': value must be 'true, or null: securityContext.privileged is true'",
		`{securityContext: {capabilities: {add: [CAP_SYS_ADMIN]}}}`:                                                "at '/securityContext/capabilities/add/0': value must be 'a capability without CAP_",
		`{podSecurityContext: {runAsNonRoot: true}}`:                                                               "at '/podSecurityContext/runAsNonRoot': value must be 'false: the daemon runs as root'",
		`{securityContext: {seccompProfile: {type: Localhost}}}`:                                                   "at '/securityContext/seccompProfile': missing property 'localhostProfile'",
		`{podSecurityContext: {seccompProfile: {localhostProfile: a}}}`:                                            "at '/podSecurityContext/seccompProfile/localhostProfile': value must be 'left out: type is not Localhost'",
		`{metrics: {podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}}`:                                "at '/metrics/serviceMonitor/enabled': value must be 'false: metrics.podMonitor.enabled is true, and Prometheus would count twice'",
		`{metrics: {podMonitor: {metricRelabelings: [{action: DROP, sourceLabels: [a]}]}}}`:                        "at '/metrics/podMonitor/metricRelabelings/0/action': value must be 'replace, keep, drop,",
		`{metrics: {serviceMonitor: {relabelings: [{replacement: east}]}}}`:                                        "at '/metrics/serviceMonitor/relabelings/0': missing property 'targetLabel'",
		`{resources: {requests: {memory: 256Mi}}}`:                                                                 "resources.requests.memory: 256Mi is above resources.limits.memory, 128Mi",
		`{resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}}`:                                                  "resources.requests.cpu: 2 is above resources.limits.cpu, 1500m",
		`{resources: {claims: [{name: a}]}}`:                                                                       "additional properties 'claims' not allowed",
		`{tolerations: [{operator: Exists, tolerationSeconds: 5}]}`:                                                "at '/tolerations/0': missing property 'effect'",
		`{tolerations: [{key: a, effect: NoSchedule, tolerationSeconds: 5}]}`:                                      "at '/tolerations/0/effect': value must be 'NoExecute'",
		`{tolerations: [{key: a, operator: Exists, value: b}]}`:                                                    "at '/tolerations/0/value': value must be ''",
		`{tolerations: [{key: a, operator: exists}]}`:                                                              "at '/tolerations/0/operator': value must be one of '', 'Exists', 'Equal'",
		`{tolerations: [{effect: NoSchedule}]}`:                                                                    "at '/tolerations/0': missing property 'key'",
		`{tolerations: [{key: a, value: true}]}`:                                                                   "at '/tolerations/0/value': got boolean, want string",
		`{extraEnv: [{name: A, vale: a}]}`:                                                                         "additional properties 'vale' not allowed",
		`{extraEnv: [{name: A=B}]}`:                                                                                "at '/extraEnv/0/name': value must be 'a name without ='",
		`{extraEnv: [{name: A, value: a, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]}`:                     "at '/extraEnv/0/value': value must be ''",
		`{extraEnv: [{name: A, valueFrom: {secretKeyRef: {name: a}}}]}`:                                            "at '/extraEnv/0/valueFrom/secretKeyRef': missing property 'key'",
		`{extraEnv: [{name: A, value: a}, {name: A, value: b}]}`:                                                   `extraEnv: the name "A" is taken`,
		`{extraVolumes: [{name: A, emptyDir: {}}]}`:                                                                "at '/extraVolumes/0/name': value must be 'lower-case letters",
		`{extraVolumes: [{name: a, emptyDir: {}, hostPath: {path: /a}}]}`:                                          "at '/extraVolumes/0': maxProperties",
		`{extraVolumes: [{name: a, secret: {name: a}}]}`:                                                           "at '/extraVolumes/0/secret': missing property 'secretName'",
		`{extraVolumes: [{name: a, configMap: a}]}`:                                                                "at '/extraVolumes/0/configMap': got string",
		`{extraVolumeMounts: [{name: a, mountPath: /a, readonly: true}]}`:                                          "additional properties 'readonly' not allowed",
		`{extraVolumeMounts: [{name: a, mountPath: /a, subPath: ../b}]}`:                                           "at '/extraVolumeMounts/0/subPath': value must be 'a relative path without ..'",
		`{extraVolumeMounts: [{name: a, mountPath: /a, mountPropagation: Both}]}`:                                  "at '/extraVolumeMounts/0/mountPropagation': value must be one of 'None'",
		`{tolerations: [{key: a b}]}`:                                                                              "at '/tolerations/0/key': value must be 'the key of a taint",
		`{nodeSelector: {a b: c}}`:                                                                                 "at '/nodeSelector/a b': value must be 'left out: a key has letters",
		`{podAnnotations: {a b: c}}`:                                                                               "at '/podAnnotations/a b': value must be 'left out: a key has letters",
		`{serviceAccount: {name: My_Account}}`:                                                                     "at '/serviceAccount/name': value must be 'lower-case letters",
		`{priorityClassName: High_Prio}`:                                                                           "at '/priorityClassName': value must be 'lower-case letters",
		`{dra: {deviceClass: a..b}}`:                                                                               "at '/dra/deviceClass': value must be 'lower-case letters",
		`{image: {repository: "example/name:v1"}}`:                                                                 "at '/image/repository': value must be 'a repository such as example/name, without a tag'",
		`{image: {tag: ":v1"}}`:                                                                                    "at '/image/tag': value must be 'a tag such as v1.2.3, or empty'",
		`{nri: {runtime: {configManager: {tag: ""}}}}`:                                                             "at '/nri/runtime/configManager/tag': minLength",
		`{test: {image: " busybox"}}`:                                                                              "at '/test/image': value must be 'an image such as",
		`{nri: {socketDir: /var/../run}}`:                                                                          "at '/nri/socketDir': value must be 'the absolute path of a folder without ..",
		`{kubeletConfig: /var/lib/../k} `:                                                                          "at '/kubeletConfig': value must be 'the absolute path of a file without ..",
		`{updateStrategy: {rollingUpdate: {partition: 1}}}`:                                                        "additional properties 'partition' not allowed",
		`{networkPolicy: {from: [{}]}}`:                                                                            "at '/networkPolicy/from/0': minProperties",
		`{networkPolicy: {from: [{podSelector: {app: a}}]}}`:                                                       "additional properties 'app' not allowed",
		`{networkPolicy: {from: [{ipBlock: {cidr: 10.0.0.0}}]}}`:                                                   "at '/networkPolicy/from/0/ipBlock/cidr': value must be 'a CIDR such as 10.0.0.0/8'",
		`{networkPolicy: {from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}]}}`:                                "at '/networkPolicy/from/0': maxProperties",
		`{affinity: {nodeaffinity: {}}}`:                                                                           "additional properties 'nodeaffinity' not allowed",
		`{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}}`:    "/nodeSelectorTerms': minItems",
		`{image: {registry: "https://ghcr.io"}}`:                                                                   "at '/image/registry': value must be 'a registry without a slash at its ends and without https://",
		`{resources: {limits: {gpu: 1}}}`:                                                                          "at '/resources/limits/gpu': value must be 'left out: a resource is cpu, memory,",

		`{config: {memoryThrottlingFactor: 9}}`:                                            "at '/config/memoryThrottlingFactor': value must be 'more than 0 and at most 1, or null for no memory.high'",
		`{config: {memoryThrottlingFactor: "9"}}`:                                          "at '/config/memoryThrottlingFactor': value must be 'more than 0 and at most 1, or null for no memory.high'",
		`{config: {reservedMemory: abc}}`:                                                  "at '/config/reservedMemory': value must be 'a list of numaNode and limits, or NODE:TYPE=QUANTITY",
		`{config: {kubeReserved: {memroy: 1Gi}}}`:                                          "at '/config/kubeReserved/memroy': value must be 'left out: the names here are cpu, memory, ephemeral-storage, pid or hugepages-<size>'",
		`{config: {memoryThrotlingFactor: 0.8}}`:                                           "memoryThrotlingFactor",
		`{config: {memoryThrottlingFactor: low}}`:                                          "memoryThrottlingFactor",
		`{config: {topologyManagerPolicy: strict}}`:                                        "topologyManagerPolicy",
		`{config: {requestSources: [api]}}`:                                                "requestSources",
		`{config: {onTermination: true}}`:                                                  "onTermination",
		`{config: {events: "true"}}`:                                                       "events",
		`{config: {maxMigrationBytes: 4GB}}`:                                               "/config/maxMigrationBytes",
		`{config: {maxMigrationBytes: -1}}`:                                                "/config/maxMigrationBytes",
		`{config: {stateTolerance: some}}`:                                                 "/config/stateTolerance",
		`{config: {reservedMemory: [{numaNode: 0, limits: {memory: -1Gi}}]}}`:              "/config/reservedMemory/0/limits/memory",
		`{config: {dra: {bytes: 2}}}`:                                                      "bytes",
		`{config: {annotationRules: [{namespace: a}]}}`:                                    "annotationRules",
		`{nodeGroups: [{name: a, config: {}}]}`:                                            "nodeSelector",
		`{nodeGroups: [{name: a, nodeSelector: {}}]}`:                                      "nodeSelector",
		`{nodeGroups: [{name: a, nodeSelector: {a: b}, cgroupDriver: auto}]}`:              "cgroupDriver",
		`{nodeGroups: [{name: a, nodeSelector: {a: b}, config: {dryrun: true}}]}`:          "dryrun",
		`{nodeGroups: [{name: a, nodeSelector: {a: b}}, {name: a, nodeSelector: {a: c}}]}`: `the name "a" is there twice`,
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("values %s: error %v, want one that names %q", values, err, want)
		}
	}
}

// TestTheEndsOfRangesAreAdmitted renders the smallest and the largest of what has a range, and each form of a quantity.
func TestTheEndsOfRangesAreAdmitted(t *testing.T) {
	for _, values := range []string{
		`{metrics: {port: 1}}`, `{metrics: {port: 65535}}`, `{networkPolicy: {enabled: true, apiServerPorts: [1, 65535]}}`,
		`{metrics: {podMonitor: {enabled: true, interval: 1m}}}`, `{metrics: {serviceMonitor: {enabled: true, interval: 500ms}}}`,
		`{metrics: {podMonitor: {relabelings: [{action: Drop, sourceLabels: [a]}, {action: labelkeep, regex: a}, {targetLabel: a, action: HashMod, modulus: 2}]}}}`,
		`{startupProbe: {initialDelaySeconds: 0, periodSeconds: 1, failureThreshold: 1}, livenessProbe: {timeoutSeconds: 1, successThreshold: 1, terminationGracePeriodSeconds: 1}, readinessProbe: {successThreshold: 2, httpGet: {path: /a}}}`,
		`{resources: {requests: {cpu: 1, memory: 134217728}, limits: {cpu: 1.5, memory: 0.5Gi}}}`,
		`{resources: {requests: {cpu: "1", memory: 128e6}, limits: {memory: 1.5G, example.com/device: 1}}}`,
		`{resources: {limits: {memory: null}}}`,
		`{securityContext: {privileged: true, allowPrivilegeEscalation: null, runAsNonRoot: false, seccompProfile: {type: Unconfined}}}`,
		`{image: {registry: "", repository: "Example.com:5000/a__b/c", tag: "v1@sha256:` + strings.Repeat("ab", 32) + `"}, podAnnotations: {Prometheus.io/scrape: "true"}, nodeSelector: {kubernetes.io/os: ""}}`,
		`{tolerations: [{key: a.b/c, operator: Exists, value: "", effect: NoExecute, tolerationSeconds: 5}, {key: a, value: b}], affinity: {podAffinity: null}}`,
		`{networkPolicy: {enabled: true, from: [{podSelector: {}, namespaceSelector: {matchLabels: {a: b}}}, {ipBlock: {cidr: "fd00::/8", except: ["fd00::/16"]}}]}}`,
		`{extraEnv: [{name: a.b, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}], extraVolumes: [{name: a, emptyDir: null}, {name: b}], extraVolumeMounts: [{name: a, mountPath: /a, subPath: b/..c}]}`,
		`{updateStrategy: {rollingUpdate: {maxUnavailable: 1}}}`, `{updateStrategy: {rollingUpdate: {maxUnavailable: 1%}}}`,
		`{updateStrategy: {rollingUpdate: {maxUnavailable: 100%}}}`, `{updateStrategy: {type: OnDelete, rollingUpdate: null}}`,
		`{terminationGracePeriodSeconds: 1, revisionHistoryLimit: 0}`,
	} {
		got, err := render(t, values)
		if err != nil {
			t.Errorf("values %s: %v", values, err)
			continue
		}
		decodeStrictly(t, got)
	}
}

// TestConfigurationOnlyNeedsTheRightsItUses: rights for the API server and the mount of the kubelet's pod API follow from the
// configuration that the daemon reads, however it was set.
func TestConfigurationOnlyNeedsTheRightsItUses(t *testing.T) {
	for values, want := range map[string]struct {
		rights []string
		mount  bool
	}{
		`{}`: {[]string{"pods"}, false},
		`{config: {requestSources: [apiserver]}}`:                                                                   {[]string{"pods"}, false},
		`{config: {requestSources: [kubelet, oomscore]}}`:                                                           {nil, true},
		`{config: {requestSources: [oomscore]}}`:                                                                    {},
		`{config: {requestSources: []}}`:                                                                            {[]string{"pods"}, true},
		`{config: {requestSources: null}}`:                                                                          {[]string{"pods"}, true},
		`{config: {requestSources: [kubelet], events: true}}`:                                                       {[]string{"events"}, true},
		`{config: {requestSources: [oomscore], events: true}}`:                                                      {[]string{"events"}, false},
		`{config: {requestSources: [oomscore], onTermination: Rollback}}`:                                           {[]string{"daemonsets"}, false},
		`{config: {requestSources: [oomscore], onTermination: Keep}}`:                                               {},
		`{config: {requestSources: [oomscore], dra: {enabled: true}}}`:                                              {[]string{"resourceclaims", "resourceslices", "nodes"}, false},
		`{config: {requestSources: [oomscore], dra: {enabled: true}, profile: Observe}}`:                            {[]string{"resourceclaims", "resourceslices", "nodes"}, false}, // pods end
		`{config: {requestSources: [oomscore], evictRejectedAfter: 5m}}`:                                            {[]string{"pods", "pods/eviction"}, false},
		`{config: {requestSources: [oomscore], evictRejectedAfter: 0}}`:                                             {},
		`{config: {requestSources: [oomscore], evictRejectedAfter: 5m, profile: QoS, memoryManagerPolicy: Static}}`: {[]string{"pods", "pods/eviction"}, false},
		`{config: {requestSources: [oomscore], nodeResourceTopology: true}}`:                                        {[]string{"noderesourcetopologies", "nodes"}, false},
		`{config: {requestSources: [oomscore], nodeResourceTopology: true, profile: Observe}}`:                      {},
		`{config: {requestSources: [oomscore], resourceSlices: true}}`:                                              {[]string{"resourceclaims", "resourceslices"}, false},
		`{config: {onTermination: Rollback}, rbac: {create: false}}`:                                                {},
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		var rights []string
		for _, role := range objects[rbacv1.ClusterRole](t, got, "ClusterRole") {
			for _, rule := range role.Rules {
				rights = append(rights, rule.Resources...)
			}
		}
		for _, role := range objects[rbacv1.Role](t, got, "Role") {
			rights = append(rights, role.Rules[0].Resources...)
		}
		if !slices.Equal(rights, want.rights) {
			t.Errorf("values %s: rights for %q, want %q", values, rights, want.rights)
		}
		pod := daemonSet(t, got).Spec.Template.Spec
		if token := *pod.AutomountServiceAccountToken; token != (len(want.rights) > 0) && !strings.Contains(values, "rbac") {
			t.Errorf("values %s: token %t for the rights %q", values, token, rights)
		}
		mounted := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "kubelet-pods-api" })
		argument := strings.Contains(strings.Join(pod.Containers[0].Args, " "), "--kubelet-pods-socket=/host/kubelet-pods-api/")
		if mounted != want.mount || argument != want.mount {
			t.Errorf("values %s: the kubelet's pod API is mounted: %t, and asked: %t; want %t", values, mounted, argument, want.mount)
		}
	}
}

// TestOnlyWhoEvictsMayEvict renders evictRejectedAfter where no container is refused. The daemon starts with a token all the same, for it makes
// its client at its start; one node group that evicts has the right.
func TestOnlyWhoEvictsMayEvict(t *testing.T) {
	const group = `, nodeGroups: [{name: a, nodeSelector: {a: b}, config: {profile: Full}}]}`
	for values, may := range map[string]bool{
		`{config: {requestSources: [oomscore], evictRejectedAfter: 5m, profile: Observe}}`:                                       false,
		`{config: {requestSources: [oomscore], evictRejectedAfter: "-0"}}`:                                                       false,
		`{config: {requestSources: [oomscore], evictRejectedAfter: 5m, profile: QoS}}`:                                           false,
		`{config: {requestSources: [oomscore], evictRejectedAfter: 5m, memoryManagerPolicy: None}}`:                              false,
		`{config: {requestSources: [oomscore], evictRejectedAfter: 5m, profile: NUMA}}`:                                          true,
		`{config: {requestSources: [oomscore], evictRejectedAfter: 5m, profile: Observe}` + group:                                true,
		`{config: {requestSources: [oomscore], profile: Full}` + strings.Replace(group, "}}]", ", evictRejectedAfter: 1h}}]", 1): true,
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		if is := strings.Contains(got, "pods/eviction"); is != may || strings.Contains(got, "kind: ClusterRole\n") != may {
			t.Errorf("values %s: the right to evict: %t, want %t", values, is, may)
		}
		for name, set := range objects[appsv1.DaemonSet](t, got, "DaemonSet") {
			if token := *set.Spec.Template.Spec.AutomountServiceAccountToken; token != (config(t, got, name).EvictRejectedAfter > 0) {
				t.Errorf("values %s: %s has a token: %t", values, name, token)
			}
		}
	}
}

// TestRollbackFollowsFromTheConfiguration has some daemons put their files back when the release is uninstalled: each of them, and no
// other, knows its DaemonSet, and the notes name the others. All may ask, also those that an update has just taken the rollback from:
// who may not ask takes its DaemonSet for deleted.
func TestRollbackFollowsFromTheConfiguration(t *testing.T) {
	const all, large = "nri-memory-manager", "nri-memory-manager-large"
	group := func(config string) string { return `nodeGroups: [{name: large, nodeSelector: {a: b}` + config + `}]` }
	for values, want := range map[string]struct {
		back  []string // they put files back
		notes string
	}{
		`{}`:                                  {nil, "helm uninstall leaves the cgroup files that ds/" + all + " wrote as they are."},
		`{config: {onTermination: Rollback}}`: {[]string{all}, "helm uninstall puts back every cgroup file"},
		`{config: {onTermination: Rollback}, ` + group("") + `}`:                                {[]string{all, large}, "helm uninstall puts back every cgroup file"},
		`{` + group(", config: {onTermination: Rollback}") + `}`:                                {[]string{large}, "that ds/" + all + " wrote"},
		`{config: {onTermination: Rollback}, ` + group(", config: {onTermination: Keep}") + `}`: {[]string{all}, "that ds/" + large + " wrote"},
		`{config: {onTermination: Rollback}, rbac: {create: false}}`:                            {[]string{all}, "a daemon with config.onTermination Rollback takes it for deleted"},
		`{` + group("") + `}`: {nil, "that ds/" + all + " and ds/" + large + " wrote"},
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		var known, rights []string
		sets := objects[appsv1.DaemonSet](t, got, "DaemonSet")
		for name, set := range sets {
			rollsBack := config(t, got, name).OnTermination == ours.RollbackValues
			if knows := slices.Contains(set.Spec.Template.Spec.Containers[0].Args, "--daemonset=kube-system/"+name); knows != rollsBack {
				t.Errorf("values %s: %s puts its files back: %t, and knows its DaemonSet: %t", values, name, rollsBack, knows)
			} else if knows {
				known = append(known, name)
			}
		}
		for _, role := range objects[rbacv1.Role](t, got, "Role") {
			rights = append(rights, role.Rules[0].ResourceNames...)
		}
		slices.Sort(known)
		slices.Sort(rights)
		if !slices.Equal(known, want.back) {
			t.Errorf("values %s: %q know their DaemonSets, want %q", values, known, want.back)
		}
		if units := slices.Sorted(maps.Keys(sets)); len(known) > 0 && !strings.Contains(values, "rbac") && !slices.Equal(rights, units) || len(known) == 0 && len(rights) > 0 {
			t.Errorf("values %s: %q may be asked for, want all of %q where one rolls back", values, rights, units)
		}
		files, err := renderFiles(load(t), read(t, values))
		if err != nil {
			t.Fatal(err)
		}
		if notes := files["nri-memory-manager/templates/NOTES.txt"]; !strings.Contains(notes, want.notes) {
			t.Errorf("values %s: the notes lack %q:\n%s", values, want.notes, notes)
		} else if strings.Contains(notes, "rbac.create is false") != strings.Contains(values, "rbac") || strings.Contains(notes, "helm uninstall puts back") != (len(known) == len(sets)) {
			t.Errorf("values %s: the notes are\n%s", values, notes)
		}
	}
}

// TestSystemdIsMountedWhereItsCgroupDriverIs renders what is mounted below /run on nodes with each cgroup driver: systemd's private
// socket is root on the node.
func TestSystemdIsMountedWhereItsCgroupDriverIs(t *testing.T) {
	const group = `, nodeGroups: [{name: a, nodeSelector: {a: b}, cgroupDriver: `
	for values, want := range map[string]map[string]bool{
		`{}`:                       {"": true},
		`{cgroupDriver: systemd}`:  {"": true},
		`{cgroupDriver: cgroupfs}`: {"": false},
		`{systemdSocket: false}`:   {"": false},
		`{cgroupDriver: cgroupfs` + group + `systemd}]}`:                          {"": false, "-a": true},
		`{cgroupDriver: systemd` + group + `cgroupfs}]}`:                          {"": true, "-a": false},
		`{systemdSocket: false` + group + `systemd}]}`:                            {"": false, "-a": false},
		`{cgroupDriver: cgroupfs, nodeGroups: [{name: a, nodeSelector: {a: b}}]}`: {"": false, "-a": false},
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		sets := objects[appsv1.DaemonSet](t, got, "DaemonSet")
		if len(sets) != len(want) {
			t.Errorf("values %s: %d DaemonSets, want %d", values, len(sets), len(want))
		}
		for unit, mounted := range want {
			pod := sets["nri-memory-manager"+unit].Spec.Template.Spec
			mount := slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/run/systemd" })
			volume := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == "/run/systemd" })
			if mount != mounted || volume != mounted {
				t.Errorf("values %s: nri-memory-manager%s has the volume /run/systemd: %t, and mounts it: %t; want %t", values, unit, volume, mount, mounted)
			}
			without := slices.Contains(pod.Containers[0].Args, "--systemd-socket=")
			if want := strings.Contains(values, "systemdSocket: false"); without != want {
				t.Errorf("values %s: nri-memory-manager%s is to use no socket: %t, want %t", values, unit, without, want)
			}
		}
	}
}

// TestLimitsAreComparedWithClaimsThatTheyContain: a limit does not contain what counts as a request beside it. One node group in which it
// does keeps the policy.
func TestLimitsAreComparedWithClaimsThatTheyContain(t *testing.T) {
	const group = `nodeGroups: [{name: a, nodeSelector: {a: b}, config: {dra: {publishNodeAllocatable: %t}}}]`
	for values, want := range map[string]bool{
		`{config: {dra: {enabled: true}}}`:                                                                  true,
		`{config: {dra: {enabled: true, publishNodeAllocatable: true}}}`:                                    false,
		`{config: {dra: {enabled: true, publishNodeAllocatable: true}}, ` + fmt.Sprintf(group, true) + `}`:  false,
		`{config: {dra: {enabled: true, publishNodeAllocatable: true}}, ` + fmt.Sprintf(group, false) + `}`: true,
		`{config: {dra: {enabled: true}}, dra: {limits: ""}}`:                                               false,
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		for name, is := range map[string]bool{"nri-memory-manager-slices": true, "nri-memory-manager-limits": want} {
			_, policy := objects[admissionv1.ValidatingAdmissionPolicy](t, got, "ValidatingAdmissionPolicy")[name]
			_, binding := objects[admissionv1.ValidatingAdmissionPolicyBinding](t, got, "ValidatingAdmissionPolicyBinding")[name]
			if policy != is || binding != is {
				t.Errorf("values %s: policy %s: %t, binding: %t, want %t", values, name, policy, binding, is)
			}
		}
	}
}

// TestNetworkPolicyAdmitsWhatIsNeeded: connections out only where the API server is used.
func TestNetworkPolicyAdmitsWhatIsNeeded(t *testing.T) {
	for values, want := range map[string]struct{ in, out int }{
		`{networkPolicy: {enabled: true}}`: {0, 2},
		`{networkPolicy: {enabled: true, from: [{podSelector: {matchLabels: {app: prometheus}}}]}}`:                             {2, 2},
		`{networkPolicy: {enabled: true, apiServerPorts: [16443]}, config: {requestSources: [oomscore], events: true}}`:         {0, 1},
		`{networkPolicy: {enabled: true}, config: {requestSources: [kubelet]}}`:                                                 {0, 0},
		`{networkPolicy: {enabled: true}, config: {requestSources: [oomscore]}, nodeGroups: [{name: a, nodeSelector: {a: b}}]}`: {0, 0},
		`{networkPolicy: {enabled: true}, config: {requestSources: [oomscore], onTermination: Rollback}}`:                       {0, 2},
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		policy := objects[networkingv1.NetworkPolicy](t, got, "NetworkPolicy")["nri-memory-manager"].Spec
		if len(policy.PolicyTypes) != 2 || len(policy.Ingress) != 1 || policy.Ingress[0].Ports[0].Port.String() != "metrics" || len(policy.Ingress[0].From) != want.in {
			t.Errorf("values %s: connections in are %+v", values, policy.Ingress)
		}
		ports := 0
		for _, rule := range policy.Egress {
			ports += len(rule.Ports)
		}
		if ports != want.out {
			t.Errorf("values %s: connections out are %+v", values, policy.Egress)
		}
	}
}

// TestMonitoringIsWhatWasTested renders the alerts and the dashboard, which are tested as files, whole and unchanged.
func TestMonitoringIsWhatWasTested(t *testing.T) {
	got, err := render(t, `{metrics: {prometheusRule: {enabled: true, labels: {release: prometheus}}, dashboard: {enabled: true, annotations: {grafana_folder: Nodes}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	type rule struct {
		Kind     string            `json:"kind"`
		Version  string            `json:"apiVersion"`
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     any               `json:"spec"`
	}
	alerts := objects[rule](t, got, "PrometheusRule")["nri-memory-manager"]
	text, err := os.ReadFile(filepath.Join(folder, "files/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want any // with links to the documents of the version
	if err := yaml.Unmarshal(bytes.ReplaceAll(text, []byte("/blob/main/"), []byte("/blob/"+load(t).Metadata.AppVersion+"/")), &want); err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(want, alerts.Spec); difference != "" || alerts.Metadata.Labels["release"] != "prometheus" {
		t.Errorf("labels %v, and the rules of the file (-) and of the PrometheusRule (+) differ:\n%s", alerts.Metadata.Labels, difference)
	}
	dashboard := objects[corev1.ConfigMap](t, got, "ConfigMap")["nri-memory-manager-dashboard"]
	text, err = os.ReadFile(filepath.Join(folder, "files/dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if shown := dashboard.Data["nri-memory-manager.json"]; strings.TrimSpace(shown) != strings.TrimSpace(string(text)) {
		t.Errorf("the dashboard is rendered as\n%s", shown)
	}
	if dashboard.Labels["grafana_dashboard"] != "1" || dashboard.Annotations["grafana_folder"] != "Nodes" {
		t.Errorf("the dashboard has labels %v and annotations %v", dashboard.Labels, dashboard.Annotations)
	}
}

func TestIconIsInTheRepository(t *testing.T) {
	file, found := strings.CutPrefix(load(t).Metadata.Icon, "https://raw.githubusercontent.com/nri-memory-manager/nri-memory-manager/main/")
	if _, err := os.Stat(filepath.Join("../..", file)); err != nil || !found {
		t.Errorf("icon %s: %v", load(t).Metadata.Icon, err)
	}
}

// TestReadme keeps the chart's README: a table of every value with its default and its meaning.
func TestReadme(t *testing.T) {
	var table bytes.Buffer
	table.WriteString(readmeHead)
	for _, v := range documentedValues(t) {
		text, err := json.Marshal(v.value)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", v.path, text, v.description)
	}
	compareGolden(t, filepath.Join(folder, "README.md"), table.String())
}

const readmeHead = `# nri-memory-manager

Kubernetes' Memory Manager and Memory QoS as an NRI plugin.

    helm install nri-memory-manager deploy/helm/nri-memory-manager --namespace kube-system
    helm test nri-memory-manager --namespace kube-system

The values, from values.schema.json:

| value | default | meaning |
| --- | --- | --- |
`
