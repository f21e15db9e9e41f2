package sysfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

// Load reads a machine from a machine file, or, when path is a folder, from the copy of a file system in it: its sys and
// proc folders, or the folder itself as the root of a sysfs, with or without a proc folder beside it. An empty path is this
// machine.
func Load(path string) (machine.Machine, error) {
	described, err := Describe(path)
	return described.Machine, err
}

// Describe is Load with what a machine file says of the node beside its hardware. A file system says nothing of that but
// which CPUs share a core.
func Describe(path string) (machine.Description, error) {
	root, proc, err := Roots(path)
	if err != nil {
		return machine.Description{}, fmt.Errorf("machine: %w", err)
	}
	if filepath.Ext(path) == ".txtar" {
		return machine.Description{}, fmt.Errorf("machine: %s is an archive: want a machine file, or the folder that it was made of", path)
	}
	if root == "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return machine.Description{}, fmt.Errorf("read the machine file: %w", err)
		}
		return machine.Describe(path, data)
	}
	if _, err := os.Stat(proc); err != nil && path != "" {
		proc = ""
	}
	m, err := read(root, proc)
	if err != nil {
		return machine.Description{}, fmt.Errorf("read the machine: %w", err)
	}
	return machine.Description{Machine: m, Cores: readCores(root, m)}, nil
}

// Roots are the folders of sysfs and of proc below a path that Load takes; both are empty for a machine file. That of proc may
// not be there.
func Roots(path string) (root, proc string, err error) {
	if path == "" {
		return "/sys", "/proc", nil
	}
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return "", "", err
	}
	root = filepath.Join(path, "sys")
	if _, err := os.Stat(root); err != nil {
		root = path
	}
	return root, filepath.Join(path, "proc"), nil
}

// readCores reads which CPUs share a core (Documentation/ABI/stable/sysfs-devices-system-cpu of the kernel). A copy of sysfs need
// not have it.
func readCores(root string, m machine.Machine) map[int]int {
	cores := map[int]int{}
	for _, cpu := range m.CPUs().UnsortedList() {
		threads, err := readCPUs(filepath.Join(root, "devices/system/cpu/cpu"+strconv.Itoa(cpu), "topology/thread_siblings_list"))
		if err == nil && threads.Contains(cpu) {
			cores[cpu] = threads.List()[0]
		}
	}
	return cores
}
