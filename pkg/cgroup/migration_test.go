package cgroup

import (
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// The comments are the kernel's: do_migrate_pages in mm/mempolicy.c.
func TestMigrationFollowsTheKernel(t *testing.T) {
	for name, test := range map[string]struct {
		from, to string
		want     string
	}{
		"narrower":                          {"0-1", "0", "2 from node 1 to node 0"},
		"wider":                             {"0", "0-1", "nothing"},
		"to another node":                   {"0", "1", "1 from node 0 to node 1"},
		"the same":                          {"0-1", "0-1", "nothing"},
		"as many, and one stays in its set": {"0-1", "1-2", "3 from nodes 0-1 to nodes 1-2"}, // each keeps its relative place
		"from four to two":                  {"0-3", "2-3", "3 from nodes 0-1 to nodes 2-3"},
		"from one to two others":            {"3", "0-1", "8 from node 3 to node 0"},
		"outside of what it may use":        {"0", "1-2", "1 from node 0 to node 1"},
		"no nodes":                          {"0", "", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			from, _ := nodeset.Parse(test.from)
			to, _ := nodeset.Parse(test.to)
			moves := Mapped{Nodes: from, Bytes: map[int]uint64{0: 1, 1: 2, 2: 4, 3: 8}}.Migration(to)
			got := moves.String()
			if moves.Bytes == 0 {
				got = "nothing"
			}
			if got != test.want {
				t.Errorf("%s is moved, want %s", got, test.want)
			}
		})
	}
}
