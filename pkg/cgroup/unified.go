package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// RequireUnified says why root is no pure cgroup v2 hierarchy with the memory and cpuset controllers, or nil.
func RequireUnified(root string) error {
	if err := requireUnified(root); err != nil {
		return fmt.Errorf("%s is not usable: %w", root, err)
	}
	return nil
}

func requireUnified(root string) error {
	var fs unix.Statfs_t
	if err := again(func() error { return unix.Statfs(root, &fs) }); err != nil {
		return fmt.Errorf("read the kind of file system: %w", err)
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return notUnified(root)
	}
	return requireControllers(root)
}

// notUnified says what is there instead.
func notUnified(root string) error {
	const want = "Memory QoS needs cgroup v2 alone (boot with systemd.unified_cgroup_hierarchy=1)"
	if _, err := os.Stat(filepath.Join(root, "unified", "cgroup.controllers")); err == nil {
		return fmt.Errorf("it is a hybrid of cgroup v1 and v2: %s", want)
	}
	if _, err := os.Stat(filepath.Join(root, "memory", "memory.limit_in_bytes")); err == nil {
		return fmt.Errorf("it is cgroup v1: %s", want)
	}
	return fmt.Errorf("it is no cgroup v2 file system: %s", want)
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
