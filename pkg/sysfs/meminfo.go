package sysfs

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

// MemInfo reads the memory of a machine's nodes that have any (/sys/devices/system/node/nodeN/meminfo).
func MemInfo(root string, m machine.Machine) ([]deficit.MemInfo, error) {
	var all []deficit.MemInfo
	for _, node := range m.Nodes {
		if node.Memory == 0 {
			continue
		}
		path := filepath.Join(nodeFolder(root, node.ID), "meminfo")
		info, err := readMeminfo(path)
		free, known := info["MemFree"]
		if err == nil && !known {
			err = fmt.Errorf("%s has no MemFree", path)
		}
		if err != nil {
			return nil, fmt.Errorf("read the memory of NUMA node %d: %w", node.ID, err)
		}
		all = append(all, deficit.MemInfo{Node: node.ID, Free: free, File: info["Active(file)"] + info["Inactive(file)"]})
	}
	return all, nil
}

// Meminfo reads /proc/meminfo, or that of a copy of proc: bytes by name.
func Meminfo(proc string) (map[string]uint64, error) {
	return readMeminfo(filepath.Join(proc, "meminfo"))
}

// readMeminfo reads lines like "MemTotal: 131823588 kB" and "Node 0 MemTotal: 131823588 kB". Lines without the unit are
// counters (HugePages_Total), which sysfs has per page size, and are skipped. "kB" is 1024 bytes.
func readMeminfo(path string) (map[string]uint64, error) {
	text, err := readText(path)
	if err != nil {
		return nil, err
	}
	info := map[string]uint64{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) > 2 && fields[0] == "Node" {
			fields = fields[2:]
		}
		if len(fields) != 3 || fields[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil || kib > math.MaxInt64/1024 {
			return nil, fmt.Errorf("%s: %q is not a number of kB", path, fields[1])
		}
		info[strings.TrimSuffix(fields[0], ":")] = kib * 1024
	}
	return info, nil
}
