package durable

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func openFolder(t *testing.T, path string) *Folder {
	t.Helper()
	folder, err := OpenFolder(path)
	must(t, err)
	return folder
}

func TestALockedFolder(t *testing.T) {
	dir := t.TempDir()
	first, second := openFolder(t, dir), openFolder(t, dir)
	defer second.Close()
	must(t, first.Lock())
	err := second.Lock()
	if !errors.Is(err, unix.EWOULDBLOCK) || err.Error() != "flock "+dir+": resource temporarily unavailable" {
		t.Errorf("a second lock: %v", err)
	}
	if got := second.Holder(); got != os.Getpid() {
		t.Errorf("process %d has the lock, want %d", got, os.Getpid())
	}
	// What a crash has left, and what another process has open, is written over.
	other, err := os.Create(filepath.Join(dir, "file.tmp"))
	must(t, err)
	defer other.Close()
	_, err = other.WriteString("longer than the content")
	must(t, err)
	must(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
	must(t, first.WriteFile("file", []byte("content"), 0o600))
	if content, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
	forked, err := unix.Dup(first.fd) // as a process has it that is being started meanwhile
	must(t, err)
	defer unix.Close(forked)
	must(t, first.Close())
	if got := second.Holder(); got != 0 {
		t.Errorf("process %d has the lock that is free", got)
	}
	if err := second.Lock(); err != nil {
		t.Errorf("after the first has closed it: %v", err)
	}
}

func TestAFolderThatIsReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	must(t, os.Mkdir(dir, 0o700))
	folder := openFolder(t, dir)
	defer folder.Close()
	for _, step := range []struct {
		name string
		do   func() error
		want bool
	}{
		{"untouched", func() error { return nil }, true},
		{"a new file in it", func() error { return folder.WriteFile("file", nil, 0o600) }, true},
		{"moved away", func() error { return os.Rename(dir, dir+".old") }, false},
		{"another in its place", func() error { return os.Mkdir(dir, 0o700) }, false},
	} {
		must(t, step.do())
		if folder.IsInPlace() != step.want {
			t.Errorf("%s: in place %v, want %v", step.name, !step.want, step.want)
		}
	}
	must(t, folder.WriteFile("file", []byte("late"), 0o600))
	if content, err := os.ReadFile(dir + ".old/file"); string(content) != "late" {
		t.Errorf("a write goes elsewhere: %q, %v", content, err)
	}
	if _, err := OpenFolder(dir + ".old/file"); err == nil || !strings.HasSuffix(err.Error(), "file: not a directory") {
		t.Errorf("a file as a folder: %v", err)
	}
}
