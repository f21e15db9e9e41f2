package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store
}

// aState is a good state with one container.
func aState(t testing.TB) memorymanager.State {
	t.Helper()
	file, err := Decode([]byte(goodText))
	if err != nil {
		t.Fatal(err)
	}
	return file.State
}

func TestSaveThenLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lib", "state")
	store := openStore(t, dir)
	if _, err := store.Load(); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("an empty folder: %v", err)
	}
	for range 2 {
		if err := store.Save(aState(t)); err != nil {
			t.Fatal(err)
		}
	}
	file, err := store.Load()
	if err != nil || !file.Verified || !cmp.Equal(file.State, aState(t)) {
		t.Fatalf("%v: %+v", err, file)
	}
	for path, want := range map[string]fs.FileMode{dir: 0o700, store.Path(): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v: %v", path, info.Mode().Perm(), want, err)
		}
	}
	if names := folder(t, dir); !cmp.Equal(names, []string{FileName}) {
		t.Errorf("the folder has %v", names)
	}
}

func folder(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestBadFileIsKeptAside(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	for i, bad := range []string{"", "not a state", goodText[:100]} {
		if err := os.WriteFile(store.Path(), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := store.Load()
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), store.Path()) || !strings.Contains(err.Error(), corrupt.Kept) {
			t.Fatal(err)
		}
		if kept, err := os.ReadFile(corrupt.Kept); err != nil || string(kept) != bad || !strings.HasPrefix(corrupt.Kept, store.Path()+".corrupt-") {
			t.Fatalf("%s: %q: %v", corrupt.Kept, kept, err)
		}
		if names := folder(t, dir); len(names) != i+1 {
			t.Errorf("the folder has %v", names)
		}
		if _, err := store.Load(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the bad file is still there: %v", err)
		}
	}
	if err := store.Save(aState(t)); err != nil {
		t.Error(err)
	}
}

func TestUnreadableFileIsKeptAsideBeforeItIsReplaced(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	if err := os.MkdirAll(filepath.Join(store.Path(), "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(); err == nil || !strings.Contains(err.Error(), "is a folder, want a regular file") {
		t.Fatal(err)
	}
	if err := store.Save(aState(t)); err != nil {
		t.Fatal(err)
	}
	if kept, _ := filepath.Glob(store.Path() + ".corrupt-*/inside"); len(kept) != 1 {
		t.Errorf("the folder has %v", folder(t, dir))
	}
}

func TestReadFileRefusesWhatIsNotAStateFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 64<<20+1); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "reading the state file: open " + filepath.Join(dir, "none") + ": no such file or directory",
		dir:                        "reading the state file: " + dir + " is a folder, want a regular file",
		pipe:                       "reading the state file: " + pipe + " is a special file, want a regular file",
		large:                      "reading the state file: " + large + ": is larger than 67108864 bytes",
	} {
		if _, err := ReadFile(path); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestOpenNamesTheFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
}

func TestFolderThatIsRemovedComesBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	store := openStore(t, dir)
	if err := store.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(aState(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(); err != nil {
		t.Error(err)
	}
	if err := openStore(t, dir).Lock(); !errors.Is(err, ErrInUse) {
		t.Errorf("the new folder is not locked: %v", err)
	}
}

func TestFolderIsLockedOnce(t *testing.T) {
	dir := t.TempDir()
	first, second := openStore(t, dir), openStore(t, dir)
	if err := first.Lock(); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%s: another nri-memory-manager is running with this state folder: process %d", dir, os.Getpid())
	if err := second.Lock(); !errors.Is(err, ErrInUse) || err.Error() != want {
		t.Fatalf("a second lock: %v, want %s", err, want)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.Lock(); err != nil {
		t.Errorf("after Close: %v", err)
	}
}

// A folder that was replaced between its opening and its lock is not the one that the lock is for.
func TestFolderThatIsReplacedBeforeItIsLocked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	store := openStore(t, dir)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	other := openStore(t, dir)
	if err := other.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := store.Lock(); !errors.Is(err, ErrInUse) {
		t.Errorf("the folder that was moved away is locked: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Lock(); err != nil {
		t.Error(err)
	}
	if err := openStore(t, dir).Lock(); !errors.Is(err, ErrInUse) {
		t.Errorf("the new folder is not locked: %v", err)
	}
}

// A folder that another process has replaced is not written without its lock.
func TestFolderThatIsReplacedIsLockedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	store := openStore(t, dir)
	if err := store.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	other := openStore(t, dir)
	if err := other.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(aState(t)); !errors.Is(err, ErrInUse) {
		t.Errorf("written beside another process: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(aState(t)); err != nil {
		t.Error(err)
	}
	if err := openStore(t, dir).Lock(); !errors.Is(err, ErrInUse) {
		t.Errorf("the new folder is not locked: %v", err)
	}
}

func TestCloseDoesNotWaitForAWriteThatHangs(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	fifo := filepath.Join(dir, FileName+".tmp") // opening it hangs until somebody reads
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	w := NewWriter(store)
	w.Replace(aState(t))
	for store.mu.TryLock() { // until the write has begun
		store.mu.Unlock()
		runtime.Gosched()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := store.Close(); err == nil || !strings.Contains(err.Error(), dir+": a write is under way") {
		t.Errorf("got %v", err)
	}
	if err := os.Rename(fifo, fifo+".old"); err != nil { // what hangs fails then, and is written again
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo+".old", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

func TestSaveNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, FileName), 0o700); err != nil {
		t.Fatal(err)
	}
	err := openStore(t, dir).Save(aState(t))
	if want := "writing the state file: rename DIR/memory_manager_state: is a directory"; err == nil || strings.ReplaceAll(err.Error(), dir, "DIR") != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
