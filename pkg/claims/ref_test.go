package claims

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRefs(t *testing.T) {
	const uid = "8f3e2b6a-0b1c-4c7e-9d55-6a1b2c3d4e5f"
	ref := Ref{uid, 12}
	device := "memory.noderesource.dev/" + Class + "=" + ref.device()
	for name, test := range map[string]struct {
		devices, environment []string
		want                 []Ref
	}{
		"a device":          {[]string{"nvidia.com/gpu=0", device}, nil, []Ref{ref}},
		"the environment":   {nil, []string{"PATH=/bin", ref.variable() + "=numa-0"}, []Ref{ref}},
		"both":              {[]string{device}, []string{Ref{"other", 1}.variable() + "=numa-1"}, []Ref{ref}},
		"twice":             {[]string{device, device}, nil, []Ref{ref}},
		"another class":     {[]string{"memory.noderesource.dev/gpu=" + ref.device()}, nil, nil},
		"no part":           {[]string{"a/" + Class + "=abc", "a/" + Class + "=abc-x", "a/" + Class}, []string{variablePrefix + "=1", variablePrefix}, nil},
		"a path":            {[]string{"a/" + Class + "=../../etc-0"}, nil, nil},
		"a part beyond any": {[]string{"a/" + Class + "=abc-65536"}, nil, nil},
		"nothing":           {},
	} {
		if diff := cmp.Diff(test.want, Refs(test.devices, test.environment)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// manyRefs are more parts of claims than a container may name.
func manyRefs(number int) (refs []Ref) {
	for i := range number {
		refs = append(refs, Ref{fmt.Sprintf("none-%d", i), 0})
	}
	return refs
}

func TestRefsStopAtTheFirstOneTooMany(t *testing.T) {
	var variables, twice []string
	for _, ref := range manyRefs(10_000) {
		variables = append(variables, ref.variable()+"=")
		twice = append(twice, variables[0], strings.Repeat("A", 100)+"=", variablePrefix+strings.Repeat("A", 100)+"_0=")
	}
	if refs := Refs(nil, variables); len(refs) != MaxRefs+1 {
		t.Errorf("%d are returned, want %d", len(refs), MaxRefs+1)
	}
	if refs := Refs(nil, twice); len(refs) != 1 {
		t.Errorf("%v are returned, want one", refs)
	}
	few := testing.AllocsPerRun(10, func() { Refs(nil, variables[:MaxRefs+1]) })
	if all := testing.AllocsPerRun(10, func() { Refs(nil, variables) }); all > 2*few {
		t.Errorf("10,000 variables take %v allocations, %d take %v", all, MaxRefs+1, few)
	}
}
