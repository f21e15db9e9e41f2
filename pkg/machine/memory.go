package machine

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// NodeMemory is what the kernel has of a NUMA node's memory now, in bytes.
type NodeMemory struct {
	Node int
	// Free is MemFree. File are the file pages on the LRU lists, which can be reclaimed: Active(file) and Inactive(file).
	Free, File uint64
}

// NodeMemory reads the memory of the machine's nodes that have any from /sys/devices/system/node/nodeN/meminfo.
func (m Machine) NodeMemory(sysfsRoot string) ([]NodeMemory, error) {
	var all []NodeMemory
	for _, node := range m.Nodes {
		if node.Memory == 0 {
			continue
		}
		path := filepath.Join(sysfsRoot, "devices/system/node", "node"+strconv.Itoa(node.ID), "meminfo")
		info, err := readMeminfo(path)
		if err != nil {
			return nil, fmt.Errorf("read the memory of NUMA node %d: %w", node.ID, err)
		}
		free, known := info["MemFree"]
		if !known {
			return nil, fmt.Errorf("read the memory of NUMA node %d: %s has no MemFree", node.ID, path)
		}
		all = append(all, NodeMemory{Node: node.ID, Free: free, File: info["Active(file)"] + info["Inactive(file)"]})
	}
	return all, nil
}
