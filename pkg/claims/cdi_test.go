package claims

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

func TestSpecification(t *testing.T) {
	claim := Claim{UID: "8f3e-1", Namespace: "ns", Name: "claim", Pods: []string{"pod"}, Parts: []Part{
		{Request: "mem", Node: 1, Amounts: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 2 << 20}, {Type: memorymanager.Memory, Bytes: gi}}},
		{Request: "more", Node: 0, Amounts: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 2 * gi}}},
	}}
	text, err := Specification(claim, "driver.example.com")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"cdiVersion":"0.6.0","kind":"driver.example.com/numa-memory","annotations":{"memory.noderesource.dev/claim":"…"},"devices":[` +
		`{"name":"8f3e-1-0","containerEdits":{"env":["NUMA_MEMORY_CLAIM_8F3E_1_0=numa-1:hugepages-2Mi=2Mi,memory=1Gi"]}},` +
		`{"name":"8f3e-1-1","containerEdits":{"env":["NUMA_MEMORY_CLAIM_8F3E_1_1=numa-0:memory=2Gi"]}}]}`
	before, after, _ := strings.Cut(string(text), `"{`)
	_, after, _ = strings.Cut(after, `}"`)
	if got := before + `"…"` + after; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got, err := ReadSpecification(text, claim.UID)
	if diff := cmp.Diff(claim, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

func TestBadSpecifications(t *testing.T) {
	annotated := func(text string) string {
		return `{"annotations":{"memory.noderesource.dev/claim":"` + strings.ReplaceAll(text, `"`, `\"`) + `"}}`
	}
	const at = "annotations[memory.noderesource.dev/claim]"
	for name, test := range map[string]struct{ text, want string }{
		"no JSON":       {"{", "unexpected end of JSON input"},
		"no claim":      {`{"annotations":{"a":"b"}}`, "annotations has no memory.noderesource.dev/claim"},
		"no JSON of it": {annotated("{"), at + ": unexpected end of JSON input"},
		"another's":     {annotated(`{"UID":"b","Parts":[{}]}`), at + `.UID is "b", want the file's "a"`},
		"no device":     {annotated(`{"UID":"a"}`), at + ".Parts is missing"},
		"NUMA node":     {annotated(`{"UID":"a","Parts":[{},{"Node":64}]}`), at + ".Parts[1].Node is 64, want 0 to 63"},
		"below zero":    {annotated(`{"UID":"a","Parts":[{"Node":-1}]}`), at + ".Parts[0].Node is -1, want 0 to 63"},
	} {
		if _, err := ReadSpecification([]byte(test.text), "a"); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}
