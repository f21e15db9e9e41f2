package chart

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// endpoint is the part of a monitor of the Prometheus operator that can be set.
type endpoint struct {
	Port, Interval, ScrapeTimeout  string
	HonorLabels                    bool
	Relabelings, MetricRelabelings []struct {
		SourceLabels, TargetLabel, Replacement, Action, Regex any
	}
}

type monitor struct {
	APIVersion, Kind string
	Metadata         metav1.ObjectMeta
	Spec             struct {
		Selector                       metav1.LabelSelector
		PodMetricsEndpoints, Endpoints []endpoint
	}
}

// TestMonitorsCanBeTuned keeps the label node, which rules and dashboard need, before what users add.
func TestMonitorsCanBeTuned(t *testing.T) {
	const tuned = `{enabled: true, interval: 1m, scrapeTimeout: 50s, relabelings: [{targetLabel: cluster, replacement: east}], metricRelabelings: [{sourceLabels: [__name__], action: drop, regex: go_.*}]}`
	for values, timeout := range map[string]string{`{enabled: true}`: "", tuned: "50s"} {
		pods, err := render(t, `{metrics: {podMonitor: `+values+`}}`)
		services, other := render(t, `{metrics: {serviceMonitor: `+values+`}}`)
		if err := errors.Join(err, other); err != nil {
			t.Fatal(err)
		}
		endpoints := append(objects[monitor](t, pods, "PodMonitor")["nri-memory-manager"].Spec.PodMetricsEndpoints,
			objects[monitor](t, services, "ServiceMonitor")["nri-memory-manager"].Spec.Endpoints...)
		if len(endpoints) != 2 {
			t.Fatalf("values %s: %d endpoints", values, len(endpoints))
		}
		for _, e := range endpoints {
			if !e.HonorLabels || e.ScrapeTimeout != timeout || e.Relabelings[0].TargetLabel != "node" {
				t.Errorf("values %s: %+v", values, e)
			}
			if timeout != "" && (e.Relabelings[1].TargetLabel != "cluster" || e.MetricRelabelings[0].Action != "drop") {
				t.Errorf("values %s: %+v", values, e)
			}
		}
	}
	for _, name := range []string{"podMonitor", "serviceMonitor"} {
		_, err := render(t, `{metrics: {`+name+`: {enabled: true, interval: 1m, scrapeTimeout: 60001ms}}}`)
		if want := "metrics." + name + ".scrapeTimeout: want at most the interval of 1m, got 60001ms"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
}

// TestTheTestsServiceIsNotScraped has the ServiceMonitor select the Services of a release: each target once.
func TestTheTestsServiceIsNotScraped(t *testing.T) {
	got, err := render(t, `{commonLabels: {team: node}, metrics: {serviceMonitor: {enabled: true}}}`)
	if err != nil {
		t.Fatal(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(new(objects[monitor](t, got, "ServiceMonitor")["nri-memory-manager"].Spec.Selector))
	if err != nil {
		t.Fatal(err)
	}
	for name, service := range objects[corev1.Service](t, got, "Service") {
		if selected := selector.Matches(labels.Set(service.Labels)); selected != (name == "nri-memory-manager") || service.Labels["team"] != "node" {
			t.Errorf("the Service %s is scraped: %t; labels %v", name, selected, service.Labels)
		}
	}
}

// TestEverythingIsInTheNamespaceThatIsChosen looks for the release's in every object and argument.
func TestEverythingIsInTheNamespaceThatIsChosen(t *testing.T) {
	got, err := render(t, strings.TrimSuffix(valueSets["everything"], "}")+`, namespaceOverride: nodes, securityContextConstraints: {create: true}}`)
	if err != nil {
		t.Fatal(err)
	}
	if again := strings.Count(got, "kube-system"); again > 0 || strings.Count(got, "namespace: nodes") < 8 || !strings.Contains(got, "system:serviceaccount:nodes:") {
		t.Errorf("the release's namespace is named %d times", again)
	}
}

func TestSecretsForRegistries(t *testing.T) {
	for values, want := range map[string][]string{
		`{}`:                                   nil,
		`{global: {}}`:                         nil,
		`{global: {imagePullSecrets: null}}`:   nil,
		`{global: {imagePullSecrets: [a, b]}}`: {"a", "b"},
		`{global: {imagePullSecrets: [{name: a}], other: 1}, imagePullSecrets: [{name: b}, c]}`: {"b", "c", "a"},
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		for what, pod := range map[string]corev1.PodSpec{"the daemon": daemonSet(t, got).Spec.Template.Spec,
			"the test": objects[corev1.Pod](t, got, "Pod")["nri-memory-manager-test"].Spec} {
			var names []string
			for _, secret := range pod.ImagePullSecrets {
				names = append(names, secret.Name)
			}
			if !slices.Equal(names, want) {
				t.Errorf("values %s: %s has the secrets %q, want %q", values, what, names, want)
			}
		}
	}
}

// TestEachImageIsOfTheGlobalRegistry leaves repository, tag and digest.
func TestEachImageIsOfTheGlobalRegistry(t *testing.T) {
	for values, want := range map[string][]string{
		`image: {tag: v1}`: {"docker.io/library/busybox:1.37", "ghcr.io/containers/nri-plugins/nri-config-manager:v0.10.1", "ghcr.io/nri-memory-manager/nri-memory-manager:v1"},
		`image: {tag: v1}, global: {imageRegistry: null}`: {"docker.io/library/busybox:1.37", "ghcr.io/containers/nri-plugins/nri-config-manager:v0.10.1",
			"ghcr.io/nri-memory-manager/nri-memory-manager:v1"},
		`image: {tag: v1, registry: mine}, test: {image: a/busybox}, global: {imageRegistry: "mirror:5000/all"}`: {"mirror:5000/all/a/busybox",
			"mirror:5000/all/containers/nri-plugins/nri-config-manager:v0.10.1", "mirror:5000/all/nri-memory-manager/nri-memory-manager:v1"},
		`image: {tag: v1}, global: {imageRegistry: mirror}`: {"mirror/containers/nri-plugins/nri-config-manager:v0.10.1", "mirror/library/busybox:1.37", "mirror/nri-memory-manager/nri-memory-manager:v1"},
	} {
		got, err := render(t, `{nri: {runtime: {patchConfig: true}}, `+values+`}`)
		if err != nil {
			t.Fatal(err)
		}
		var images []string
		for _, image := range regexp.MustCompile(`(?m)^ +(?:- )?image: "?([^"\n]*)`).FindAllStringSubmatch(got, -1) {
			images = append(images, image[1])
		}
		if slices.Sort(images); !slices.Equal(images, want) {
			t.Errorf("%s: images %q, want %q", values, images, want)
		}
	}
}

func TestContainersCanBeAdded(t *testing.T) {
	got, err := render(t, `{extraContainers: [{name: side, image: busybox, args: [sleep]}], nodeGroups: [{name: a, nodeSelector: {a: b}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	decodeStrictly(t, got)
	for name, set := range objects[appsv1.DaemonSet](t, got, "DaemonSet") {
		if containers := set.Spec.Template.Spec.Containers; len(containers) != 2 || containers[0].Name != "nri-memory-manager" || containers[1].Image != "busybox" {
			t.Errorf("%s has the containers %+v", name, containers)
		}
	}
}

// TestBothWaysRunOnOpenShift compares the SecurityContextConstraints and the SELinux type of the chart and of the overlay openshift.
func TestBothWaysRunOnOpenShift(t *testing.T) {
	rendered, err := render(t, `{securityContextConstraints: {create: true}}`)
	if err != nil {
		t.Fatal(err)
	}
	built := build(t, "overlays/openshift")
	constraints := func(manifests string) map[string]any {
		c := objects[map[string]any](t, manifests, "SecurityContextConstraints")["nri-memory-manager"]
		delete(c, "metadata")
		return c
	}
	if difference := cmp.Diff(constraints(rendered), constraints(built)); difference != "" {
		t.Errorf("the chart's (-) and the overlay's (+) differ:\n%s", difference)
	}
	if difference := cmp.Diff(daemonSet(t, rendered).Spec.Template.Spec, daemonSet(t, built).Spec.Template.Spec); difference != "" {
		t.Errorf("the pods of the chart (-) and of the overlay (+) differ:\n%s", difference)
	}
	more, err := render(t, `{securityContextConstraints: {create: true}, securityContext: {capabilities: {add: [SYS_RESOURCE]}},
extraVolumes: [{name: a, emptyDir: {}}, {name: b, hostPath: {path: /a}}], podSecurityContext: {seLinuxOptions: {type: mine}}}`)
	if err != nil {
		t.Fatal(err)
	}
	c := constraints(more)
	if difference := cmp.Diff([]any{c["allowedCapabilities"], c["volumes"]}, []any{[]any{"SYS_RESOURCE"}, []any{"configMap", "emptyDir", "hostPath", "projected", "secret"}}); difference != "" {
		t.Errorf("what the pod needs besides: %s", difference)
	}
	patching, err := render(t, `{securityContextConstraints: {create: true}, nri: {runtime: {patchConfig: true}}, podSecurityContext: {
seccompProfile: {type: Localhost, localhostProfile: a.json}, seLinuxOptions: {type: mine}}}`)
	if err != nil {
		t.Fatal(err)
	}
	c = constraints(patching)
	if difference := cmp.Diff([]any{c["allowPrivilegedContainer"], c["readOnlyRootFilesystem"], c["requiredDropCapabilities"], c["seccompProfiles"], c["seLinuxContext"]},
		[]any{true, false, []any{}, []any{"localhost/a.json"}, map[string]any{"type": "MustRunAs", "seLinuxOptions": map[string]any{"type": "mine"}}}); difference != "" {
		t.Errorf("what a privileged init container and its own profiles need: %s", difference)
	}
	open, err := render(t, `{securityContextConstraints: {create: true}, securityContext: {privileged: true, allowPrivilegeEscalation: null, readOnlyRootFilesystem: false}}`)
	if err != nil {
		t.Fatal(err)
	}
	c = constraints(open)
	if c["allowPrivilegedContainer"] != true || c["allowPrivilegeEscalation"] != true || c["readOnlyRootFilesystem"] != false {
		t.Errorf("a privileged daemon, whose root file system is writable, may have %v", c)
	}
	if got := daemonSet(t, more).Spec.Template.Spec.SecurityContext.SELinuxOptions.Type; got != "mine" {
		t.Errorf("the SELinux type is %s, want the user's", got)
	}
}

// TestTheOlderRuntimeGetsTheSameSettings compares the drop-ins of containerd, which refuses the version of a newer one.
func TestTheOlderRuntimeGetsTheSameSettings(t *testing.T) {
	settings := func(path string) string {
		return strings.Join(regexp.MustCompile(`(?m)^ *[^ #\n][^#\n]*`).FindAllString(contents(t, path), -1), "\n")
	}
	older, newer := settings("deploy/runtime/containerd-1.7.toml"), settings("deploy/runtime/containerd.toml")
	if want := strings.Replace(newer, "version = 3", "version = 2", 1); older != want || newer == want {
		t.Errorf("containerd 1.7 gets\n%s\nwant\n%s", older, want)
	}
	for path, key := range map[string]string{"containerd.toml": "plugin", "containerd-1.7.toml": "plugin", "crio.conf": "nri_plugin"} {
		for _, line := range []string{key + `_registration_timeout = "5s"`, key + `_request_timeout = "2s"`} {
			if !strings.Contains(settings("deploy/runtime/"+path), line) {
				t.Errorf("%s lacks %s", path, line)
			}
		}
	}
}

var aKey = regexp.MustCompile(`\b[a-z]+(?:[A-Z][a-zA-Z]*|(?:\.[a-z][a-zA-Z]*)+)\b`)

// TestArtifactHubNamesKeysThatThereAre looks up each key that the changes name in the schema, which knows removed ones, too.
func TestArtifactHubNamesKeysThatThereAre(t *testing.T) {
	schema, config := valuesSchema(t)
	about := schema.Properties["config"]
	about.Properties = config.Properties
	schema.Properties["config"] = about
	var changes []struct{ Description string }
	if err := yaml.Unmarshal([]byte(load(t).Metadata.Annotations["artifacthub.io/changes"]), &changes); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, change := range changes {
		for _, path := range aKey.FindAllString(change.Description, -1) {
			found++
			at, known := schema, true
			for key := range strings.SplitSeq(path, ".") {
				if at, known = at.Properties[key]; !known {
					t.Errorf("the values have no %s: %s", path, change.Description)
					break
				}
			}
		}
	}
	if found < 8 {
		t.Errorf("%d keys were found", found)
	}
}
