package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Load reads a machine from a machine file, or, when path is a folder, from the copy of a file system in it: its sys and
// proc folders, or the folder itself as the root of a sysfs.
func Load(path string) (Machine, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Machine{}, fmt.Errorf("machine: %w", err)
	}
	if !info.IsDir() {
		return ReadFile(path)
	}
	if _, err := os.Stat(filepath.Join(path, "sys")); err == nil {
		return Read(filepath.Join(path, "sys"), filepath.Join(path, "proc"))
	}
	return Read(path, filepath.Join(path, "proc"))
}

// Read reads this machine from the kernel: /sys and /proc on a living node.
func Read(sysfsRoot, procRoot string) (Machine, error) { return Machine{}, errors.New("not built yet") }

// ReadFile reads a machine file (YAML).
func ReadFile(path string) (Machine, error) { return Machine{}, errors.New("not built yet") }

// Parse reads a machine file's text; name is what errors call it.
func Parse(name string, data []byte) (Machine, error) {
	return Machine{}, errors.New("not built yet")
}
