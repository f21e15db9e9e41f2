package machine

import (
	"fmt"
	"os"
	"path/filepath"
)

// Load reads a machine from a machine file, or, when path is a folder, from the copy of a file system in it: its sys and
// proc folders, or the folder itself as the root of a sysfs, with or without a proc folder beside it.
func Load(path string) (Machine, error) {
	described, err := Describe(path)
	return described.Machine, err
}

// Describe is Load with what a machine file says of the node beside its hardware. A file system says nothing of that but
// which CPUs share a core.
func Describe(path string) (Description, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Description{}, fmt.Errorf("machine: %w", err)
	}
	if !info.IsDir() {
		return describeFile(path)
	}
	sysfs, proc := filepath.Join(path, "sys"), filepath.Join(path, "proc")
	if _, err := os.Stat(sysfs); err != nil {
		sysfs = path
	}
	if _, err := os.Stat(proc); err != nil {
		proc = ""
	}
	m, err := Read(sysfs, proc)
	if err != nil {
		return Description{}, err
	}
	return Description{Machine: m, Cores: readCores(sysfs, m)}, nil
}
