package machine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// mostCPUs is the largest CONFIG_NR_CPUS of the kernel.
const mostCPUs = 8192

// ParseCPUs reads a list of CPUs in the kernel's format ("0-3,8"). A short text can name any number of CPUs, so their number
// is bounded before the set is made.
func ParseCPUs(list string) (cpuset.CPUSet, error) {
	number := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		low, _ := strconv.Atoi(first) // what is no number is left to the parser below
		high, _ := strconv.Atoi(last)
		if low >= mostCPUs || high >= mostCPUs {
			return cpuset.CPUSet{}, fmt.Errorf("CPU list %s: CPU ids end at %d", strictyaml.Quote(list), mostCPUs-1)
		}
		if number += max(high-low, 0) + 1; number > mostCPUs {
			return cpuset.CPUSet{}, fmt.Errorf("CPU list %s: more than %d CPUs", strictyaml.Quote(list), mostCPUs)
		}
	}
	cpus, err := cpuset.Parse(list)
	if err != nil {
		return cpuset.CPUSet{}, fmt.Errorf("CPU list %s is not in the form 0-3,8", strictyaml.Quote(list))
	}
	return cpus, nil
}

// NodesOfCPUs returns the NUMA nodes of a list of CPUs in the kernel's format ("0-3,8"), as a container's cpuset.cpus has
// it. An empty list has no nodes. A CPU that no node has is an error.
func (m Machine) NodesOfCPUs(list string) (nodeset.Set, error) {
	counts, err := m.CPUsByNode(list)
	return nodeset.Of(slices.Collect(maps.Keys(counts))...), err
}

// CPUsByNode returns how many CPUs of such a list each NUMA node has; nodes without any are left out.
func (m Machine) CPUsByNode(list string) (map[int]int, error) {
	wanted, err := ParseCPUs(strings.TrimSpace(list))
	if err != nil {
		return nil, err
	}
	counts := map[int]int{}
	for _, node := range m.Nodes {
		if here := wanted.Intersection(node.CPUs); !here.IsEmpty() {
			counts[node.ID] = here.Size()
			wanted = wanted.Difference(here)
		}
	}
	if !wanted.IsEmpty() {
		return nil, fmt.Errorf("CPU list %s: no NUMA node has CPU %s", strictyaml.Quote(list), wanted)
	}
	return counts, nil
}
