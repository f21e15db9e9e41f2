package memorymanager_test

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
		t.Errorf("%s is not what %s says; run go test ./pkg/memorymanager -run TestKubeletVectors -update\n%s", document, differences, want)
	}
}

func describe(t *testing.T, known []difference) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# Where we differ from the kubelet

Every decision of a kubelet 1.36 that was recorded in ` + "`testdata/vectors`" + ` comes out the same here: admitted or not, the
affinity, the blocks, the node map and the state file. Pods with pod-level resources are compared under the feature gate
PodLevelResourceManagers, without the steps whose answer later releases mend: there the sets ` + "`next-*`" + ` have the later rule. All
sets are compared under ` + "`onConflict: Kubelet`" + `, which also puts a container whose CPUs or devices are on one node of a group on
that node alone. The default puts it on the whole group, so that groups do not overlap.
The exceptions are deliberate. Each line is one recorded scenario
with the steps where our answer is another one; the expected answers stand in ` + "`testdata/vectors/differences.jsonl`" + `.
A test writes this page and compares it.

| scenario | steps | why ours is another answer |
| --- | --- | --- |
`)
	for len(known) > 0 {
		first := known[0]
		var steps []string
		for len(known) > 0 && known[0].ID == first.ID {
			step := "start"
			if known[0].Step >= 0 {
				step = fmt.Sprint(known[0].Step + 1)
			}
			steps = append(steps, step)
			known = known[1:]
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", first.ID, strings.Join(steps, ", "), first.Reason)
	}
	b.WriteString(`
## Reserved memory

Of the recorded outcomes of ` + "`--reserved-memory` and `reservedMemory`" + ` these are others here; both outcomes stand in
` + "`testdata/vectors/reserved-differences.jsonl`, and pkg/config's test holds ours to them" + `.

| record | flags | why ours is another answer |
| --- | --- | --- |
`)
	data, err := os.ReadFile(reservedDifferences)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var record struct {
			Record int
			Flags  []string
			Reason string
		}
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatalf("%s: %v", reservedDifferences, err)
		}
		fmt.Fprintf(&b, "| %d | `%s` | %s |\n", record.Record, strings.Join(record.Flags, " "), record.Reason)
	}
	return b.String()
}
