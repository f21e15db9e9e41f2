package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/utils/cpuset"
)

// sameResolved compares all but where the keys stand in their files.
var sameResolved = cmp.Options{cmpopts.IgnoreUnexported(Config{}), cmp.Comparer(cpuset.CPUSet.Equals)}

var sameAnnotations = cmp.AllowUnexported(PodAnnotations{}, podAnnotation{})

// readBack is a value as its JSON says it.
func readBack[T any](t *testing.T, value T) (back T) {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return back
}

// TestAResolvedConfigurationIsReadBackFromJSON: what it follows from is written, and everything else follows from that again.
func TestAResolvedConfigurationIsReadBackFromJSON(t *testing.T) {
	kubelet := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(kubelet, []byte(`
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
memoryManagerPolicy: Static
cpuManagerPolicy: static
evictionHard: {memory.available: 100Mi}
memorySwap: {swapBehavior: WorkloadControlledSwap}
featureGates: {MemoryQoS: true}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"defaults":       "",
		"migration":      "maxMigrationBytes: 1Pi",
		"no migration":   "maxMigrationBytes: 0",
		"bounded":        "maxMigrationBytes: 1Gi",
		"reserved":       "reservedMemory: 0:memory=1Gi;1:memory=100Mi\nkubeReserved: {memory: 1Gi}\nstateTolerance: auto",
		"none":           "memoryManagerPolicy: None\nmemoryThrottlingFactor: null\nreservedMemory: []",
		"claims":         "dra: {enabled: true, shares: [{numaNode: 1, limits: {memory: 1Gi}}]}",
		"rules":          "annotationRules: [{namespaces: [a-*], allowedAnnotations: [numa], minimumThrottlingFactor: 0.5}]",
		"kubelet":        "topologyManagerPolicy: restricted\nkubeletConfig: " + kubelet,
		"default stands": "evictionHard: {memory.available: 100Mi}",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Files(os.ReadFile).Parse("c.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			r, err := c.Resolve(fuzzMachine())
			if err != nil {
				t.Fatal(err)
			}
			back := readBack(t, r)
			if diff := cmp.Diff(r, back, sameResolved); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if name == "kubelet" && (!back.WorkloadSwap || len(back.Warnings) < 3) {
				t.Errorf("workload swap %t, warnings %q", back.WorkloadSwap, back.Warnings)
			}
		})
	}
	for text, want := range map[string]string{
		`{"Config":{"Pocilies":1}}`:             `json: unknown field "Pocilies"`,
		`{"Config":{}}`:                         `configuration: profile: want Full, NUMA, QoS or Observe, got ""`,
		`{"Machine":{"Nodes":[{"CPUs":"9-"}]}}`: `CPU list "9-" is not in the form 0-3,8`,
	} {
		var r Resolved
		if err := json.Unmarshal([]byte(text), &r); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
	}
}

// TestPodAnnotationsAreReadBackFromJSON has those of one pod of each kind.
func TestPodAnnotationsAreReadBackFromJSON(t *testing.T) {
	many := map[string]string{}
	for i := range mostAnnotations + 1 {
		many["numa"+ours+"/container."+strings.Repeat("c", i+1)] = "none"
	}
	for name, annotations := range map[string]map[string]string{
		"none":     nil,
		"others'":  {"example.com/token": "SECRET"},
		"ranks":    {"numa" + ours: "none", "numa" + ours + "/pod": "required", "numa.memory-manager.nri.io": "preferred"},
		"wrong":    {"numma" + ours: "none", "numa" + ours + "/pot": "none", "memory-high" + ours + "/container.a": "1e99"},
		"long":     {"memory-high" + ours: strings.Repeat("ä", longestValue)},
		"many":     many,
		"too long": {strings.Repeat("k", mostAnnotationBytes) + ours: "none"},
	} {
		read := ReadAnnotations(annotations)
		back := readBack(t, read)
		if diff := cmp.Diff(read, back, sameAnnotations); diff != "" && len(read.all) > 0 {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		wishes, problems := read.Wishes("a", all())
		wishesBack, problemsBack := back.Wishes("a", all())
		if !cmp.Equal(wishes, wishesBack) || !cmp.Equal(problems, problemsBack) || read.Empty() != back.Empty() {
			t.Errorf("%s: %+v %q, read back %+v %q", name, wishes, problems, wishesBack, problemsBack)
		}
	}
}
