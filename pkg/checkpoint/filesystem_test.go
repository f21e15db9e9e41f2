package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace runs the named test again as root of a user namespace of its own, where it may mount.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv("CHECKPOINT_TEST_NAMESPACE") != "" {
		return true
	}
	command := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), "CHECKPOINT_TEST_NAMESPACE=1")
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := command.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Skipf("this kernel gives no user namespace: %v", err)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("in the namespace: %s", out)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in the namespace: %v\n%s", err, out)
	}
	return false
}

func mountTmpfs(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		t.Skipf("this kernel mounts no tmpfs here: %v", err)
	}
}

func TestFullDiskKeepsTheLastState(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dir := t.TempDir()
	mountTmpfs(t, dir, 0, "size=64k")
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	store := openStore(t, dir)
	if err := store.Save(aState(t)); err != nil {
		t.Fatal(err)
	}
	large := aState(t)
	for i := range 1000 {
		entry := large.Entries[0]
		entry.Pod = fmt.Sprintf("pod%04d", i)
		large.Entries = append(large.Entries, entry)
	}
	for range 2 {
		if err := store.Save(large); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("a full disk: %v", err)
		}
	}
	if names := folder(t, dir); len(names) != 1 {
		t.Errorf("the folder has %v", names)
	}
	if file, err := store.Load(); err != nil || len(file.State.Entries) != 1 {
		t.Fatalf("%v: %+v", err, file)
	}
	if err := store.Save(aState(t)); err != nil {
		t.Errorf("when there is room again: %v", err)
	}
	_ = store.Close()
}

func TestReadOnlyFolder(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dir := t.TempDir()
	mountTmpfs(t, dir, 0, "")
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(dir+"/"+FileName, []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	mountTmpfs(t, dir, unix.MS_REMOUNT|unix.MS_RDONLY, "")
	store := openStore(t, dir)
	_, err := store.Load()
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) || corrupt.Kept != "" || !errors.Is(err, unix.EROFS) {
		t.Fatalf("a bad file that can not be moved: %v", err)
	}
	if err := store.Save(aState(t)); !errors.Is(err, unix.EROFS) {
		t.Fatalf("save: %v", err)
	}
	mountTmpfs(t, dir, unix.MS_REMOUNT, "")
	if err := store.Save(aState(t)); err != nil {
		t.Fatalf("when it can be written again: %v", err)
	}
	if names := folder(t, dir); len(names) != 2 {
		t.Errorf("the bad file is lost: %v", names)
	}
	if err := os.Remove(store.Path()); err != nil {
		t.Fatal(err)
	}
	mountTmpfs(t, dir, unix.MS_REMOUNT|unix.MS_RDONLY, "")
	if err := store.Save(aState(t)); !errors.Is(err, unix.EROFS) || !strings.HasPrefix(err.Error(), "writing the state file: open "+dir) {
		t.Fatalf("save: %v", err)
	}
}
