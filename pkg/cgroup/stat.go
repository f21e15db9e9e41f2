package cgroup

import (
	"fmt"
	"strconv"
	"strings"
)

// Stat reads memory.stat: bytes, pages scanned and events by name.
func (t *Tree) Stat(cgroup string) (map[string]uint64, error) {
	data, err := t.read(cgroup, "memory.stat")
	if err != nil {
		return nil, err
	}
	stat, err := parseFlat(string(data))
	if err != nil {
		return nil, t.bad(cgroup, "memory.stat", err)
	}
	return stat, nil
}

// parseFlat reads the kernel's "flat keyed" form: a name and a number per line.
func parseFlat(text string) (map[string]uint64, error) {
	counters := make(map[string]uint64, strings.Count(text, "\n"))
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, number, _ := strings.Cut(line, " ")
		v, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %q: want a name and a number", line)
		}
		counters[name] = v
	}
	return counters, nil
}
