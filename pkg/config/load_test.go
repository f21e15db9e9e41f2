package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// sameConfig compares configurations; where their values came from is left aside, and an empty list is none.
var sameConfig = cmp.Options{cmpopts.IgnoreUnexported(Config{}), cmpopts.IgnoreFields(Config{}, "Origin"), cmpopts.EquateEmpty()}

// keys lists a struct's keys as paths, in order.
func keys(t reflect.Type, prefix string) []string {
	var all []string
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("yaml")
		if name == "" || name == "-" {
			continue
		}
		switch kind := t.Field(i).Type; {
		case kind.Kind() == reflect.Struct:
			all = append(all, keys(kind, prefix+name+".")...)
		case kind == reflect.TypeFor[[]AnnotationRule]():
			all = append(all, prefix+name)
			all = append(all, keys(kind.Elem(), prefix+name+"[].")...)
		default:
			all = append(all, prefix+name)
		}
	}
	return all
}

func TestSampleHasEveryKeyWithItsDefault(t *testing.T) {
	const path = "../../deploy/config.yaml"
	c, err := Files(os.ReadFile).Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), c, sameConfig); diff != "" {
		t.Errorf("the sample differs from the defaults (-default +sample):\n%s", diff)
	}
	for _, key := range keys(reflect.TypeFor[Config](), "") {
		if !strings.Contains(key, "[]") && !c.places.doc.Has(key) {
			t.Errorf("the sample lacks %s", key)
		}
	}
}

func TestDocumentationHasEveryKeyInOrder(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Keys\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^- \\*?`([^`]+)`").FindAllStringSubmatch(table, -1) {
		documented = append(documented, row[1])
	}
	if diff := cmp.Diff(keys(reflect.TypeFor[Config](), ""), documented); diff != "" {
		t.Errorf("keys of the configuration and of its documentation (-configuration +documentation):\n%s", diff)
	}
}

func TestMarshalIsReadBack(t *testing.T) {
	changed := Default()
	changed.MemoryThrottlingFactor = nil
	changed.OnUnsatisfiable = Reject
	changed.ReservedMemory = ReservedMemory{{0, map[string]ReservedBytes{"memory": 3 << 30, "hugepages-2Mi": 2 << 20}}}
	changed.KubeReserved = map[string]string{"cpu": "4", "memory": "4Gi"}
	changed.RequestSources = []memoryqos.Source{memoryqos.SourceKubelet}
	changed.AnnotationRules = []AnnotationRule{{Name: "t", Labels: map[string]string{"app": "*"}, Defaults: map[Annotation]string{AnnotationStallGuard: "off"}, Namespaces: []string{"team-*"}, AllowedAnnotations: []Annotation{AnnotationNUMA}, MinimumThrottlingFactor: 0.25}}
	changed.DRA = claims.Config{Enabled: true, Shares: []claims.NodeShare{{Limits: map[string]claims.Share{"memory": "1Gi"}}}}
	changed.MaxMigrationBytes = 4 << 30
	for name, c := range map[string]Config{"defaults": Default(), "changed": changed} {
		text, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := Files(nil).Parse(name, text)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if diff := cmp.Diff(c, back, sameConfig); diff != "" {
			t.Errorf("%s (-want +got):\n%s\nfrom\n%s", name, diff, text)
		}
	}
}

func TestEmptyFileIsTheDefault(t *testing.T) {
	c, err := Files(nil).Parse("c.yaml", []byte("# nothing\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), c, sameConfig); diff != "" {
		t.Errorf("(-default +got):\n%s", diff)
	}
}

// TestEveryChoiceAndRangeIsChecked gives each key with a list of names or a range, which the schema of the chart has too, a value that it must not
// hold.
func TestEveryChoiceAndRangeIsChecked(t *testing.T) {
	wrong := map[string]string{}
	for path := range Choices() {
		wrong[path] = "zzz"
	}
	for path := range Ranges() {
		wrong[path] = "99"
	}
	for path, value := range wrong {
		err := parseAt(path, value)
		if err != nil && strings.Contains(err.Error(), "want a mapping") {
			err = parseAt(path, "{"+value+": 1}")
		}
		if err == nil || !strings.Contains(err.Error(), value) {
			t.Errorf("%s: %s: error %v, want one about %s: validate.go has to check it", path, value, err, value)
		}
	}
}

// parseAt parses a configuration with one key, given by its path with [] for an item of a list.
func parseAt(path, value string) error {
	keys := strings.Split(path, ".")
	slices.Reverse(keys)
	for _, key := range keys {
		name, isList := strings.CutSuffix(key, "[]")
		if isList {
			value = "[" + value + "]"
		}
		value = "{" + name + ": " + value + "}"
	}
	_, err := Files(nil).Parse("c.yaml", []byte(value))
	return err
}

func TestFileThatCannotBeRead(t *testing.T) {
	_, err := Files(os.ReadFile).Load(filepath.Join(t.TempDir(), "absent"))
	if err == nil || !strings.HasPrefix(err.Error(), "read the configuration: open ") {
		t.Errorf("error = %v", err)
	}
}

func TestBadConfigurationIsOneClearError(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"unknown field":           {"profile: Observe\nmemoryThrotlingFactor: 1", `c.yaml:2: unknown field "memoryThrotlingFactor", did you mean "memoryThrottlingFactor"?`},
		"option at the top":       {"numa-score-weights: memory=1", `c.yaml:1: unknown field "numa-score-weights": it belongs in topologyManagerPolicyOptions`},
		"the kubelet's key":       {"cpuManagerPolicy: static", `c.yaml:1: unknown field "cpuManagerPolicy": it is the kubelet's: set it there; what it assigns is followed, see onConflict`},
		"feature gates":           {"featureGates: {MemoryQoS: true}", `c.yaml:1: unknown field "featureGates": it is the kubelet's, and none is needed here`},
		"the kubelet's CPUs":      {"reservedSystemCPUs: 0-1", `c.yaml:1: unknown field "reservedSystemCPUs": it is the kubelet's: set it there, and for simulate in the machine file`},
		"a gate as a key":         {"memoryQoS: true", `c.yaml:1: unknown field "memoryQoS": use memoryReservationPolicy and memoryThrottlingFactor`},
		"the chart's values":      {"config: {profile: NUMA}\nnodeGroups: []", "c.yaml:1: unknown field \"config\": it is of the Helm chart's values: give what is below it; c.yaml:2: unknown field \"nodeGroups\": it is of the Helm chart's values"},
		"the kubelet's file":      {kubeletHead + "address: 0.0.0.0\nport: 10250\nreservedMemory: [{numaNode: 7}]", "c.yaml:2: kind: want MemoryManagerConfiguration, got the kubelet's: name its file in kubeletConfig of one of ours"},
		"failure policy":          {"failurePolicy: ignore", `c.yaml:1: failurePolicy: want Ignore or Fail, got "ignore", did you mean "Ignore"?`},
		"failure policy empty":    {"failurePolicy: ''", `c.yaml:1: failurePolicy: want Ignore or Fail, got ""`},
		"a pod":                   {"kind: Pod", `c.yaml:1: kind: want MemoryManagerConfiguration, got "Pod"`},
		"another version":         {"apiVersion: v1", `c.yaml:1: apiVersion: want memory-manager.noderesource.dev/v1alpha1, got "v1"`},
		"null as a choice":        {"nodesWithoutCPUs: null", "c.yaml:1: nodesWithoutCPUs: want Exclude, Include or Confine, got nothing"},
		"null by policy":          {"onUnsatisfiable:", "c.yaml:1: onUnsatisfiable: want Reject or Unpinned, got nothing"},
		"a list as a choice":      {"logLevel: [info]", "c.yaml:1: logLevel: want error, warning, info, debug or trace, got a list"},
		"null in a list":          {"requestSources: [null]", "c.yaml:1: requestSources[0]: want kubelet, apiserver, unified, annotation, swap or oomscore, got nothing"},
		"null as a default":       {"annotationRules:\n- namespaces: [a]\n  defaults: {numa: null}", "c.yaml:3: annotationRules[0].defaults.numa: want none, preferred or required, got nothing"},
		"null as a duration":      {"evictRejectedAfter: null", `c.yaml:1: evictRejectedAfter: want 0, or a duration from 30s to 9999h such as 5m, got ""`},
		"null as a quantity":      {"maxMigrationBytes: null", `c.yaml:1: maxMigrationBytes: "" is not a quantity such as 64Mi, 2G or 4096`},
		"null as a tolerance":     {"stateTolerance: null", `c.yaml:1: stateTolerance: want auto or a quantity such as 128Mi, got ""`},
		"null as a path":          {"kubeletConfig: null", "c.yaml:1: kubeletConfig: want a text, got nothing"},
		"profile":                 {"profile: Numa", `c.yaml:1: profile: want Full, NUMA, QoS or Observe, got "Numa", did you mean "NUMA"?`},
		"tab":                     {"dra:\n  enabled: true\n\tshares: []", "c.yaml:3: column 1: a TAB character; indent with spaces"},
		"unknown field below":     {"dra:\n  share: []", `c.yaml:2: dra: unknown field "share", did you mean "shares"?`},
		"moves":                   {"rebalance:\n  deficits: On", `c.yaml:1: unknown field "rebalance": ` + replaced["rebalance"]},
		"wrong type":              {"events: maybe", `c.yaml:1: events: want true or false, got "maybe"`},
		"list for a policy":       {"memoryManagerPolicy: [Static]", "c.yaml:1: memoryManagerPolicy: want Static or None, got a list"},
		"factor 0":                {"memoryThrottlingFactor: 0", "c.yaml:1: memoryThrottlingFactor: want more than 0 and at most 1, or null for no memory.high, got 0"},
		"factor -1":               {"memoryThrottlingFactor: -1", "c.yaml:1: memoryThrottlingFactor: want more than 0 and at most 1, or null for no memory.high, got -1"},
		"factor 1.1":              {"memoryThrottlingFactor: 1.1", "c.yaml:1: memoryThrottlingFactor: want more than 0 and at most 1, or null for no memory.high, got 1.1"},
		"factor NaN":              {"memoryThrottlingFactor: .nan", `c.yaml:1: memoryThrottlingFactor: want a number, got ".nan"`},
		"factor a text":           {"memoryThrottlingFactor: high", `c.yaml:1: memoryThrottlingFactor: want a number, got "high"`},
		"cache room":              {"cacheRoom: 0.6", "c.yaml:1: cacheRoom: want 0 to 0.5, the share of a limit between memory.high and memory.max, got 0.6"},
		"headroom 1":              {"guaranteedHeadroom: 1", "c.yaml:1: guaranteedHeadroom: want 0 or more and less than 1, got 1"},
		"memory policy":           {"memoryManagerPolicy: static", `c.yaml:1: memoryManagerPolicy: want Static or None, got "static", did you mean "Static"?`},
		"topology policy":         {"topologyManagerPolicy: strict", `c.yaml:1: topologyManagerPolicy: want none, best-effort, restricted or single-numa-node, got "strict", did you mean "restricted"?`},
		"conflict":                {"onConflict: cpus", `c.yaml:1: onConflict: want Kubelet, CPUs or Devices, got "cpus", did you mean "CPUs"?`},
		"scope":                   {"topologyManagerScope: node", `c.yaml:1: topologyManagerScope: want container or pod, got "node"`},
		"option unknown":          {"topologyManagerPolicyOptions: {prefer-closest: true}", `c.yaml:1: topologyManagerPolicyOptions: unknown option "prefer-closest", did you mean "prefer-closest-numa-nodes"?`},
		"option far off":          {"topologyManagerPolicyOptions: {strict: true}", `c.yaml:1: topologyManagerPolicyOptions: unknown option "strict"; want prefer-closest-numa-nodes, max-allowable-numa-nodes, numa-allocation-strategy or numa-score-weights`},
		"option value":            {"topologyManagerPolicyOptions: {prefer-closest-numa-nodes: perhaps}", `c.yaml:1: topologyManagerPolicyOptions.prefer-closest-numa-nodes: want true or false, got "perhaps"`},
		"option number":           {"topologyManagerPolicyOptions: {max-allowable-numa-nodes: -1}", `c.yaml:1: topologyManagerPolicyOptions.max-allowable-numa-nodes: want a number of nodes, got "-1"`},
		"option strategy":         {"topologyManagerPolicyOptions: {numa-allocation-strategy: most}", `c.yaml:1: topologyManagerPolicyOptions.numa-allocation-strategy: want none, most-allocated, least-allocated or least-used, got "most"`},
		"option weight":           {"topologyManagerPolicyOptions: {numa-score-weights: 'cpu=1,memory=101'}", `c.yaml:1: topologyManagerPolicyOptions.numa-score-weights: want RESOURCE=WEIGHT, comma-separated, with whole weights from 0 to 100, got "memory=101"`},
		"option negative weight":  {"topologyManagerPolicyOptions: {numa-score-weights: memory=-1}", `c.yaml:1: topologyManagerPolicyOptions.numa-score-weights: want RESOURCE=WEIGHT, comma-separated, with whole weights from 0 to 100, got "memory=-1"`},
		"option weight of none":   {"topologyManagerPolicyOptions: {numa-score-weights: =1}", `c.yaml:1: topologyManagerPolicyOptions.numa-score-weights: want RESOURCE=WEIGHT, comma-separated, with whole weights from 0 to 100, got "=1"`},
		"option no weight":        {"topologyManagerPolicyOptions: {numa-score-weights: memory}", `c.yaml:1: topologyManagerPolicyOptions.numa-score-weights: want RESOURCE=WEIGHT, comma-separated, with whole weights from 0 to 100, got "memory"`},
		"option weight twice":     {"topologyManagerPolicyOptions: {numa-score-weights: 'cpu=1,cpu=2'}", `c.yaml:1: topologyManagerPolicyOptions.numa-score-weights: "cpu" is there twice`},
		"unsatisfiable":           {"onUnsatisfiable: Ignore", `c.yaml:1: onUnsatisfiable: want Reject or Unpinned, got "Ignore"`},
		"nodes without CPUs":      {"nodesWithoutCPUs: true", `c.yaml:1: nodesWithoutCPUs: want Exclude, Include or Confine, got "true"`},
		"reserved text":           {"reservedMemory: 0:memory", `c.yaml:1: reservedMemory: reserved memory "0:memory": want TYPE=QUANTITY, got "memory"`},
		"reserved zero text":      {`reservedMemory: "0:memory=0"`, "c.yaml:1: reservedMemory[0].limits.memory: reserved memory may not be zero for NUMA node 0"},
		"reserved zero":           {"reservedMemory:\n- numaNode: 1\n  limits: {memory: 0}", "c.yaml:3: reservedMemory[0].limits.memory: reserved memory may not be zero for NUMA node 1"},
		"reserved negative":       {"reservedMemory:\n- numaNode: 0\n  limits:\n    memory: -1Gi", `c.yaml:4: reservedMemory[0].limits.memory: "-1Gi" is negative`},
		"reserved overflow":       {"reservedMemory: [{numaNode: 0, limits: {memory: 9223372036854775808}}]", `c.yaml:1: reservedMemory[0].limits.memory: "9223372036854775808" is more than a signed 64-bit number of bytes`},
		"reserved fraction":       {"reservedMemory: [{numaNode: 0, limits: {memory: 0.5}}]", `c.yaml:1: reservedMemory[0].limits.memory: "0.5" is not a whole number of bytes`},
		"reserved one and half":   {"reservedMemory: [{numaNode: 0, limits: {memory: 1.5Gi}}]", `c.yaml:1: reservedMemory[0].limits.memory: "1.5Gi" is not a whole number with a unit: write 1536Mi`},
		"reserved twice":          {"reservedMemory:\n- {numaNode: 0, limits: {memory: 1Gi}}\n- {numaNode: 0, limits: {memory: 1Gi}}", "c.yaml:3: reservedMemory[1].limits.memory: memory is reserved twice for NUMA node 0"},
		"reserved type":           {"reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]", `c.yaml:1: reservedMemory[0].limits: "cpu" is neither memory nor hugepages-<size>`},
		"reserved without limit":  {"reservedMemory: [{numaNode: 0}]", "c.yaml:1: reservedMemory[0]: limits is missing: want an amount of memory or hugepages-<size>"},
		"reserved node a text":    {"reservedMemory: [{numaNode: zero}]", `c.yaml:1: reservedMemory[0].numaNode: want a whole number, got "zero"`},
		"kube resource":           {"kubeReserved: {memroy: 1Gi}", `c.yaml:1: kubeReserved: unknown resource "memroy", did you mean "memory"?`},
		"kube negative":           {"kubeReserved: {memory: -1Gi}", `c.yaml:1: kubeReserved.memory: "-1Gi" is negative`},
		"system fraction":         {"systemReserved: {memory: 100m}", `c.yaml:1: systemReserved.memory: "100m" is not a whole number of bytes`},
		"system huge pages":       {"systemReserved: {hugepages-2Mi: many}", `c.yaml:1: systemReserved.hugepages-2Mi: "many" is not a quantity such as 64Mi, 2G or 4096`},
		"kube resource far off":   {"kubeReserved: {nvidia.com/gpu: 1}", `c.yaml:1: kubeReserved: unknown resource "nvidia.com/gpu"; want cpu, memory, ephemeral-storage, pid or hugepages-<size>`},
		"eviction signal":         {"evictionHard: {memory.free: 1Gi}", `c.yaml:1: evictionHard: unknown signal "memory.free"; want memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree, containerfs.available, containerfs.inodesFree, pid.available or allocatableMemory.available`},
		"eviction zero":           {"evictionHard: {memory.available: 0}", `c.yaml:1: evictionHard.memory.available: want more than 0, or "0%" for no threshold`},
		"eviction quantity":       {"evictionHard: {memory.available: 1GB}", `c.yaml:1: evictionHard.memory.available: "1GB" is not a quantity such as 64Mi, 2G or 4096`},
		"eviction percentage":     {"evictionHard: {memory.available: 101%}", `c.yaml:1: evictionHard.memory.available: want a quantity such as 100Mi or a percentage from 0% to 100%, got "101%"`},
		"eviction NaN":            {"evictionHard: {memory.available: nan%}", `c.yaml:1: evictionHard.memory.available: want a quantity such as 100Mi or a percentage from 0% to 100%, got "nan%"`},
		"reservation policy":      {"memoryReservationPolicy: Hard", `c.yaml:1: memoryReservationPolicy: want None, TieredReservation or HardReservation, got "Hard"`},
		"source":                  {"requestSources:\n- kubelet\n- etcd", `c.yaml:3: requestSources[1]: want kubelet, apiserver, unified, annotation, swap or oomscore, got "etcd"`},
		"source twice":            {"requestSources: [kubelet, kubelet]", "c.yaml:1: requestSources[1]: kubelet is there twice"},
		"rule without namespace":  {"annotationRules: [{allowedAnnotations: []}]", "c.yaml:1: annotationRules[0]: namespaces and labels are missing: want names or patterns such as team-*"},
		"rule pattern":            {"annotationRules: [{namespaces: ['[ab]*']}]", `c.yaml:1: annotationRules[0].namespaces[0]: want a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?, got "[ab]*"`},
		"rule backslash":          {"annotationRules: [{namespaces: ['a\\*']}]", `c.yaml:1: annotationRules[0].namespaces[0]: want a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?, got "a\\*"`},
		"rule upper case":         {"annotationRules: [{namespaces: ['Team-a']}]", `c.yaml:1: annotationRules[0].namespaces[0]: want a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?, got "Team-a"`},
		"rule underscore":         {"annotationRules: [{namespaces: ['team_*']}]", `c.yaml:1: annotationRules[0].namespaces[0]: want a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?, got "team_*"`},
		"rule folder":             {"annotationRules: [{namespaces: ['team/*']}]", `c.yaml:1: annotationRules[0].namespaces[0]: want a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?, got "team/*"`},
		"rule hyphen":             {"annotationRules: [{namespaces: ['-a']}]", `c.yaml:1: annotationRules[0].namespaces[0]: want a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?, got "-a"`},
		"rule empty":              {"annotationRules: [{namespaces: ['']}]", `c.yaml:1: annotationRules[0].namespaces[0]: want a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?, got ""`},
		"rule newline":            {`annotationRules: [{namespaces: ["a\n"]}]`, `c.yaml:1: annotationRules[0].namespaces[0]: want a name or a pattern such as team-*, of a-z, 0-9, - and the wildcards * and ?, got "a\n"`},
		"rule annotation":         {"annotationRules: [{namespaces: [a], allowedAnnotations: [x]}]", `c.yaml:1: annotationRules[0].allowedAnnotations[0]: want throttling-factor, memory-high, cache-room, reservation, numa, stall-guard, memory-policy, oom-group or oom-score-adj, got "x"`},
		"rule label":              {"annotationRules:\n- labels:\n    app: '['", `c.yaml:3: annotationRules[0].labels.app: want a value or a pattern such as *, of letters, digits, -, _, . and the wildcards * and ?, got "["`},
		"rule label's end":        {"annotationRules:\n- labels:\n    app: v1.", `c.yaml:3: annotationRules[0].labels.app: want a value or a pattern such as *, of letters, digits, -, _, . and the wildcards * and ?, got "v1."`},
		"default unknown":         {"annotationRules: [{namespaces: [a], defaults: {nuna: none}}]", `c.yaml:1: annotationRules[0].defaults: unknown annotation "nuna", did you mean "numa"?`},
		"default wrong":           {"annotationRules:\n- namespaces: [a]\n  defaults:\n    numa: always", `c.yaml:4: annotationRules[0].defaults.numa: Unsupported value: "always": supported values: "none", "preferred", "required"`},
		"default below minimum":   {"annotationRules: [{namespaces: [a], minimumThrottlingFactor: 0.5, defaults: {throttling-factor: 0.4}}]", `c.yaml:1: annotationRules[0].defaults.throttling-factor: Invalid value: "0.4": must be at least 0.5, the minimumThrottlingFactor of the rule`},
		"class of the node's own": {"annotationRules:\n- namespaces: [a]\n  priorityClasses:\n    db: -1000", `c.yaml:4: annotationRules[0].priorityClasses.db: must be first, last or a whole number from -997 to 1000, got "-1000"`},
		"class that is no name":   {"annotationRules: [{namespaces: [a], priorityClasses: {Bad_Name: first}}]", `c.yaml:1: annotationRules[0].priorityClasses: want names of PriorityClasses such as team-db, got "Bad_Name"`},
		"default order":           {"annotationRules: [{namespaces: [a], defaults: {oom-score-adj: never}}]", `c.yaml:1: annotationRules[0].defaults.oom-score-adj: Invalid value: "never": must be first, last or a whole number from -997 to 1000`},
		"rule factor":             {"annotationRules: [{namespaces: [a], minimumThrottlingFactor: -1}]", "c.yaml:1: annotationRules[0].minimumThrottlingFactor: want 0 to 1, got -1"},
		"bad annotation":          {"onBadAnnotation: Fail", `c.yaml:1: onBadAnnotation: want Ignore or Reject, got "Fail"`},
		"tolerance":               {"stateTolerance: -64Mi", `c.yaml:1: stateTolerance: "-64Mi" is negative`},
		"no tolerance":            {"stateTolerance: off", `c.yaml:1: stateTolerance: want auto or a quantity such as 128Mi, got "off"`},
		"bytes":                   {"maxMigrationBytes: -1", `c.yaml:1: maxMigrationBytes: "-1" is negative`},
		"log level":               {"logLevel: loud", `c.yaml:1: logLevel: want error, warning, info, debug or trace, got "loud"`},
		"long value":              {"memoryManagerPolicy: " + strings.Repeat("x", 100), `c.yaml:1: memoryManagerPolicy: want Static or None, got "` + strings.Repeat("x", 80) + `"…`},
		"two documents":           {"profile: Observe\n---\nprofile: Full", "c.yaml:2: second document: only one is read"},
		"not YAML":                {"events: [", "c.yaml:1: did not find expected node content"},
		"kubelet absent":          {"kubeletConfig: absent.yaml", "c.yaml:1: kubeletConfig: open absent.yaml: no such file or directory"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Files(os.ReadFile).Parse("c.yaml", []byte(tc.text)); err == nil || err.Error() != tc.want {
				t.Errorf("error = %v\nwant    %s", err, tc.want)
			}
		})
	}
}

func TestATextWithoutFilesTakesOverNone(t *testing.T) {
	const want = "c.yaml:2: kubeletConfig: no file is read for this text"
	if _, err := Files(nil).Parse("c.yaml", []byte("profile: Observe\nkubeletConfig: kubelet.yaml")); err == nil || err.Error() != want {
		t.Errorf("error = %v\nwant    %s", err, want)
	}
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	c := Default()
	if c.MemoryManagerPolicy != "Static" || c.TopologyManagerPolicy != topologymanager.BestEffort || c.TopologyManagerScope != topologymanager.ContainerScope ||
		*c.MemoryThrottlingFactor != 0.9 || c.MemoryReservationPolicy != memoryqos.TieredReservation {
		t.Errorf("defaults = %+v", c)
	}
}
