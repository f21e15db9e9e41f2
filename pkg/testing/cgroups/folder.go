// Package cgroups plays a cgroup v2 hierarchy for tests: cgroups are folders, and their files hold what was written last. A file
// exists once somebody has written it; a test that opens the folder as a plain tree (pkg/cgroupfs) reads the kernel's default until
// then. The hierarchy of simulate (pkg/simulator/cgroups) has all files of a cgroup from the beginning, which takes 30 times as long.
package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
)

// Folder is the folder of a hierarchy. The paths of cgroups are relative to it.
type Folder string

// InMemory makes a folder that ends with the test: where there is a file system in memory it is there, to spare the disk.
func InMemory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "test")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Make makes a cgroup and those above it.
func (f Folder) Make(cgroup string) error { return os.MkdirAll(f.path(cgroup, ""), 0o755) }

// Remove removes a cgroup and those in it; one that is not there is fine.
func (f Folder) Remove(cgroup string) error {
	err := os.RemoveAll(f.path(cgroup, ""))
	for errors.Is(err, unix.ENOTEMPTY) { // the plugin has written a file meanwhile, which a kernel does not let in
		err = os.RemoveAll(f.path(cgroup, ""))
	}
	return err
}

// Exists reports whether there is such a cgroup.
func (f Folder) Exists(cgroup string) bool {
	_, err := os.Stat(f.path(cgroup, ""))
	return err == nil
}

// Write replaces what a file of a cgroup holds.
func (f Folder) Write(cgroup, file, text string) error {
	return cgroups.WriteFile(f.path(cgroup, file), text)
}

// Read returns what a file of a cgroup holds, "" when it was never written.
func (f Folder) Read(cgroup, file string) (string, error) {
	data, err := os.ReadFile(f.path(cgroup, file))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

func (f Folder) path(cgroup, file string) string { return filepath.Join(string(f), cgroup, file) }

// Fill makes files below a folder, whose names are paths, and the folders that they are in. A name that ends with a slash is a
// folder.
func Fill(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(root, name)
		var err error
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(file, 0o755)
		} else {
			err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
