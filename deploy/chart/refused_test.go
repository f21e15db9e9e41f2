package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/utils/cpuset"
	"sigs.k8s.io/yaml"

	ours "github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

// keyTexts are configurations in which a value is to be filled in, besides one for each key that has one value.
var keyTexts = []string{
	"annotationRules: [%s]", "annotationRules: [{namespaces: %s}]", "annotationRules: [{namespaces: [%s]}]",
	"annotationRules: [{namespaces: [a], defaults: {numa: %s}}]",
	"annotationRules: [{namespaces: [a], defaults: {nuna: %s}}]", "annotationRules: [{namespaces: [a], defaults: {throttling-factor: %s}}]",
	"annotationRules: [{namespaces: [a], defaults: {memory-high: %s}}]", "annotationRules: [{namespaces: [a], defaults: {oom-score-adj: %s}}]",
	"annotationRules: [{namespaces: [a], defaults: {cache-room: %s}}]", "annotationRules: [{namespaces: [a], defaults: {stall-guard: %s}}]",
	"annotationRules: [{namespaces: [a], allowedAnnotations: %s}]", "annotationRules: [{namespaces: [a], allowedAnnotations: [%s]}]",
	"annotationRules: [{namespaces: [a], priorityClasses: {db: %s}}]", "annotationRules: [{namespaces: [a], priorityClasses: %s}]", "annotationRules: [{namespaces: [a], priorityClasses: {%s: first}}]",
	"annotationRules: [{labels: %s}]", "annotationRules: [{labels: {a: %s}}]", "annotationRules: [{labels: {a: b}, namespaces: %s}]",
	"annotationRules: [{labels: {}, namespaces: %s}]", "annotationRules: [{labels: {a: b}, defaults: %s}]", "annotationRules: [{labels: {a: b}, name: %s}]",
	"annotationRules: [{namespaces: [a], minimumThrottlingFactor: %s}]", "requestSources: [%s]", "requestSources: [swap, %s]",
	"reservedMemory: [%s]", "reservedMemory: [{numaNode: %s, limits: {memory: 1Gi}}]", "reservedMemory: [{numaNode: 0, limits: %s}]",
	"reservedMemory: [{numaNode: 0, limits: {memory: %s}}]", "reservedMemory: [{limits: {hugepages-2Mi: %s}}]", "reservedMemory: [{limits: {cpu: %s}}]",
	"kubeReserved: {memory: %s}", "kubeReserved: {cpu: %s}", "kubeReserved: {hugepages-1Gi: %s}", "systemReserved: {memory: %s}", "systemReserved: {memroy: %s}",
	"evictionHard: {memory.available: %s}", "evictionHard: {nodefs.available: %s}", "evictionHard: {memory.free: %s}",
	"topologyManagerPolicyOptions: {prefer-closest-numa-nodes: %s}", "topologyManagerPolicyOptions: {max-allowable-numa-nodes: %s}",
	"topologyManagerPolicyOptions: {numa-allocation-strategy: %s}", "topologyManagerPolicyOptions: {numa-score-weights: %s}",
	"topologyManagerPolicyOptions: {prefer-closest: %s}", "dra: {enabled: %s}", "dra: {publishNodeAllocatable: %s}", "dra: {shares: %s}", "dra: {shares: [{limits: %s}]}",
	"dra: {shares: [{limits: {memory: %s}}]}", "dra: {shares: [{limits: {cpu: %s}}]}", "dra: {shares: [{numaNode: %s, limits: {memory: 1Gi}}]}", "rebalance: %s",
}

// oddValues are what people write, rightly and wrongly, and what --set makes of that.
var oddValues = []string{
	"-1", "-0", "-0.0", "0", "1", "9", "0.5", "0.51", "1.5", "-0.5", "1e3", "1e-1", "100", "101", "65535", "65536", "true", "abc", "null", "[]", "{}", "[a]", "{a: b}", "[[]]", "[{}]",
	`""`, `"0"`, `"0.0"`, `"0.5"`, `"0.50"`, `"0.51"`, `".5"`, `"1"`, `"1.0"`, `"1.01"`, `"9"`, `"-1"`, `"-0"`, `"+1"`, `"1e-1"`, `"5e-1"`, `"9e-1"`, `"4e-01"`, `"1e1"`, `"0e1"`, `"1e-2"`, `"true"`, `"T"`, `"yes"`, `" 1"`,
	"64Mi", "-64Mi", "1.5Gi", "+1Gi", "1Gi ", "128MB", "1gi", "100m", "1K", "1k", "0Mi", "1E", "2M", "1 Gi", "12e6", "1.5e3",
	"0%", "5%", "5.5%", "100%", "101%", "-5%", "nan%", `"%"`, "off", "auto", "Auto", "nan", ".inf", "0x10", "1_000",
	`"0:memory=1Gi"`, `"0:memory=1Gi;1:memory=2Gi,hugepages-1Gi=1Gi"`, `"0:memory"`, `"0:cpu=1"`, `"0:memory=0"`, `"0:memory=1.5Gi"`, `"x:memory=1Gi"`, `"0:memory=-1Gi"`, `"memory=1Gi"`, `"0:memory=1Gi;"`, `"0:memory=1Gi:1"`,
	`"memory=1"`, `"memory=1, hugepages-1Gi=100"`, `"memory=101"`, `"memory=-1"`, `"=1"`, `"memory"`, `"memory=1,"`, `"memory=1.5"`,
	`"team-*"`, `"Team_A"`, `"team/a"`, `"a-"`, `"v1."`, `"*-?"`, `"["`, `"[a-c]?"`, `"[^a]"`, `"[a"`, `"a\\"`, `"[]a]"`, "kubelet", "swap", "oomscore", "numa", "Static", "static", "None", "restricted", "least-used", "pod", "Full", "Keep", "v1",
}

// stricter matches values that only the chart refuses: no machine has a NUMA node -1, and nobody writes 0 as 0e1 or "-0".
var stricter = regexp.MustCompile(`numaNode: "?-1|"(0e1|-0)"`)

// TestWhatTheDaemonRefusesIsRefused fills odd values into every key, and has the chart's schema and the daemon judge them.
func TestWhatTheDaemonRefusesIsRefused(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	_, definitions, _ := strings.Cut(string(text), schemaOfConfig)
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(`{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"config": {"$ref": "#/definitions/config"}}, "definitions": ` + definitions))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("file:///values.schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("file:///values.schema.json") // once: Helm does so for each rendering
	if err != nil {
		t.Fatal(err)
	}
	texts := keyTexts
	_, config := valuesSchema(t)
	for key := range config.Properties {
		if key != "kubeletConfig" { // any text is a path
			texts = append(texts, key+": %s")
		}
	}
	refused := 0
	for _, text := range texts {
		var admitted []string
		for _, value := range oddValues {
			given := fmt.Sprintf("config: {"+text+"}", value)
			values, err := chartutil.ReadValues([]byte(given))
			if err != nil {
				continue // Helm refuses it
			}
			mapped, err := yaml.Marshal(values["config"])
			if err != nil {
				t.Fatal(err)
			}
			_, byDaemon := ours.Files(nil).Parse("config.yaml", mapped)
			byChart := schema.Validate(values.AsMap())
			switch {
			case byDaemon != nil && byChart == nil:
				admitted = append(admitted, value+" ("+byDaemon.Error()+")")
			case byDaemon == nil && byChart != nil && !stricter.MatchString(given):
				t.Errorf("%s: the daemon takes it, the chart says %v", given, byChart)
			case byDaemon != nil:
				refused++
				if lines := strings.Count(byChart.Error(), "\n- at "); lines > 1 {
					t.Errorf("%s: %d errors, want one:\n%v", given, lines, byChart)
				}
			}
		}
		if len(admitted) > 0 {
			t.Errorf("%s: the daemon refuses, and the chart admits:\n  %s", text, strings.Join(admitted, "\n  "))
		}
	}
	if refused < 1000 {
		t.Errorf("%d values were refused", refused)
	}
}

// TestWhatRunRefusesOfAWholeConfigurationIsRefused has the chart and the daemon, on a machine with two NUMA nodes, judge keys beside each other.
func TestWhatRunRefusesOfAWholeConfigurationIsRefused(t *testing.T) {
	const none = "reservedMemory: no memory is reserved"
	node := func(id int) machine.Node {
		return machine.Node{ID: id, Memory: 16 << 30, CPUs: cpuset.New(id), Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 512}}, Distances: []int{10, 10}}
	}
	m := machine.Machine{Nodes: []machine.Node{node(0), node(1)}, PageSize: 4096, MemTotal: 32 << 30}
	for config, want := range map[string]string{
		`{reservedMemory: "0:memory=1Gi;1:memory=1Gi"}`:                                                                "", // nothing to compare with
		`{kubeReserved: {memory: 1948Mi}, reservedMemory: "0:memory=1Gi;1:memory=1Gi"}`:                                "",
		`{kubeReserved: {memory: 1Gi}, reservedMemory: "0:memory=1Gi;1:memory=1Gi"}`:                                   "the NUMA nodes' memory adds up to 2147483648 bytes, but kubeReserved 1Gi + systemReserved 0 + evictionHard 100Mi = 1178599424 bytes: make them equal",
		`{kubeReserved: {memory: "0"}, reservedMemory: "0:memory=1Gi"}`:                                                "",
		`{evictionHard: {memory.available: 100Mi}, reservedMemory: "0:memory=1Gi"}`:                                    "make them equal",
		`{evictionHard: {memory.available: +1Gi}, reservedMemory: [{numaNode: "0", limits: {memory: 1073741824}}]}`:    "",
		`{evictionHard: {nodefs.available: 5%}, systemReserved: {memory: 1.5G}, reservedMemory: "1:memory=15e8"}`:      "",
		`{evictionHard: {memory.available: 0%}, kubeReserved: {memory: .5Gi}, reservedMemory: "0:memory=512Mi"}`:       "",
		`{evictionHard: {memory.available: 100%}, kubeReserved: {memory: 1Gi}, reservedMemory: "0:memory=512Mi"}`:      "make them equal",
		`{evictionHard: {memory.available: 6.25%}, reservedMemory: "0:memory=2Gi"}`:                                    "", // the machine says
		`{evictionHard: {memory.available: 6.25%}, kubeReserved: {memory: 1Gi}, reservedMemory: "0:memory=512Mi"}`:     "kubeReserved 1Gi + systemReserved 0 + evictionHard 6.25% are more than 1073741824 bytes: make them equal",
		`{evictionHard: {memory.available: 6.25%}, kubeReserved: {memory: 1Gi}, reservedMemory: "0:memory=3Gi"}`:       "",
		`{evictionHard: {memory.available: 6.25%}, reservedMemory: "0:hugepages-2Mi=2Mi"}`:                             none,
		`{evictionHard: null, kubeReserved: {memory: 1Gi}, reservedMemory: "0:memory=1Gi"}`:                            "",
		`{kubeReserved: {hugepages-2Mi: 4Mi}, reservedMemory: "0:memory=100Mi,hugepages-2Mi=2Mi;1:hugepages-2Mi=2Mi"}`: "",
		`{systemReserved: {hugepages-2Mi: 4Mi}, reservedMemory: "0:memory=100Mi,hugepages-2Mi=2Mi"}`:                   "the NUMA nodes' hugepages-2Mi adds up to 2097152 bytes",
		`{reservedMemory: "0:memory=100Mi,hugepages-2Mi=2Mi"}`:                                                         "",
		`{reservedMemory: "0:hugepages-2Mi=2Mi"}`:                                                                      none,
		`{reservedMemory: "", kubeReserved: {memory: 1Gi}}`:                                                            "",
		`{evictionHard: {}}`:                                            none,
		`{evictionHard: {memory.available: 0%}}`:                        none,
		`{evictionHard: {}, memoryManagerPolicy: None}`:                 "",
		`{evictionHard: {}, profile: QoS}`:                              "",
		`{evictionHard: {}, profile: QoS, memoryManagerPolicy: Static}`: none,
		`{reservedMemory: "0:memory=1Gi,memory=2Gi"}`:                   "memory is",
		`{reservedMemory: [{numaNode: 1, limits: {memory: 1Gi}}, {numaNode: "1", limits: {memory: 1Gi}}]}`:                               "reservedMemory: memory is reserved twice for NUMA node 1",
		`{reservedMemory: [{limits: {memory: 1Gi}}, {numaNode: 0, limits: {hugepages-2Mi: 2Mi}}]}`:                                       "",
		`{dra: {enabled: true}, memoryManagerPolicy: None}`:                                                                              "dra.enabled: needs memoryManagerPolicy: Static",
		`{dra: {enabled: true}, profile: QoS}`:                                                                                           "dra.enabled: needs memoryManagerPolicy: Static",
		`{dra: {enabled: true}, profile: QoS, memoryManagerPolicy: Static}`:                                                              "",
		`{annotationRules: [{namespaces: [a]}, {namespaces: [b], minimumThrottlingFactor: 0.9, defaults: {throttling-factor: "5e-1"}}]}`: "annotationRules[1].defaults.throttling-factor: 5e-1 is less than the rule's minimumThrottlingFactor, 0.9",
		`{annotationRules: [{namespaces: [a], minimumThrottlingFactor: "0.9", defaults: {throttling-factor: 0.9}}]}`:                     "",
		`{annotationRules: [{namespaces: [a], minimumThrottlingFactor: 0.9, defaults: {numa: none}}]}`:                                   "",
		`{topologyManagerPolicyOptions: {numa-score-weights: "cpu=1, cpu =2"}}`:                                                          `numa-score-weights: "cpu" is there twice`,
		`{topologyManagerPolicyOptions: {numa-score-weights: "cpu=1,,memory=2, "}}`:                                                      "",
	} {
		for at, values := range map[string]string{"config.": `{config: ` + config + `}`, "nodeGroups, group a: config.": `{nodeGroups: [{name: a, nodeSelector: {a: b}, config: ` + config + `}]}`} {
			if want == "" && at != "config." {
				continue
			}
			_, err := render(t, values)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), at)) {
				t.Errorf("values %s: error %v, want one that says %q", values, err, want)
			}
		}
		c, err := ours.Files(nil).Parse("config.yaml", []byte(config))
		if err == nil {
			_, err = c.Resolve(m)
		}
		if (err == nil) != (want == "") {
			t.Errorf("%s: the daemon says %v, want as the chart", config, err)
		}
	}
}

// TestTheKubeletsConfigurationIsMounted renders paths that the daemon would not find in its pod.
func TestTheKubeletsConfigurationIsMounted(t *testing.T) {
	const mount = `, extraVolumes: [{name: k, hostPath: {path: /etc/k}}], extraVolumeMounts: [{name: k, mountPath: `
	for values, missing := range map[string]string{
		`{kubeletConfig: /var/lib/kubelet/config.yaml}`:                                                  "",
		`{config: {kubeletConfig: /var/lib/kubelet/config.yaml}}`:                                        "config.kubeletConfig: /var/lib/kubelet/config.yaml",
		`{config: {kubeletConfig: /host/kubelet-config.yaml}}`:                                           "config.kubeletConfig: /host/kubelet-config.yaml",
		`{config: {kubeletConfig: kubelet.yaml}}`:                                                        "config.kubeletConfig: kubelet.yaml",
		`{config: {kubeletConfig: /etc/k/kubelet.yaml}` + mount + `/etc/k}]}`:                            "",
		`{config: {kubeletConfig: /etc/k/kubelet.yaml}` + mount + `/etc/k/kubelet.yaml, subPath: a}]}`:   "",
		`{config: {kubeletConfig: /etc/kube.yaml}` + mount + `/etc/k/}]}`:                                "config.kubeletConfig: /etc/kube.yaml",
		`{nodeGroups: [{name: a, nodeSelector: {a: b}, config: {kubeletConfig: /k}}]}`:                   "nodeGroups, group a: config.kubeletConfig: /k",
		`{kubeletConfig: /a, nodeGroups: [{name: a, nodeSelector: {a: b}, config: {profile: Observe}}]}`: "",
	} {
		_, err := render(t, values)
		if want := missing + " is not mounted in the pod: set the value kubeletConfig"; missing == "" && err != nil || missing != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("values %s: error %v, want %q", values, err, missing)
		}
	}
}

// TestResourceSlicesNeedTheirKubernetes renders for clusters before and after the version that serves resource.k8s.io/v1.
func TestResourceSlicesNeedTheirKubernetes(t *testing.T) {
	for version, refused := range map[string]bool{"v1.33.9": true, "v1.34.0-rc.1": false, "v1.34.0": false} {
		_, err := renderFor(version, load(t), read(t, `{config: {resourceSlices: true}}`))
		if want := "config.resourceSlices: needs Kubernetes 1.34, and this is " + version; refused != (err != nil) || refused && !strings.Contains(err.Error(), want) {
			t.Errorf("Kubernetes %s: error %v, want one: %t", version, err, refused)
		}
	}
}

// TestArgumentsAreFlagsOfRun compares what extraArgs admit with the flags in the documents, which are the binary's, and those that it has not shown
// since an earlier release.
func TestArgumentsAreFlagsOfRun(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli/nri-memory-manager_run.md")
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{"record-size", "timings"}
	for _, flag := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z-]+)`).FindAllStringSubmatch(string(text), -1) {
		if flag[1] != "help" {
			flags = append(flags, flag[1])
		}
	}
	slices.Sort(flags)
	values, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	if want := `"^([^-].*|--(` + strings.Join(flags, "|") + `)(=.*)?|-v+)?$"`; len(flags) < 20 || !strings.Contains(string(values), want) {
		t.Errorf("the pattern of extraArgs is not %s", want)
	}
	if _, err := render(t, `{extraArgs: [-vv, --kubeconfig, /etc/api/config, --systemd-socket=, ""]}`); err != nil {
		t.Error(err)
	}
	for _, wrong := range []string{"--kubeconfigs=/a", "--record-sizes", "-kubeconfig=/a", "-x", "--", "--help"} {
		want := "at '/extraArgs/0': value must be 'a flag of run, such as --log-format=json"
		if _, err := render(t, `{extraArgs: ["`+wrong+`"]}`); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that says %q", wrong, err, want)
		}
	}
}

// TestClaimsNeedTheirKubernetes renders for clusters before and after the version whose scheduler counts shares of a device.
func TestClaimsNeedTheirKubernetes(t *testing.T) {
	for version, refused := range map[string]bool{"v1.35.9": true, "v1.36.0-rc.1": false, "v1.36.0": false, "v1.37.2-gke.100": false} {
		_, err := renderFor(version, load(t), read(t, `{config: {dra: {enabled: true}}}`))
		if want := "config.dra.enabled: needs Kubernetes 1.36, and this is " + version; refused != (err != nil) || refused && !strings.Contains(err.Error(), want) {
			t.Errorf("Kubernetes %s: error %v, want one: %t", version, err, refused)
		}
		old := version < "v1.37"
		_, err = renderFor(version, load(t), read(t, `{config: {dra: {enabled: true, publishNodeAllocatable: true}}}`))
		if want := "config.dra.publishNodeAllocatable: needs Kubernetes 1.37, and this is " + version; old != (err != nil) || old && !refused && !strings.Contains(err.Error(), want) {
			t.Errorf("Kubernetes %s: error %v, want one: %t", version, err, old)
		}
		if _, err := renderFor(version, load(t), read(t, `{}`)); err != nil {
			t.Errorf("Kubernetes %s without claims: %v", version, err)
		}
	}
}
