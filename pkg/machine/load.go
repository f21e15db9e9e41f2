package machine

import (
	"fmt"
	"os"
	"path/filepath"
)

// Load reads a machine from a machine file, or, when path is a folder, from the copy of a file system in it: its sys and
// proc folders, or the folder itself as the root of a sysfs, with or without a proc folder beside it.
func Load(path string) (Machine, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Machine{}, fmt.Errorf("machine: %w", err)
	}
	if !info.IsDir() {
		return ReadFile(path)
	}
	sysfs, proc := filepath.Join(path, "sys"), filepath.Join(path, "proc")
	if _, err := os.Stat(sysfs); err != nil {
		sysfs = path
	}
	if _, err := os.Stat(proc); err != nil {
		proc = ""
	}
	return Read(sysfs, proc)
}
