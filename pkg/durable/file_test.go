package durable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func names(t testing.TB, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

// failSync has fsync fail for paths with a suffix.
func failSync(t *testing.T, suffix string) {
	was := Before
	t.Cleanup(func() { Before = was })
	Before = func(call, path string, _ []byte) error {
		if call == "sync" && strings.HasSuffix(path, suffix) {
			return unix.EIO
		}
		return nil
	}
}

func TestAWriteThatFailsLeavesTheOldContentAndNamesTheFile(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, dir string)
		want    string
		content string   // afterwards; "" for a file that is not readable
		left    []string // in the folder; nil for the file alone
	}{
		"a bad disk":   {func(t *testing.T, _ string) { failSync(t, ".tmp") }, "sync DIR/file.tmp: input/output error", "old", nil},
		"a bad folder": {func(t *testing.T, dir string) { failSync(t, filepath.Base(dir)) }, "sync DIR: input/output error", "new", nil},
		"a folder in place of the temporary file": {
			func(t *testing.T, dir string) { must(t, os.Mkdir(filepath.Join(dir, "file.tmp"), 0o700)) },
			"open DIR/file.tmp: is a directory", "old", []string{"file", "file.tmp"},
		},
		"a link in place of the temporary file": {
			func(t *testing.T, dir string) { must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "file.tmp"))) },
			"open DIR/file.tmp: too many levels of symbolic links", "old", []string{"file", "file.tmp"},
		},
		"a folder in place of the file": {
			func(t *testing.T, dir string) {
				must(t, os.Remove(filepath.Join(dir, "file")))
				must(t, os.Mkdir(filepath.Join(dir, "file"), 0o700))
			},
			"rename DIR/file: is a directory", "", nil,
		},
		"a temporary file of another process": {
			func(t *testing.T, dir string) {
				other, err := os.Create(filepath.Join(dir, "file.tmp"))
				must(t, err)
				must(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
				t.Cleanup(func() { other.Close() })
			},
			"lock DIR/file.tmp: resource temporarily unavailable", "old", []string{"file", "file.tmp"},
		},
		"a missing folder": {
			func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)); t.Cleanup(func() { os.Mkdir(dir, 0o700) }) },
			"open DIR: no such file or directory", "", []string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			must(t, WriteFile(path, []byte("old"), 0o600))
			test.prepare(t, dir)
			err := WriteFile(path, []byte("new"), 0o600)
			if err == nil || strings.ReplaceAll(err.Error(), dir, "DIR") != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
			if content, _ := os.ReadFile(path); string(content) != test.content {
				t.Errorf("the file has %q, want %q", content, test.content)
			}
			switch {
			case test.left == nil:
				test.left = []string{"file"}
			case len(test.left) == 0:
				must(t, os.Mkdir(dir, 0o700))
				must(t, WriteFile(path, []byte("new"), 0o600)) // the folder has come back
				test.left = []string{"file"}
			}
			if diff := cmp.Diff(test.left, names(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A crash between the temporary file and the rename leaves the old content; the next write uses up what is left.
func TestWhatACrashLeavesIsUsedUp(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	must(t, WriteFile(path, []byte("old"), 0o600))
	must(t, os.WriteFile(path+".tmp", make([]byte, 1<<20), 0o644))
	data, err := ReadFile(path)
	if err != nil || string(data) != "old" {
		t.Errorf("%q, %v", data, err)
	}
	must(t, WriteFile(path, []byte("new"), 0o600))
	data, err = ReadFile(path)
	if err != nil || string(data) != "new" {
		t.Errorf("%q, %v", data, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if diff := cmp.Diff([]string{"file"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// killedWriter writes five contents. It is killed at the call of that number, at a write after half of the content.
func killedWriter(number int, dir string) error {
	folder, err := OpenFolder(dir)
	if err == nil {
		err = folder.Lock()
	}
	if err != nil {
		return err
	}
	var calls atomic.Int64
	Before = func(call, path string, data []byte) error {
		if calls.Add(1) != int64(number) {
			return nil
		}
		if call == "write" {
			_ = os.WriteFile(path, data[:len(data)/2], 0)
		}
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	path := filepath.Join(dir, "file")
	w := NewWriter(Options{
		Path: path, Sync: func() error { return Sync(path) },
		Write: func(data []byte) error { return folder.Replace("file", data, 0o600) },
	})
	w.delay = time.Microsecond
	for n := range 5 {
		content := bytes.Repeat([]byte{'0' + byte(n)}, 1000+n)
		if err := w.Submit(func([]byte) ([]byte, error) { return content, nil }).Wait(context.Background()); err != nil {
			return err
		}
		fmt.Println(n) // it is answered
	}
	return w.Close(context.Background())
}

// A process that is killed at any call of its writes leaves what it answered last, or the content after that, whole.
func TestAKillAtAnyCallLosesNothing(t *testing.T) {
	if call, err := strconv.Atoi(os.Getenv("DURABLE_TEST_KILL")); err == nil {
		if err := killedWriter(call, os.Getenv("DURABLE_TEST_DIR")); err != nil {
			t.Fatal(err)
		}
		fmt.Println("ended")
		return
	}
	for call, ended := 1, false; !ended; call++ {
		dir := t.TempDir()
		child := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), fmt.Sprint("DURABLE_TEST_KILL=", call), "DURABLE_TEST_DIR="+dir)
		out, err := child.Output()
		ended = strings.Contains(string(out), "ended")
		if exit, ok := errors.AsType[*exec.ExitError](err); !ended && (!ok || exit.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL) {
			t.Fatalf("call %d: %v: %s", call, err, out)
		}
		answered := strings.Count(string(out), "\n")
		if ended {
			answered = 5
		}
		data, err := ReadFile(filepath.Join(dir, "file"))
		if errors.Is(err, fs.ErrNotExist) && answered == 0 {
			continue
		}
		if err != nil || len(data) == 0 {
			t.Fatalf("call %d: after %d answers %d bytes are read: %v", call, answered, len(data), err)
		}
		n := int(data[0] - '0')
		if !bytes.Equal(data, bytes.Repeat(data[:1], 1000+n)) || n != answered-1 && n != answered {
			t.Errorf("call %d: after %d answers %d bytes of %d are read", call, answered, len(data), n)
		}
		// The next process goes on.
		folder := openFolder(t, dir)
		must(t, folder.Lock())
		must(t, folder.Replace("file", []byte("next"), 0o600))
		must(t, folder.Close())
		if diff := cmp.Diff(map[string][]byte{"file": []byte("next")}, files(t, dir)); diff != "" {
			t.Error(diff)
		}
	}
}

// files are what a folder has, by name.
func files(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, name := range names(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		all[name] = data
	}
	return all
}

// Two processes that write the same file at once, as rollback beside the plugin, never mix their content.
func TestWritersOfOneFileNeverMix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, WriteFile(path, bytes.Repeat([]byte{'0'}, 1<<16), 0o600))
	var group sync.WaitGroup
	for letter := byte('a'); letter < 'e'; letter++ {
		group.Go(func() {
			for range 15 {
				if err := WriteFile(path, bytes.Repeat([]byte{letter}, 1<<16), 0o600); err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
					t.Error(err)
				}
				data, err := ReadFile(path)
				if err != nil || len(data) != 1<<16 || bytes.Count(data, data[:1]) != len(data) {
					t.Errorf("%d bytes, %v", len(data), err)
				}
			}
		})
	}
	group.Wait()
}

func TestLoad(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(path string) error
		want    string // the error, with PATH and KEPT
		missing bool
	}{
		"good":        {prepare: func(path string) error { return os.WriteFile(path, []byte("good"), 0o600) }},
		"missing":     {func(string) error { return nil }, "open PATH: no such file or directory", true},
		"damaged":     {func(path string) error { return os.WriteFile(path, []byte("bad"), 0o600) }, "PATH: is bad (kept as KEPT)", false},
		"a folder":    {func(path string) error { return os.Mkdir(path, 0o700) }, "PATH is a folder, want a regular file", false},
		"a pipe":      {func(path string) error { return unix.Mkfifo(path, 0o600) }, "PATH is a special file, want a regular file", false},
		"a huge file": {func(path string) error { must(t, os.WriteFile(path, nil, 0o600)); return os.Truncate(path, maxSize+1) }, "PATH: is larger than 67108864 bytes (kept as KEPT)", false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			must(t, test.prepare(path))
			err := Load(path, func(data []byte) error {
				if string(data) != "good" {
					return errors.New("is bad")
				}
				return nil
			})
			kept, _ := filepath.Glob(path + ".corrupt-*")
			if len(kept) > 1 || (len(kept) == 1) != strings.Contains(test.want, "KEPT") {
				t.Errorf("kept %v", kept)
			}
			replace := []string{path, "PATH"}
			if len(kept) == 1 {
				replace = append([]string{kept[0], "KEPT"}, replace...)
			}
			got := ""
			if err != nil {
				got = strings.NewReplacer(replace...).Replace(err.Error())
			}
			if got != test.want || errors.Is(err, fs.ErrNotExist) != test.missing {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

func TestADamagedFileThatVanishesIsDamagedAllTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o600))
	err := Load(path, func([]byte) error { return errors.Join(errors.New("is empty"), os.Remove(path)) })
	damaged, ok := errors.AsType[*DamagedError](err)
	if want := path + ": is empty; setting it aside: rename " + path + ": no such file or directory"; !ok || damaged.Kept != "" || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestAppendFile(t *testing.T) {
	for name, test := range map[string]struct {
		prepare       func(path string) error
		want, content string
	}{
		"there":   {func(path string) error { return os.WriteFile(path, []byte("old\n"), 0o600) }, "", "old\nnew\n"},
		"missing": {func(string) error { return nil }, "open PATH: no such file or directory", ""},
		"a link":  {func(path string) error { return os.Symlink("/dev/null", path) }, "open PATH: too many levels of symbolic links", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			must(t, test.prepare(path))
			got := ""
			if err := AppendFile(path, []byte("new\n")); err != nil {
				got = strings.ReplaceAll(err.Error(), path, "PATH")
			}
			if content, _ := os.ReadFile(path); got != test.want || string(content) != test.content {
				t.Errorf("got %q, and the file has %q", got, content)
			}
		})
	}
}
