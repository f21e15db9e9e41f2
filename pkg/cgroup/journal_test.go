package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func openJournal(t testing.TB, dir string) *Journal {
	t.Helper()
	j, damage, err := OpenJournal(dir)
	if err != nil || damage != nil {
		t.Fatalf("%v, damage %v", err, damage)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own has ended
		defer cancel()
		j.Close(ctx)
	})
	return j
}

var entries = []Entry{
	{"kubepods", MemoryMin, ""}, {"kubepods.slice", MemoryLow, "kubepods.slice"}, {"kubepods/pod1/abc", CpusetMems, ""}, {"kubepods/pod1/abc", MemoryHigh, ""},
}

func TestJournalOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, dir)
	for _, e := range entries {
		j.Note(e)
		j.Note(e)
	}
	j.Note(Entry{"kubepods/pod1", MemoryMin, ""})
	j.Forget("kubepods/pod1", MemoryMin)
	j.Forget("kubepods/pod1", MemoryMin)
	j.Forget("kubepods", MemoryLow)
	j.Note(Entry{"system.slice", MemoryMin, ""})      // not ours to touch
	j.Note(Entry{"kubepods", Knob("memory.max"), ""}) // nor this
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(t.Context()); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	info, err := os.Stat(filepath.Join(dir, JournalFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	again := openJournal(t, dir)
	if diff := cmp.Diff(entries, again.Entries()); diff != "" {
		t.Error(diff)
	}
	again.Note(Entry{"kubepods.slice/kubepods-pod1.slice/crio-a.scope", MemoryHigh, ""})
	if err := again.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	if e := again.Entries()[2]; e.Unit != "crio-a.scope" {
		t.Errorf("a runtime sets a scope's properties, but %v", e)
	}
	if files, _ := filepath.Glob(dir + "/*"); len(files) != 1 {
		t.Errorf("left %v", files)
	}
}

func TestAJournalWithMoreThanIsKnownIsSetAside(t *testing.T) {
	const line = `{"cgroup":"kubepods","knobs":["memory.min"],"noted":5}`
	known := []Entry{{"kubepods", MemoryMin, ""}}
	for name, test := range map[string]struct {
		text, damage string
		entries      []Entry
	}{
		"empty": {"", "unexpected end of JSON input", nil},
		"torn":  {`{"version":1,"cgroups":[` + line + `,{"cgr`, "unexpected end of JSON input", nil},
		"newer": {`{"version":2,"cgroups":[` + line + `]}`, "version is 2, want 1", known},
		"leads out": {`{"version":1,"cgroups":[{"cgroup":"../x","knobs":["memory.min"]},` + line + `]}`,
			`cgroup "../x" is not below kubepods`, known},
		"another knob": {`{"version":1,"cgroups":[{"cgroup":"kubepods","knobs":["memory.max","memory.min"]}]}`,
			`cgroup "kubepods": unknown knob "memory.max"`, known},
		"only another knob": {`{"version":1,"cgroups":[{"cgroup":"kubepods","knobs":["memory.max"]}]}`,
			`cgroup "kubepods": unknown knob "memory.max"`, nil},
		"another kind": {`{"version":1,"cgroups":[{"cgroup":"kubepods","knobs":[{"memory.min":5}]}]}`, "cannot unmarshal object", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, map[string]string{JournalFile: test.text})
			j, damage, err := OpenJournal(dir)
			kept, _ := filepath.Glob(filepath.Join(dir, JournalFile+".corrupt-*"))
			if err != nil || len(kept) != 1 {
				t.Fatalf("kept %q, %v", kept, err)
			}
			if damage == nil || !strings.Contains(damage.Error(), test.damage) || !strings.HasSuffix(damage.Error(), "(kept as "+kept[0]+")") {
				t.Errorf("damage is %v, want %s and the file that is kept", damage, test.damage)
			}
			if data, err := os.ReadFile(kept[0]); err != nil || string(data) != test.text {
				t.Errorf("%q, %v", data, err)
			}
			if err := j.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(test.entries, openJournal(t, dir).Entries()); diff != "" {
				t.Errorf("read again from the disk: %s", diff)
			}
		})
	}
}

func TestJournalThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{JournalFile + "/x": ""})
	if _, _, err := OpenJournal(dir); err == nil || !strings.Contains(err.Error(), "read the journal of written knobs") {
		t.Errorf("got %v", err)
	}
}

func TestPruneKeepsWhatIsYetToCome(t *testing.T) {
	j := openJournal(t, t.TempDir())
	clock := time.Unix(1e9, 0)
	j.now = func() time.Time { return clock }
	j.Note(Entry{"kubepods", MemoryMin, ""})
	j.Note(Entry{"kubepods/pod1/created", MemoryHigh, ""})
	alive := map[string]bool{"kubepods": true}
	exists := func(cgroup string) (bool, error) { return alive[cgroup], nil }
	cgroups := func() (list []string) {
		for _, e := range j.Entries() {
			list = append(list, e.Cgroup)
		}
		return list
	}
	j.Prune(exists)
	wantWrites(t, cgroups(), "kubepods", "kubepods/pod1/created") // its cgroup comes at start
	alive["kubepods/pod1/created"] = true
	j.Prune(exists)
	delete(alive, "kubepods/pod1/created")
	j.Prune(exists)
	wantWrites(t, cgroups(), "kubepods")
	j.Note(Entry{"kubepods/pod1/never", MemoryHigh, ""})
	clock = clock.Add(arrival + time.Second)
	j.Prune(func(string) (bool, error) { return false, unix.EMFILE }) // whether it is gone is not known
	wantWrites(t, cgroups(), "kubepods", "kubepods/pod1/never")
	j.Prune(exists)
	wantWrites(t, cgroups(), "kubepods")
}

func TestAHangingDiskHoldsNobody(t *testing.T) {
	j := openJournal(t, t.TempDir())
	began, hang := make(chan struct{}), make(chan struct{})
	j.mu.Lock()
	j.save = func([]byte) error {
		close(began)
		<-hang
		return nil
	}
	j.mu.Unlock()
	j.Note(entries[0])
	<-began
	for i := range 1000 {
		j.Note(Entry{fmt.Sprintf("kubepods/pod%d", i), MemoryMin, ""})
	}
	j.Forget("kubepods/pod1", MemoryMin)
	if len(j.Entries()) != 1000 {
		t.Errorf("%d entries", len(j.Entries()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Flush(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	j.mu.Lock()
	j.save = j.saveFile
	j.mu.Unlock()
	close(hang)
	if err := j.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	data, err := os.ReadFile(j.path)
	if err != nil || strings.Count(string(data), "memory.min") != 1000 {
		t.Errorf("%d entries on the disk, %v", strings.Count(string(data), "memory.min"), err)
	}
}

func TestAFailedWriteIsToldAndTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	j := openJournal(t, dir) // the folder is not there
	j.Note(entries[0])
	if err := j.Flush(t.Context()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "write the journal of written knobs") {
		t.Errorf("got %v", err)
	}
	if j.Err() == nil {
		t.Error("the error is forgotten")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	j.Prune(func(string) (bool, error) { return true, nil })
	waitFor(t, func() bool { return j.Err() == nil })
	// A later failure, then Flush alone.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	j.Note(entries[1])
	if err := j.Flush(t.Context()); err == nil {
		t.Error("no error")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := j.Flush(t.Context()); err != nil {
		t.Errorf("got %v", err)
	}
	if err := j.Close(t.Context()); err != nil {
		t.Error(err)
	}
	j.Note(entries[2])
	if err := j.Flush(t.Context()); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("flushed after Close: %v", err)
	}
}
