// Package sysfs reads a node's hardware: from sysfs and proc, from copies of both, or from a machine file, so that tests and
// simulations need no such machine.
package sysfs

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

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// This is a small reader of our own, in the habit of prometheus/procfs, which has no per-node meminfo. jaypipes/ghw was
// compared: its usable memory of a node is the same MemTotal to the byte, but it looks at every nodeN folder instead of the
// online nodes, wants each node's caches and memory blocks too, and where one cannot be read it warns and returns fewer
// nodes. Here a node that cannot be read must be an error: a short node map would place containers wrongly.

// nodesFolder has a folder for each NUMA node, below the root of sysfs.
const nodesFolder = "devices/system/node"

func nodeFolder(root string, id int) string {
	return filepath.Join(root, nodesFolder, "node"+strconv.Itoa(id))
}

// read reads a machine from the kernel, or from a copy of sysfs and proc. Without proc MemTotal is the sum of the nodes, and there is
// no swap. See Documentation/ABI/stable/sysfs-devices-node of the kernel.
func read(root, proc string) (machine.Machine, error) {
	m := machine.Machine{PageSize: os.Getpagesize()}
	if proc != "" {
		info, err := Meminfo(proc)
		if err != nil {
			return machine.Machine{}, err
		}
		if m.MemTotal = info["MemTotal"]; m.MemTotal == 0 {
			return machine.Machine{}, fmt.Errorf("%s: no MemTotal", filepath.Join(proc, "meminfo"))
		}
		m.Swap = info["SwapTotal"]
		m.KernelImage = readKernelImage(filepath.Join(proc, "iomem"))
	}
	ids, err := nodeIDs(filepath.Join(root, nodesFolder))
	if errors.Is(err, fs.ErrNotExist) && m.MemTotal > 0 {
		return withoutNUMA(root, m)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return machine.Machine{}, fmt.Errorf("%s has no NUMA nodes (%s/node0, …) and no proc: want a copy of sysfs", root, nodesFolder)
	}
	if err != nil {
		return machine.Machine{}, err
	}
	for _, id := range ids {
		node, err := readNode(nodeFolder(root, id), id)
		if err != nil {
			return machine.Machine{}, err
		}
		if len(node.Distances) != len(ids) {
			return machine.Machine{}, fmt.Errorf("%s: %d distances for %d online nodes",
				filepath.Join(nodeFolder(root, id), "distance"), len(node.Distances), len(ids))
		}
		for _, other := range m.Nodes {
			if both := other.CPUs.Intersection(node.CPUs); !both.IsEmpty() {
				return machine.Machine{}, fmt.Errorf("%s: CPU %s is on node %d too", filepath.Join(nodeFolder(root, id), "cpulist"), both, other.ID)
			}
		}
		m.Nodes = append(m.Nodes, node)
	}
	if proc == "" {
		for _, node := range m.Nodes {
			m.MemTotal += node.Memory
		}
	}
	return m, nil
}

// nodeIDs are the online nodes, or in a copy of sysfs without that file those that have a folder. The error is fs.ErrNotExist where there is
// neither.
func nodeIDs(folder string) ([]int, error) {
	path := filepath.Join(folder, "online")
	online, err := readText(path)
	if folders, _ := fs.Glob(os.DirFS(folder), "node[0-9]*"); errors.Is(err, fs.ErrNotExist) && len(folders) > 0 { // the pattern is good
		online, err = strings.ReplaceAll(strings.Join(folders, ","), "node", ""), nil
	}
	if err != nil {
		return nil, err
	}
	ids, err := nodeset.ParseIDs(online)
	if err == nil && len(ids) == 0 {
		err = errors.New("no NUMA node is online")
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return ids, err
}

// Refresh reads again what changes while a machine runs: the memory and the huge page pools of its NUMA nodes. The rest stays: MemTotal
// because the kubelet goes by what it has read at its own start, and the NUMA nodes, of which one that is gone is an error and a new
// one is not seen. A kernel without CONFIG_NUMA has nothing that changes.
func Refresh(root string, m machine.Machine) (machine.Machine, error) {
	if _, err := os.Stat(filepath.Join(root, nodesFolder)); errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	m.Nodes = slices.Clone(m.Nodes)
	for i := range m.Nodes {
		now, err := readMemory(nodeFolder(root, m.Nodes[i].ID))
		if err != nil {
			return machine.Machine{}, fmt.Errorf("read the memory of the NUMA nodes again: %w", err)
		}
		m.Nodes[i].Memory, m.Nodes[i].Hugepages = now.Memory, now.Hugepages
	}
	return m, nil
}

// withoutNUMA is the machine of a kernel without CONFIG_NUMA: one node with all there is, as the kubelet sees it, at LOCAL_DISTANCE.
func withoutNUMA(root string, m machine.Machine) (machine.Machine, error) {
	cpus, err := readCPUs(filepath.Join(root, "devices/system/cpu/online"))
	if err != nil {
		return machine.Machine{}, err
	}
	pools, err := readPools(filepath.Join(root, "kernel/mm/hugepages"))
	if err != nil {
		return machine.Machine{}, err
	}
	m.Nodes = []machine.Node{{Memory: m.MemTotal, CPUs: cpus, Hugepages: pools, Distances: []int{10}}}
	return m, nil
}

func readNode(folder string, id int) (machine.Node, error) {
	node, err := readMemory(folder)
	if err != nil {
		return machine.Node{}, err
	}
	node.ID = id
	if node.CPUs, err = readCPUs(filepath.Join(folder, "cpulist")); err != nil {
		return machine.Node{}, err
	}
	if node.Distances, err = readDistances(filepath.Join(folder, "distance")); err != nil {
		return machine.Node{}, err
	}
	return node, nil
}

// readMemory reads the memory and the huge page pools of such a folder.
func readMemory(folder string) (node machine.Node, err error) {
	info, err := readMeminfo(filepath.Join(folder, "meminfo"))
	if err != nil {
		return machine.Node{}, err
	}
	total, ok := info["MemTotal"]
	if !ok {
		return machine.Node{}, fmt.Errorf("%s: no MemTotal", filepath.Join(folder, "meminfo"))
	}
	node.Memory = total
	node.Hugepages, err = readPools(filepath.Join(folder, "hugepages"))
	return node, err
}

// readText reads a file without what surrounds its text: a copy of sysfs may have it end in NUL bytes.
func readText(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.Trim(string(data), " \t\n\x00"), err
}

// readCPUs reads a cpulist; a node without CPUs has an empty one.
func readCPUs(path string) (cpuset.CPUSet, error) {
	text, err := readText(path)
	if err != nil {
		return cpuset.CPUSet{}, err
	}
	cpus, err := machine.ParseCPUs(text)
	if err != nil {
		return cpuset.CPUSet{}, fmt.Errorf("%s: %w", path, err)
	}
	return cpus, nil
}

// readDistances reads a row of the SLIT table: one number per online node.
func readDistances(path string) ([]int, error) {
	text, err := readText(path)
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
