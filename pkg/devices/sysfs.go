package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// sysfs knows on which NUMA node a device is: /sys/dev/char/MAJOR:MINOR and /sys/dev/block/MAJOR:MINOR lead to its folder, and
// numa_node is there or in a folder above, that of the PCI function. -1 is a device of no node.
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci and .../sysfs-dev
type sysfs struct{ root string }

// mostNodes bounds the device nodes of a container that are looked up.
const mostNodes = 64

// devices are those of the device nodes that are on a NUMA node. Nodes of one kind, such as drm, are one resource.
func (s *sysfs) devices(nodes []Node) (devices []topologymanager.Device) {
	if s.root == "" {
		return nil
	}
	for _, node := range nodes[:min(len(nodes), mostNodes)] {
		if kind, nodes := s.lookUp(node); !nodes.Empty() {
			devices = append(devices, topologymanager.NewDevice(kind, node.Path, SourceSysfs, nodes))
		}
	}
	return topologymanager.Join(devices)
}

// lookUp finds a device's kind and nodes. One that sysfs does not have is on no node.
func (s *sysfs) lookUp(node Node) (kind string, nodes nodeset.Set) {
	class := "char"
	if node.Block {
		class = "block"
	}
	folder, err := filepath.EvalSymlinks(filepath.Join(s.root, "dev", class, fmt.Sprintf("%d:%d", node.Major, node.Minor)))
	if err != nil {
		return "", 0
	}
	kind = class + " " + strconv.FormatInt(node.Major, 10)
	if subsystem, err := os.Readlink(filepath.Join(folder, "subsystem")); err == nil {
		kind = filepath.Base(subsystem)
	}
	nodes = s.nodesAbove(folder)
	if nodes.Empty() && strings.HasPrefix(kind, "vfio") {
		nodes = s.nodesOfGroup(filepath.Base(folder))
	}
	return kind, nodes
}

// nodesAbove is the node of a device's folder, or of the nearest one above that has one.
func (s *sysfs) nodesAbove(folder string) nodeset.Set {
	root, err := filepath.EvalSymlinks(s.root)
	if err != nil {
		return 0
	}
	for ; len(folder) > len(root); folder = filepath.Dir(folder) {
		if nodes := numaNode(filepath.Join(folder, "numa_node")); !nodes.Empty() {
			return nodes
		}
	}
	return 0
}

// nodesOfGroup are the nodes of an IOMMU group's devices: what is behind a VFIO group is handed over together.
func (s *sysfs) nodesOfGroup(group string) (nodes nodeset.Set) {
	files, err := filepath.Glob(filepath.Join(s.root, "kernel/iommu_groups", group, "devices/*/numa_node"))
	if err != nil {
		return 0
	}
	for _, file := range files {
		nodes |= numaNode(file)
	}
	return nodes
}

// numaNode reads a device's node; none for -1, and for a device without one.
func numaNode(file string) nodeset.Set {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || id < 0 || id >= nodeset.Max {
		return 0
	}
	return nodeset.Of(id)
}
