package cases

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// zram makes a compressed block device in memory and removes it after the test.
func zram(t *testing.T, bytes uint64) string {
	t.Helper()
	id := file("/sys/class/zram-control/hot_add") // reading makes a new one
	if id == "" {
		t.Fatal("no zram device can be made: is the module loaded?")
	}
	t.Cleanup(func() { _ = rawWrite("/sys/class/zram-control/hot_remove", id) })
	dir, device := "/sys/block/zram"+id, "/dev/zram"+id
	write(t, fmt.Sprint(bytes), dir, "disksize")
	if _, err := os.Stat(device); err != nil { // no devtmpfs node
		var major, minor uint32
		if _, err := fmt.Sscanf(file(dir, "dev"), "%d:%d", &major, &minor); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mknod(device, syscall.S_IFBLK|0o600, int(major<<8|minor)); err != nil {
			t.Fatal(err)
		}
	}
	return device
}

// swap gives the node swap for the time of the test.
func swap(t *testing.T, bytes uint64) {
	t.Helper()
	device := zram(t, bytes)
	command(t, "mkswap", device)
	command(t, "swapon", device)
	t.Cleanup(func() {
		if out, err := exec.Command("swapoff", device).CombinedOutput(); err != nil {
			t.Errorf("swapoff: %v: %s", err, out)
		}
	})
}

// disk mounts a new ext4 file system for the time of the test.
func disk(t *testing.T, bytes uint64) string {
	t.Helper()
	device := zram(t, bytes)
	command(t, "/usr/sbin/mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "nodiscard", device)
	dir := filepath.Join("/run/e2e/disk", filepath.Base(device))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(device, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// command runs a program of the guest and returns what it printed.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// slowDisk mounts a new file system of this kind for the time of the test, on the disk that QEMU lets write so many MB in a second.
func slowDisk(t *testing.T, kind string, speed int) string {
	t.Helper()
	device := ""
	serials, _ := filepath.Glob("/sys/block/vd*/serial")
	for _, serial := range serials {
		if file(serial) == fmt.Sprint("slow", speed) {
			device = "/dev/" + filepath.Base(filepath.Dir(serial))
		}
	}
	if device == "" {
		t.Fatalf("no disk of %d MB/s among %v", speed, serials)
	}
	if kind == "xfs" {
		command(t, "/usr/sbin/mkfs.xfs", "-q", "-f", "-K", device)
	} else {
		command(t, "/usr/sbin/mke2fs", "-q", "-F", "-t", kind, "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", device)
	}
	dir := filepath.Join("/run/e2e/disk", filepath.Base(device))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(device, dir, kind, 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}
