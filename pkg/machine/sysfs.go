package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// This is a small reader of our own, in the habit of prometheus/procfs, which has no per-node meminfo. jaypipes/ghw was
// compared: its usable memory of a node is the same MemTotal to the byte, but it looks at every nodeN folder instead of the
// online nodes, wants each node's caches and memory blocks too, and where one cannot be read it warns and returns fewer
// nodes. Here a node that cannot be read must be an error: a short node map would place containers wrongly.

// Read reads a machine from the kernel, /sys and /proc on a living node. An empty procRoot takes the sum of the nodes as
// MemTotal and no swap. See Documentation/ABI/stable/sysfs-devices-node of the kernel.
func Read(sysfsRoot, procRoot string) (Machine, error) {
	m, err := read(sysfsRoot, procRoot)
	if err != nil {
		return Machine{}, fmt.Errorf("read the machine: %w", err)
	}
	return m, nil
}

func read(sysfsRoot, procRoot string) (Machine, error) {
	m := Machine{PageSize: os.Getpagesize()}
	if procRoot != "" {
		info, err := readMeminfo(filepath.Join(procRoot, "meminfo"))
		if err != nil {
			return Machine{}, err
		}
		if m.MemTotal = info["MemTotal"]; m.MemTotal == 0 {
			return Machine{}, fmt.Errorf("%s: no MemTotal", filepath.Join(procRoot, "meminfo"))
		}
		m.Swap = info["SwapTotal"]
		m.KernelImage = readKernelImage(filepath.Join(procRoot, "iomem"))
	}
	folder := filepath.Join(sysfsRoot, "devices/system/node")
	online, err := readLine(filepath.Join(folder, "online"))
	if errors.Is(err, fs.ErrNotExist) && m.MemTotal > 0 {
		return m.withoutNUMA(sysfsRoot)
	}
	if err != nil {
		return Machine{}, err
	}
	ids, err := nodeset.Parse(online)
	if err != nil {
		return Machine{}, fmt.Errorf("%s: %w (more than %d NUMA nodes are not supported, by the kubelet neither)",
			filepath.Join(folder, "online"), err, nodeset.Max)
	}
	for id := range ids.All() {
		node, err := readNode(filepath.Join(folder, "node"+strconv.Itoa(id)), id)
		if err != nil {
			return Machine{}, err
		}
		if len(node.Distances) != ids.Len() {
			return Machine{}, fmt.Errorf("%s: %d distances for %d online nodes",
				filepath.Join(folder, "node"+strconv.Itoa(id), "distance"), len(node.Distances), ids.Len())
		}
		m.Nodes = append(m.Nodes, node)
	}
	if len(m.Nodes) == 0 {
		return Machine{}, fmt.Errorf("%s: no NUMA node is online", filepath.Join(folder, "online"))
	}
	if procRoot == "" {
		for _, node := range m.Nodes {
			m.MemTotal += node.Memory
		}
	}
	return m, nil
}

// Again reads again what changes while a machine runs: the memory and the huge page pools of its NUMA nodes. The rest stays: MemTotal
// because the kubelet goes by what it has read at its own start, and the NUMA nodes, of which one that is gone is an error and a new
// one is not seen. A kernel without CONFIG_NUMA has nothing that changes.
func (m Machine) Again(sysfsRoot string) (Machine, error) {
	folder := filepath.Join(sysfsRoot, "devices/system/node")
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	m.Nodes = slices.Clone(m.Nodes)
	for i := range m.Nodes {
		now, err := readMemory(filepath.Join(folder, "node"+strconv.Itoa(m.Nodes[i].ID)))
		if err != nil {
			return Machine{}, fmt.Errorf("read the memory of the NUMA nodes again: %w", err)
		}
		m.Nodes[i].Memory, m.Nodes[i].Hugepages = now.Memory, now.Hugepages
	}
	return m, nil
}

// SameMemory reports whether the NUMA nodes of both have the same huge page pools, and the same memory but for so many bytes on each.
func (m Machine) SameMemory(other Machine, tolerance uint64) bool {
	return slices.EqualFunc(m.Nodes, other.Nodes, func(a, b Node) bool {
		return a.ID == b.ID && max(a.Memory, b.Memory)-min(a.Memory, b.Memory) <= tolerance && slices.Equal(a.Hugepages, b.Hugepages)
	})
}

// withoutNUMA is the machine of a kernel without CONFIG_NUMA: one node with all there is, as the kubelet sees it.
func (m Machine) withoutNUMA(sysfsRoot string) (Machine, error) {
	cpus, err := readCPUs(filepath.Join(sysfsRoot, "devices/system/cpu/online"))
	if err != nil {
		return Machine{}, err
	}
	pools, err := readPools(filepath.Join(sysfsRoot, "kernel/mm/hugepages"))
	if err != nil {
		return Machine{}, err
	}
	m.Nodes = []Node{{Memory: m.MemTotal, CPUs: cpus, Hugepages: pools, Distances: []int{localDistance}}}
	return m, nil
}

// readNode reads one folder of /sys/devices/system/node.
func readNode(folder string, id int) (Node, error) {
	node, err := readMemory(folder)
	if err != nil {
		return Node{}, err
	}
	node.ID = id
	if node.CPUs, err = readCPUs(filepath.Join(folder, "cpulist")); err != nil {
		return Node{}, err
	}
	if node.Distances, err = readDistances(filepath.Join(folder, "distance")); err != nil {
		return Node{}, err
	}
	return node, nil
}

// readMemory reads the memory and the huge page pools of such a folder.
func readMemory(folder string) (node Node, err error) {
	info, err := readMeminfo(filepath.Join(folder, "meminfo"))
	if err != nil {
		return Node{}, err
	}
	total, ok := info["MemTotal"]
	if !ok {
		return Node{}, fmt.Errorf("%s: no MemTotal", filepath.Join(folder, "meminfo"))
	}
	node.Memory = total
	node.Hugepages, err = readPools(filepath.Join(folder, "hugepages"))
	return node, err
}

// readLine reads a file that holds one line.
func readLine(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}

// readCPUs reads a cpulist; a node without CPUs has an empty one.
func readCPUs(path string) (cpuset.CPUSet, error) {
	text, err := readLine(path)
	if err != nil {
		return cpuset.CPUSet{}, err
	}
	cpus, err := ParseCPUs(text)
	if err != nil {
		return cpuset.CPUSet{}, fmt.Errorf("%s: %w", path, err)
	}
	return cpus, nil
}

// readDistances reads a row of the SLIT table: one number per online node.
func readDistances(path string) ([]int, error) {
	text, err := readLine(path)
	if err != nil {
		return nil, err
	}
	var row []int
	for field := range strings.FieldsSeq(text) {
		distance, err := strconv.ParseUint(field, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not a distance", path, field)
		}
		row = append(row, int(distance))
	}
	return row, nil
}
