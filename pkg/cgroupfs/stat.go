package cgroupfs

import (
	"fmt"
	"strconv"
	"strings"
)

// This file does not use github.com/containerd/cgroups/v3/cgroup2, because its StatFiltered
//   - returns zeros for a cgroup that has ended or cannot be read, which would look like a container without memory;
//   - has neither memory.numa_stat nor workingset_refault_file and _anon;
//   - follows symbolic links out of kubepods, and cannot read a folder in place of a kernel;
//   - reads all memory files at once: 208 allocations, and 4 to 11 times the time (BenchmarkSample);
//   - links cilium/ebpf into the binary: 20 packages and 1.0 MB. The hierarchy's mode alone (modeOf) costs 2 packages and 4 KB.

// Stat reads memory.stat: bytes, pages scanned and events by name.
func (t *Tree) Stat(cgroup string) (map[string]uint64, error) {
	return parse(t, cgroup, "memory.stat", parseFlat)
}

// CPUStat reads cpu.stat, which does not need the cpu controller: microseconds and events by name.
func (t *Tree) CPUStat(cgroup string) (map[string]uint64, error) {
	return parse(t, cgroup, "cpu.stat", parseFlat)
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
