package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// cgroups makes and removes the parents of containers.
type cgroups struct {
	kubelet.Paths

	mu   sync.Mutex
	conn *systemd.Conn // nil with cgroupfs
}

func newCgroups(ctx context.Context, driver setup.Driver) (*cgroups, error) {
	c := &cgroups{Paths: kubelet.Paths{Driver: driver}}
	for _, level := range []string{c.Kubepods(), c.QoS(corev1.PodQOSBurstable), c.QoS(corev1.PodQOSBestEffort)} {
		if _, err := os.Stat(filepath.Join(kubelet.Root, level)); err == nil {
			continue // a kubelet has run here
		}
		if err := c.create(ctx, level, 0); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// units is the connection to systemd, recreated after systemd was executed again.
func (c *cgroups) units(ctx context.Context) (*systemd.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil && c.conn.Connected() {
		return c.conn, nil
	}
	// The connection lives as long as its context.
	conn, err := systemd.NewSystemdConnectionContext(context.WithoutCancel(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	c.conn = conn
	return conn, nil
}

// create makes a level with its memory limit (0: none) and hands the
// controllers on to what will be below it.
func (c *cgroups) create(ctx context.Context, path string, limit uint64) error {
	if c.Driver == setup.Systemd {
		name := filepath.Base(path)
		properties := []systemd.Property{
			systemd.PropDescription("e2e " + name),
			property("DefaultDependencies", false), property("MemoryAccounting", true), property("CPUAccounting", true),
			property("TasksAccounting", true), property("IOAccounting", true),
		}
		if limit > 0 {
			properties = append(properties, property("MemoryMax", limit))
		}
		units, err := c.units(ctx)
		if err != nil {
			return err
		}
		done := make(chan string, 1)
		if _, err := units.StartTransientUnitContext(ctx, name, "replace", properties, done); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		select {
		case result := <-done:
			if result != "done" {
				return fmt.Errorf("start %s: systemd says %q", name, result)
			}
		case <-ctx.Done():
			return fmt.Errorf("start %s: %w", name, ctx.Err())
		}
	}
	dir := filepath.Join(kubelet.Root, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	for level := filepath.Dir(dir); strings.HasPrefix(level, kubelet.Root); level = filepath.Dir(level) {
		defer enable(level) // from the top down
	}
	defer func() {
		if limit > 0 && c.Driver == setup.Cgroupfs {
			_ = os.WriteFile(filepath.Join(dir, "memory.max"), []byte(fmt.Sprint(limit)), 0)
		}
	}()
	return nil
}

// enable hands all controllers of a cgroup on to its children.
func enable(dir string) {
	controllers, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for _, name := range strings.Fields(string(controllers)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0)
	}
}

func property(name string, value any) systemd.Property {
	return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
}

// limit changes a level's memory limit.
func (c *cgroups) limit(ctx context.Context, path string, bytes uint64) error {
	if c.Driver == setup.Systemd {
		units, err := c.units(ctx)
		if err != nil {
			return err
		}
		if err := units.SetUnitPropertiesContext(ctx, filepath.Base(path), true, property("MemoryMax", bytes)); err != nil {
			return fmt.Errorf("limit %s: %w", path, err)
		}
		return nil
	}
	return os.WriteFile(filepath.Join(kubelet.Root, path, "memory.max"), []byte(fmt.Sprint(bytes)), 0)
}

// remove removes a pod's level when its processes are gone.
func (c *cgroups) remove(ctx context.Context, path string) error {
	if c.Driver == setup.Systemd {
		units, err := c.units(ctx)
		if err != nil {
			return err
		}
		done := make(chan string, 1)
		if _, err := units.StopUnitContext(ctx, filepath.Base(path), "replace", done); err == nil {
			select {
			case <-done:
			case <-ctx.Done():
			}
		}
	}
	for {
		err := removeTree(filepath.Join(kubelet.Root, path))
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove %s: %w", path, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// removeTree removes a cgroup with all below it.
func removeTree(dir string) error {
	children, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, child := range children {
		if child.IsDir() {
			if err := removeTree(filepath.Join(dir, child.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return syscall.Rmdir(dir)
}
