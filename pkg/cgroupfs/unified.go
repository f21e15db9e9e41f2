package cgroupfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// RequireUnified returns an error unless root is a pure cgroup v2 hierarchy with the memory and cpuset controllers.
func RequireUnified(root string) error {
	const want = "Memory QoS needs cgroup v2 alone (boot with systemd.unified_cgroup_hierarchy=1)"
	mode, err := modeOf(root)
	switch {
	case err != nil:
	case mode == cgroups.Unified:
		err = requireControllers(root)
	case mode == cgroups.Hybrid:
		err = fmt.Errorf("it is a hybrid of cgroup v1 and v2: %s", want)
	case mode == cgroups.Legacy:
		err = fmt.Errorf("it is cgroup v1: %s", want)
	default:
		err = fmt.Errorf("it is no cgroup v2 file system: %s", want)
	}
	if err != nil {
		return fmt.Errorf("%s is not usable: %w", root, err)
	}
	return nil
}

// usual is where a host mounts its hierarchy. The library knows the mode of this mount only.
const usual = "/sys/fs/cgroup"

// modeOf returns the mode of the hierarchy at root. It uses the library for the usual mount, and checks others itself, such as the host's
// hierarchy that is mounted in a container beside its own.
func modeOf(root string) (cgroups.CGMode, error) {
	if filepath.Clean(root) == usual {
		if mode := cgroups.Mode(); mode != cgroups.Unavailable {
			return mode, nil
		} // the checks below have the reason
	}
	var fs unix.Statfs_t
	if err := again(func() error { return unix.Statfs(root, &fs) }); err != nil {
		return cgroups.Unavailable, fmt.Errorf("read the kind of file system: %w", err)
	}
	there := func(names ...string) bool {
		_, err := os.Stat(filepath.Join(append([]string{root}, names...)...))
		return err == nil
	}
	switch {
	case fs.Type == unix.CGROUP2_SUPER_MAGIC:
		return cgroups.Unified, nil
	case there("unified", "cgroup.controllers"):
		return cgroups.Hybrid, nil
	case there("memory", "memory.limit_in_bytes"):
		return cgroups.Legacy, nil
	}
	return cgroups.Unavailable, nil
}

func requireControllers(root string) error {
	data, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	controllers := strings.Fields(string(data))
	for _, controller := range []string{"memory", "cpuset"} {
		if !slices.Contains(controllers, controller) {
			return fmt.Errorf("the controller %s is missing in cgroup.controllers %q", controller, strings.TrimSpace(string(data)))
		}
	}
	return nil
}

// Mounted reports whether cgroup2 is mounted with an option, such as memory_recursiveprot (Documentation/admin-guide/cgroup-v2.rst,
// "Mounting"), which all mounts share. proc is usually /proc.
func Mounted(proc, option string) bool {
	data, _ := os.ReadFile(filepath.Join(proc, "self/mounts")) // unreadable: no option
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[2] == "cgroup2" {
			return slices.Contains(strings.Split(fields[3], ","), option)
		}
	}
	return false
}
