package machine

import (
	"os"
	"strings"
	"testing"
)

func TestNodesOfCPUs(t *testing.T) {
	data, err := os.ReadFile("../../testdata/machines/four-unequal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m, err := parse("four-unequal.yaml", data)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ list, nodes, err string }{
		"one node":     {"2-3", "0", ""},
		"two nodes":    {"15,16\n", "0-1", ""},
		"gap in ids":   {"0,40", "0,4", ""},
		"none":         {"", "", ""},
		"absent":       {"0,48", "", `CPU list "0,48": no NUMA node has CPU 48`},
		"not a list":   {"a", "", `CPU list "a" is not in the form 0-3,8`},
		"hostile":      {"0-4294967295", "", `CPU list "0-4294967295": CPU ids end at 8191`},
		"many ranges":  {"0-8000,0-8000", "", `CPU list "0-8000,0-8000": more than 8192 CPUs`},
		"long":         {strings.Repeat("0,", 200) + "x", "", `CPU list "` + strings.Repeat("0,", 40) + `"… is not in the form 0-3,8`},
		"control text": {"0\x00\n1", "", `CPU list "0\x00\n1" is not in the form 0-3,8`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			nodes, err := m.NodesOfCPUs(tc.list)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Errorf("error = %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil || nodes.String() != tc.nodes {
				t.Errorf("nodes of %q = %s, %v, want %s", tc.list, nodes, err, tc.nodes)
			}
		})
	}
}
