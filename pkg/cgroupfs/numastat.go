package cgroupfs

import (
	"fmt"
	"strconv"
	"strings"
)

// NUMAStat reads memory.numa_stat: bytes by kind ("anon", "file", …) and NUMA node (kernel 5.10; nil on one without NUMA).
func (t *Tree) NUMAStat(cgroup string) (map[string]map[int]uint64, error) {
	stat, err := parse(t, cgroup, "memory.numa_stat", parseNUMAStat)
	if t.Lacks(cgroup, err) {
		return nil, nil
	}
	return stat, err
}

// parseNUMAStat reads lines like "anon N0=4096 N1=0".
func parseNUMAStat(text string) (map[string]map[int]uint64, error) {
	stat := make(map[string]map[int]uint64, strings.Count(text, "\n"))
	for line := range strings.Lines(text) {
		kind, nodes, _ := strings.Cut(strings.TrimSpace(line), " ")
		stat[kind] = map[int]uint64{}
		for field := range strings.FieldsSeq(nodes) {
			id, bytes, _ := strings.Cut(field, "=")
			node, err := strconv.ParseUint(strings.TrimPrefix(id, "N"), 10, 31)
			v, err2 := strconv.ParseUint(bytes, 10, 64)
			if err != nil || err2 != nil || id[0] != 'N' {
				return nil, fmt.Errorf("line %q: want N<node>=<bytes>, not %q", strings.TrimSpace(line), field)
			}
			stat[kind][int(node)] = v
		}
	}
	return stat, nil
}
