package ledger_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

const (
	document            = "../../docs/differences.md"
	reservedDifferences = "../../testdata/vectors/reserved-differences.jsonl"
)

func writeDifferences(t *testing.T, known map[key]difference) {
	t.Helper()
	order := slices.SortedFunc(maps.Keys(known), func(a, b key) int {
		if a.id != b.id {
			return strings.Compare(a.id, b.id)
		}
		return a.step - b.step
	})
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	for _, k := range order {
		if err := encoder.Encode(known[k]); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(differences, data.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(document, []byte(describe(t, readDifferences(t))), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestDocumentListsAllDifferences keeps docs/differences.md to what the vectors show, no more and no less.
func TestDocumentListsAllDifferences(t *testing.T) {
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if want := describe(t, readDifferences(t)); string(got) != want {
		t.Errorf("%s is not what %s says; run go test ./pkg/ledger -run TestKubeletVectors -update\n%s", document, differences, want)
	}
}

func describe(t *testing.T, known []difference) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# Where we differ from the kubelet

On this page a node is a NUMA node.

- **A rejected pod stays on its machine.** The kubelet's Memory Manager fails the pod (` + "`UnexpectedAdmissionError`" + `), and its controller makes another.
  Here the kubelet has admitted the pod, and the plugin refuses its container: the pod is Pending with ` + "`CreateContainerError`" + `, and the kubelet
  tries again until there is room, or until [` + "`evictRejectedAfter`" + `](troubleshooting.md#a-pod-is-rejected).
- **Memory follows exclusive CPUs** and goes past groups by default (` + "[`onConflict: CPUs`](configuration.md#keys)" + `).
- **The order of OOM kills** can be [configured](oom.md#who-is-killed-first).
- **Containers without an allocation** can be [kept off nodes without CPUs](configuration.md#keys) (` + "`cases.TestOrdinaryPodsKeepOffNodeWithoutCPUs`" + `).
- **[Nodes without memory](devices.md#nodes-without-memory)** are not in the node map.
- **[Memory QoS](kubernetes-versions.md#where-our-memory-qos-values-differ)** has other defaults.

## Recorded decisions

With ` + "`onConflict: Kubelet`" + ` and nodes without memory in the map, every decision of a kubelet 1.36 in ` + "`testdata/vectors`" + ` comes out the same: admitted or
not, the affinity, the blocks, the node map and the state file. In the scenarios of ` + "`differences.jsonl`" + ` the two differ. Where a line says only what
we do, the kubelet does not start. Pods with pod-level resources are compared under PodLevelResourceManagers.

`)
	var reasons []string
	for _, d := range known {
		if !slices.Contains(reasons, d.Reason) {
			reasons = append(reasons, d.Reason)
			fmt.Fprintf(&b, "- %s\n", d.Reason)
		}
	}
	b.WriteString(`
## Reserved memory

Outcomes of ` + "`--reserved-memory` and `reservedMemory`" + ` that are others here:

`)
	var flags byReason
	data, err := os.ReadFile(reservedDifferences)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var record struct {
			Flags  []string
			Reason string
		}
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatalf("%s: %v", reservedDifferences, err)
		}
		if slices.Contains(record.Flags, "") {
			record.Flags = nil // the reason says the same
		}
		flags.add(record.Reason, strings.Join(record.Flags, " "))
	}
	b.WriteString(flags.String())
	return b.String()
}

// byReason has a line for each reason, in the order of their first example.
type byReason struct {
	reasons  []string
	examples map[string][]string
}

func (t *byReason) add(reason, example string) {
	if t.examples == nil {
		t.examples = map[string][]string{}
	}
	if !slices.Contains(t.reasons, reason) {
		t.reasons = append(t.reasons, reason)
	}
	if example != "" {
		t.examples[reason] = append(t.examples[reason], "`"+example+"`")
	}
}

func (t *byReason) String() string {
	var b strings.Builder
	for _, reason := range t.reasons {
		line := strings.TrimSuffix(reason, ".") + ". " + strings.Join(t.examples[reason], ", ")
		fmt.Fprintf(&b, "- %s\n", strings.TrimSpace(line))
	}
	return b.String()
}
