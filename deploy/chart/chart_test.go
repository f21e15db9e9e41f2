// Package chart tests the Helm chart and the kustomizations: they hold no code of their own.
package chart

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

const folder = "../helm/nri-memory-manager"

var update = flag.Bool("update", false, "write the golden files and the chart's README anew")

// valueSets are what users set, and what must come out.
var valueSets = map[string]string{
	"default":      `{}`,
	"kubelet":      `{requestSource: kubelet, systemdSocket: false, kubeletConfig: /var/lib/kubelet/config.yaml}`,
	"kubelet-root": `{requestSource: kubelet, kubeletPodsSocket: /data/kubelet/pods-api/pods.sock}`,
	"no-sources":   `{requestSource: none, rollbackOnDelete: true, seLinuxType: spc_t, config: {memoryThrottlingFactor: 0.8}}`,
	"everything": `{events: true, nodeResourceTopology: true, logLevel: debug, capabilities: [SYS_RESOURCE], nri: {runtime: {patchConfig: true}},
metrics: {podMonitor: {enabled: true, labels: {release: prometheus}}, serviceMonitor: {enabled: true}},
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
	parsed, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	loaded := load(t)
	toRender, err := chartutil.ToRenderValues(loaded, parsed,
		chartutil.ReleaseOptions{Name: "nri-memory-manager", Namespace: "kube-system", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(loaded, toRender)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(files[name]) != "" {
			fmt.Fprintf(&out, "---\n# Source: %s\n%s\n", name, strings.TrimSpace(files[name]))
		}
	}
	return out.String(), nil
}

func TestLint(t *testing.T) {
	linter := lint.All(folder, map[string]interface{}{}, "kube-system", true)
	for _, message := range linter.Messages {
		if message.Severity > support.InfoSev {
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
		`{requestSource: api}`:          "requestSource",
		`{nri: {plugin: {index: "9"}}}`: "index",
		`{image: {name: ""}}`:           "name",
		`{resource: {}}`:                "resource",
		`{metrics: {port: 0}}`:          "port",
		`{stateDir: var/lib}`:           "stateDir",
		`{rollbackOnDelete: "yes"}`:     "rollbackOnDelete",
		`{kubeletPodsSocket: /}`:        "kubeletPodsSocket",
		`{kubeletPodsDir: /pods}`:       "kubeletPodsDir",
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("values %s: error %v, want one that names %q", values, err, want)
		}
	}
}

func TestConfigurationOnlyNeedsTheRightsItUses(t *testing.T) {
	for values, want := range map[string]string{
		`{requestSource: none}`:                             "",
		`{requestSource: kubelet}`:                          "",
		`{requestSource: apiserver}`:                        "resources: [pods]",
		`{requestSource: kubelet, events: true}`:            "resources: [events]",
		`{requestSource: none, rollbackOnDelete: true}`:     "resourceNames: [nri-memory-manager]",
		`{requestSource: none, nodeResourceTopology: true}`: "resources: [noderesourcetopologies]",
	} {
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		if want == "" && (strings.Contains(got, "ClusterRole") || strings.Contains(got, "automountServiceAccountToken: true")) {
			t.Errorf("values %s: rights for the API server though it is not used:\n%s", values, got)
		}
		if !strings.Contains(got, want) {
			t.Errorf("values %s: %q is missing", values, want)
		}
	}
}

// TestReadme keeps the chart's README: a table of every value with its default and its meaning.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema property
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	table.WriteString(readmeHead)
	rows(&table, "", schema, map[string]any(load(t).Values))
	compareGolden(t, filepath.Join(folder, "README.md"), table.String())
}

const readmeHead = `# nri-memory-manager

Kubernetes' Memory Manager and Memory QoS as an NRI plugin.

    helm install nri-memory-manager deploy/helm/nri-memory-manager --namespace kube-system

The values, from values.schema.json:

| value | default | meaning |
| --- | --- | --- |
`

type property struct {
	Description string
	Properties  map[string]property
}

func rows(out *bytes.Buffer, prefix string, p property, defaults map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		child := p.Properties[name]
		value, ok := defaults[name]
		if !ok {
			continue
		}
		if inner, isMap := value.(map[string]any); isMap && len(child.Properties) > 0 {
			rows(out, prefix+name+".", child, inner)
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(out, "| `%s%s` | `%s` | %s |\n", prefix, name, text, child.Description)
	}
}
