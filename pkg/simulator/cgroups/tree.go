// Package cgroups plays a cgroup v2 hierarchy for nodes that need not be there: ordinary folders and files, and what a
// container runtime writes into them.
package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Tree is a copy of a cgroup v2 hierarchy in an ordinary folder: cgroups are folders, and their files hold what was
// written last.
type Tree struct{ root string }

// NewTree makes the top of a hierarchy in an existing folder.
func NewTree(root string) (*Tree, error) {
	t := &Tree{root}
	return t, t.write("", map[string]string{"cgroup.controllers": "cpuset cpu memory hugetlb pids", "cgroup.procs": ""})
}

// Root is the folder of the hierarchy.
func (t *Tree) Root() string { return t.root }

// Make makes a cgroup and those above it, without files: one that is not there is the kernel's default (cgroupfs.Plain).
func (t *Tree) Make(cgroup string) error {
	cgroup = path.Clean("/" + cgroup)
	if cgroup == "/" {
		return nil
	}
	if err := t.Make(path.Dir(cgroup)); err != nil {
		return err
	}
	err := os.Mkdir(filepath.Join(t.root, cgroup), 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("making a cgroup: %w", err)
	}
	return nil
}

// Remove removes a cgroup and those in it; one that is not there is fine.
func (t *Tree) Remove(cgroup string) error {
	if cgroup = path.Clean("/" + cgroup); cgroup == "/" {
		return nil
	}
	// As in the kernel it goes at once, also while something writes to its files.
	removed, err := os.MkdirTemp(t.root, ".removed-")
	if err != nil {
		return fmt.Errorf("removing a cgroup: %w", err)
	}
	defer os.RemoveAll(removed)
	at := filepath.Join(t.root, cgroup)
	err = os.Rename(at, filepath.Join(removed, "cgroup"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, os.Mkdir(at, 0o755), removeAll(at)) // inotify tells of what is removed, and not of what is moved
}

// removeAll removes a folder in which somebody may be making files.
func removeAll(folder string) (err error) {
	for range 100 {
		if err = os.RemoveAll(folder); !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// Read returns the text of a cgroup's file, without the newline at its end; the kernel's default where it was never written.
func (t *Tree) Read(dir, file string) (string, error) {
	dir = filepath.Join(t.root, path.Clean("/"+dir))
	data, err := os.ReadFile(filepath.Join(dir, file))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(dir)
		return cgroup.Default(file), err
	}
	return strings.TrimSpace(string(data)), err
}

// Write writes one file of a cgroup.
func (t *Tree) Write(cgroup, file, text string) error {
	return t.write(path.Clean("/"+cgroup), map[string]string{file: text})
}

func (t *Tree) write(cgroup string, files map[string]string) error {
	for file, text := range files {
		if err := WriteFile(filepath.Join(t.root, cgroup, file), text); err != nil {
			return fmt.Errorf("writing a cgroup's file: %w", err)
		}
	}
	return nil
}

// WriteFile replaces what an ordinary file holds that plays a cgroup's, and makes one that is not there: see cgroup.Overwriting.
func WriteFile(path, text string) error {
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	info, err := to.Stat()
	if err == nil {
		_, err = to.Write(cgroup.Overwriting(text, info.Size()))
	}
	return errors.Join(err, to.Close())
}

// Path returns where a runtime makes the cgroup of an OCI spec's linux.cgroupsPath: "slice:prefix:name" under systemd,
// else a path.
func Path(cgroupsPath string) string {
	parts := strings.Split(cgroupsPath, ":")
	if len(parts) != 3 {
		return path.Clean("/" + cgroupsPath)
	}
	return path.Join(ExpandSlice(parts[0]), parts[1]+"-"+parts[2]+".scope")
}

// ExpandSlice returns the path of a systemd slice: "a-b.slice" is in "a.slice".
func ExpandSlice(slice string) string {
	name, isSlice := strings.CutSuffix(path.Base(slice), ".slice")
	if !isSlice {
		return path.Clean("/" + slice)
	}
	expanded, prefix := "/", ""
	for _, part := range strings.Split(name, "-") {
		prefix += part
		expanded = path.Join(expanded, prefix+".slice")
		prefix += "-"
	}
	return expanded
}

// Apply makes a container's cgroup and writes its resources there, as runc does. A container without a cgroups path has
// none.
func (t *Tree) Apply(container *api.Container) error {
	cgroupsPath := container.GetLinux().GetCgroupsPath()
	if cgroupsPath == "" {
		return nil
	}
	resources := container.GetLinux().GetResources()
	files := map[string]string{}
	if limit := resources.GetMemory().GetLimit(); limit != nil {
		files["memory.max"] = cgroup.Default("memory.max")
		if limit.Value > 0 {
			files["memory.max"] = strconv.FormatInt(limit.Value, 10)
		}
	}
	if cpus := resources.GetCpu().GetCpus(); cpus != "" {
		files["cpuset.cpus"] = cpus
	}
	if mems := resources.GetCpu().GetMems(); mems != "" {
		files["cpuset.mems"] = mems
	}
	for key, value := range resources.GetUnified() {
		if strings.ContainsRune(key, '/') {
			return fmt.Errorf("unified key %q is not a file of a cgroup", key)
		}
		files[key] = value
	}
	cgroup := Path(cgroupsPath)
	if err := t.Make(cgroup); err != nil {
		return err
	}
	return t.write(cgroup, files)
}

// RemoveContainer removes a container's cgroup.
func (t *Tree) RemoveContainer(container *api.Container) error {
	if container.GetLinux().GetCgroupsPath() == "" {
		return nil
	}
	return t.Remove(Path(container.Linux.CgroupsPath))
}
