package protect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
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
	{"kubepods", cgroup.MemoryMin, "", ""}, {"kubepods.slice", cgroup.MemoryLow, "kubepods.slice", ""}, {"kubepods/pod1/abc", cgroup.CpusetMems, "", ""}, {"kubepods/pod1/abc", cgroup.MemoryHigh, "", ""},
}

func TestJournalOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, dir)
	for _, e := range entries {
		j.Note(e)
		j.Note(e)
	}
	j.Note(Entry{"kubepods/pod1", cgroup.MemoryMin, "", ""})
	j.forget("kubepods/pod1", cgroup.MemoryMin, false)
	j.forget("kubepods/pod1", cgroup.MemoryMin, false)
	j.forget("kubepods", cgroup.MemoryLow, false)
	j.Note(Entry{"system.slice", cgroup.MemoryMin, "", ""})      // not ours to touch
	j.Note(Entry{"kubepods", cgroup.Knob("memory.max"), "", ""}) // nor this
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
	again.Note(Entry{"kubepods.slice/kubepods-pod1.slice/crio-a.scope", cgroup.MemoryHigh, "", ""})
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
	known := []Entry{{"kubepods", cgroup.MemoryMin, "", ""}}
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
		"no number to restore": {`{"version":1,"cgroups":[{"cgroup":"kubepods","knobs":["memory.min"],"restore":{"memory.min":"many"}}]}`,
			`cgroup "kubepods": restore of memory.min: "many" is not a number of bytes or max`, known},
		"another knob to restore": {`{"version":1,"cgroups":[{"cgroup":"kubepods","knobs":["memory.min"],"restore":{"memory.max":"4096"}}]}`,
			`cgroup "kubepods": restore of memory.max: want one of memory.min, memory.low, memory.high`, known},
		"another kind to restore": {`{"version":1,"cgroups":[{"cgroup":"kubepods","knobs":["memory.min"],"restore":{"memory.min":4096}}]}`, "cannot unmarshal number", nil},
		"another kind":            {`{"version":1,"cgroups":[{"cgroup":"kubepods","knobs":[{"memory.min":5}]}]}`, "cannot unmarshal object", nil},
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

// What the kubelet wants goes with a knob: as it was asked for before our first value, and as it was asked for last.
func TestJournalKnowsWhatTheKubeletWants(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, dir)
	const a, b = "kubepods/pod1/a", "kubepods/pod1/b"
	j.Note(Entry{a, cgroup.MemoryMin, "", "4096"})
	j.Note(Entry{a, cgroup.MemoryMin, "", "8192"}) // this one is ours by now
	j.Note(Entry{a, cgroup.MemoryLow, "", "0"})
	j.Note(Entry{a, cgroup.MemoryHigh, "", "many"})
	j.Note(Entry{a, cgroup.CpusetMems, "", "0"})
	j.Note(Entry{b, cgroup.MemoryLow, "", "max"})
	j.Note(Entry{b, cgroup.MemoryHigh, "", "max"})
	entries := func() (all []string) {
		for _, e := range j.Entries() {
			all = append(all, e.Cgroup+"/"+string(e.Knob)+"="+e.Restore)
		}
		return all
	}
	wantWrites(t, entries(), a+"/cpuset.mems=", a+"/memory.high=", a+"/memory.low=", a+"/memory.min=4096", b+"/memory.high=", b+"/memory.low=max")

	j.SetRestore(a, map[string]string{"memory.min": "12288", "memory.low": "-1", "memory.high": "16384", "cpuset.mems": "1", "pids.max": "1"})
	j.SetRestore(b, map[string]string{"memory.min": "12288", "memory.low": "0"}) // memory.min is none of ours
	j.SetRestore("kubepods/pod2", map[string]string{"memory.min": "12288"})
	want := []string{a + "/cpuset.mems=", a + "/memory.high=16384", a + "/memory.low=", a + "/memory.min=12288", b + "/memory.high=", b + "/memory.low="}
	wantWrites(t, entries(), want...)
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	// A release that does not know of it reads the rest.
	data, err := os.ReadFile(filepath.Join(dir, JournalFile))
	if err != nil {
		t.Fatal(err)
	}
	var older struct {
		Version int
		Cgroups []struct {
			Cgroup string
			Knobs  []cgroup.Knob
			Unit   string
			Noted  int64
			Seen   bool
		}
	}
	if err := json.Unmarshal(data, &older); err != nil || older.Version != 1 || len(older.Cgroups) != 2 || len(older.Cgroups[0].Knobs) != 4 {
		t.Errorf("an older release reads %+v, %v from\n%s", older, err, data)
	}

	j = openJournal(t, dir)
	wantWrites(t, entries(), want...)
	j.forget(a, cgroup.MemoryMin, true) // our 0 is not what the kubelet wants
	j.forget(a, cgroup.MemoryLow, true)
	j.forget(a, cgroup.MemoryLow, true)
	j.forget("kubepods/pod2", cgroup.MemoryLow, true)
	j.forget(a, cgroup.MemoryHigh, false)
	wantWrites(t, entries(), a+"/cpuset.mems=", a+"/memory.min=12288", b+"/memory.high=", b+"/memory.low=")
}

func TestJournalThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, map[string]string{JournalFile + "/x": ""})
	if _, _, err := OpenJournal(dir); err == nil || !strings.Contains(err.Error(), "read the journal of written knobs") {
		t.Errorf("got %v", err)
	}
}

// Whatever number of cgroups one call looks at, some calls later all have been looked at.
func TestPruneComesRound(t *testing.T) {
	j := openJournal(t, t.TempDir())
	for _, pod := range []string{"kubepods/pod1", "kubepods/pod2", "kubepods/pod3", "kubepods/pod4", "kubepods/pod5"} {
		j.Note(Entry{pod, cgroup.MemoryMin, "", ""})
	}
	there := true
	looks := 0
	round := func() {
		for range 3 {
			j.prune(2, func(string) (bool, error) { looks++; return there, nil })
		}
	}
	round()
	there = false
	round()
	if looks != 10 || len(j.Entries()) != 0 {
		t.Errorf("%d looks at five cgroups in two rounds, %d entries are left", looks, len(j.Entries()))
	}
}

func TestPruneKeepsWhatIsYetToCome(t *testing.T) {
	j := openJournal(t, t.TempDir())
	clock := time.Unix(1e9, 0)
	j.now = func() time.Time { return clock }
	j.Note(Entry{"kubepods", cgroup.MemoryMin, "", ""})
	j.Note(Entry{"kubepods/pod1/created", cgroup.MemoryHigh, "", ""})
	alive := map[string]bool{"kubepods": true}
	exists := func(cgroup string) (bool, error) { return alive[cgroup], nil }
	cgroups := func() (list []string) {
		for _, e := range j.Entries() {
			list = append(list, e.Cgroup)
		}
		return list
	}
	j.prune(10, exists)
	wantWrites(t, cgroups(), "kubepods", "kubepods/pod1/created") // its cgroup comes at start
	alive["kubepods/pod1/created"] = true
	j.prune(10, exists)
	delete(alive, "kubepods/pod1/created")
	j.prune(10, exists)
	wantWrites(t, cgroups(), "kubepods")
	j.Note(Entry{"kubepods/pod1/never", cgroup.MemoryHigh, "", ""})
	clock = clock.Add(creationLimit + time.Second)
	j.prune(10, func(string) (bool, error) { return false, unix.EMFILE }) // whether it is gone is not known
	wantWrites(t, cgroups(), "kubepods", "kubepods/pod1/never")
	j.prune(10, exists)
	wantWrites(t, cgroups(), "kubepods")
	j.prune(10, func(dir string) (bool, error) { // it is made again meanwhile
		j.Note(Entry{dir, cgroup.MemoryMin, "", ""})
		return false, nil
	})
	wantWrites(t, cgroups(), "kubepods")
}

func TestWhatEndsLeavesTheJournal(t *testing.T) {
	n := newNode(t, nil, runcA)
	note := func(dirs ...string) {
		for _, dir := range dirs {
			n.journal.Note(Entry{dir, cgroup.MemoryHigh, "", "4096"})
			n.journal.Note(Entry{dir, cgroup.CpusetMems, "", ""})
		}
	}
	cgroups := func() (list []string) {
		for _, e := range n.journal.Entries() {
			if e.Knob == cgroup.CpusetMems {
				list = append(list, e.Cgroup)
			}
		}
		return list
	}
	note("kubepods/pod1", "kubepods/pod1/a", "kubepods/pod1/b", "kubepods/pod11", "kubepods/pod11/a")
	n.journal.End("kubepods/pod1/a")
	n.journal.End("kubepods/pod2")
	wantWrites(t, cgroups(), "kubepods/pod1", "kubepods/pod1/b", "kubepods/pod11", "kubepods/pod11/a")
	for _, dir := range []string{"kubepods/pod1", "kubepods/pod1/b"} {
		n.journal.End(dir)
	}
	wantWrites(t, cgroups(), "kubepods/pod11", "kubepods/pod11/a")
	for _, dir := range []string{"kubepods/pod11", "kubepods/pod11/a"} {
		n.journal.End(dir)
	}

	// A container that was seen and is gone.
	n.do(t, func() error {
		return errors.Join(n.applyAll(t.Context(), containers(t, Container{Values: minimum(100), Mems: "1"}, Container{})), n.WriteLate(t.Context()))
	})
	if err := os.RemoveAll(filepath.Join(n.Root(), runcA)); err != nil {
		t.Fatal(err)
	}
	wantWrites(t, cgroups(), runcA)
	n.reconcile(t)
	wantWrites(t, cgroups())
	// A value of ours that is put back after the end is not taken for one of the kubelet's.
	n.journal.End(podG)
	n.do(t, func() error { return n.applyPart(t.Context(), nil, []string{podG}) })
	want := []Entry{{"kubepods", cgroup.MemoryMin, "", ""}}
	if diff := cmp.Diff(want, n.journal.Entries()); diff != "" {
		t.Error(diff)
	}
}

func TestAHangingDiskHoldsNobody(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, JournalFile+".tmp") // opening it hangs until somebody reads
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	j := openJournal(t, dir)
	j.Note(entries[0])
	for i := range 1000 {
		j.Note(Entry{fmt.Sprintf("kubepods/pod%d", i), cgroup.MemoryMin, "", ""})
	}
	j.forget("kubepods/pod1", cgroup.MemoryMin, false)
	if len(j.Entries()) != 1000 {
		t.Errorf("%d entries", len(j.Entries()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Flush(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0) // as a writer, too, so that it finds no end
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	for j.Flush(t.Context()) != nil { // the write that hung fails
	}
	data, err := os.ReadFile(filepath.Join(dir, JournalFile))
	if err != nil || strings.Count(string(data), "memory.min") != 1000 {
		t.Errorf("%d entries on the disk, %v", strings.Count(string(data), "memory.min"), err)
	}
}

func TestAFailedWriteIsReportedAndTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	j := openJournal(t, dir) // the folder is missing
	j.Note(entries[0])
	if err := j.Flush(t.Context()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "write the journal of written knobs: open "+dir+": ") {
		t.Errorf("got %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	_ = j.Flush(t.Context()) // perhaps of a try that began before
	if err := j.Flush(t.Context()); err != nil {
		t.Errorf("got %v", err)
	}
	if err := j.Close(t.Context()); err != nil {
		t.Error(err)
	}
	j.Note(entries[2])
	if err := j.Flush(t.Context()); !errors.Is(err, durable.ErrClosed) {
		t.Errorf("flushed after Close: %v", err)
	}
}

// What the file of an earlier process did not get, because it could not be replaced, is in it after the next write.
func TestAFileThatCannotBeReplacedIsReplacedLater(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, JournalFile)
	if err := os.WriteFile(path, encodeJournal(nil), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(path+".tmp/inside", 0o700); err != nil {
		t.Fatal(err)
	}
	j := openJournal(t, dir)
	j.Note(entries[0])
	if err := j.Flush(t.Context()); err == nil {
		t.Fatal("the file could be replaced: nothing is shown")
	}
	if err := os.RemoveAll(path + ".tmp"); err != nil {
		t.Fatal(err)
	}
	j.Note(entries[2])
	if err := j.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if has, err := decodeJournal(data); err != nil || len(has) != 2 {
		t.Errorf("the file has %v, %v, want both cgroups", has, err)
	}
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"version":1,"cgroups":[{"cgroup":"kubepods/pod1","knobs":["memory.min"],"noted":1767225600}]}`))
	f.Add([]byte(`{"version":1,"cgroups":[{"cgroup":"../kubepods","knobs":["memory.max"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		cgroups, _ := decodeJournal(data)
		again, err := decodeJournal(encodeJournal(cgroups))
		if err != nil {
			t.Fatal(err)
		}
		for dir, c := range cgroups {
			if !cgroup.Inside(dir) || !maps.Equal(again[dir].knobs, c.knobs) {
				t.Errorf("%q: %+v became %+v", dir, c, again[dir])
			}
		}
	})
}

// A change is a line at the end of the file; the file is replaced when it has grown, where it takes no line, and at the end.
func TestJournalAddsWhatChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, JournalFile)
	j := openJournal(t, dir)
	note := func(cgroups ...string) {
		t.Helper()
		for _, dir := range cgroups {
			j.Note(Entry{dir, cgroup.MemoryMin, "", ""})
		}
		if err := j.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	lines := func() int { data, _ := os.ReadFile(path); return strings.Count(string(data), "\n") }
	note("kubepods")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	note("kubepods/pod1")
	note("kubepods/pod1/a")
	j.End("kubepods/pod1/a")
	note("kubepods/pod2")
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) || lines() != 5 {
		t.Errorf("the file has %d lines, want 5 in the same file; %v", lines(), err)
	}
	known := func() (all []string) {
		data, err := os.ReadFile(path)
		cgroups, damage := decodeJournal(data)
		if err != nil || damage != nil {
			t.Errorf("%v, damage %v", err, damage)
		}
		return slices.Sorted(maps.Keys(cgroups))
	}
	wantWrites(t, known(), "kubepods", "kubepods/pod1", "kubepods/pod2")

	if err := os.Remove(path); err != nil { // it takes no line
		t.Fatal(err)
	}
	note("kubepods/pod3")
	if wantWrites(t, known(), "kubepods", "kubepods/pod1", "kubepods/pod2", "kubepods/pod3"); lines() != 1 {
		t.Errorf("%d lines", lines())
	}
	for i := 0; lines() != 1 || i < 2; i++ { // until it is replaced
		note(fmt.Sprintf("kubepods/pod3/%0*d", 4096, i))
	}
	if size := len(known()); size < leastAdded/8192 || size > 2*leastAdded/4096 {
		t.Errorf("replaced with %d cgroups of 4 KiB", size)
	}
	note("kubepods/pod4")
	if err := j.Close(t.Context()); err != nil || lines() != 1 {
		t.Errorf("closed with %d lines, %v", lines(), err)
	}
}

func TestJournalOfAKilledProcess(t *testing.T) {
	const state = `{"version":1,"cgroups":[{"cgroup":"kubepods","knobs":["memory.min"],"noted":5}]}` + "\n"
	for name, test := range map[string]struct{ lines, damage, want string }{
		"killed between writes": {`{"cgroup":"kubepods/pod1","knobs":["memory.low"],"restore":{"memory.low":"4096"}}` + "\n", "", "kubepods/memory.min= kubepods/pod1/memory.low=4096"},
		"killed in a write":     {`{"cgroup":"kubepods/pod1","knobs":["memory.low"]}` + "\n" + `{"cgroup":"kubepods/po`, "", "kubepods/memory.min= kubepods/pod1/memory.low="},
		"restored":              {`{"cgroup":"kubepods","knobs":null}` + "\n", "", ""},
		"a line that is none":   {"\x00\x00\n" + `{"cgroup":"kubepods/pod1","knobs":["memory.low"]}` + "\n", "line 2: invalid character", "kubepods/memory.min= kubepods/pod1/memory.low="},
		"a line that leads out": {`{"cgroup":"../x","knobs":["memory.low"]}` + "\n", `line 2: cgroup "../x" is not below kubepods`, "kubepods/memory.min="},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, map[string]string{JournalFile: state + test.lines})
			j, damage, err := OpenJournal(dir)
			if err != nil || (damage == nil) != (test.damage == "") || damage != nil && !strings.Contains(damage.Error(), test.damage) {
				t.Fatalf("damage %v, %v, want %q", damage, err, test.damage)
			}
			defer j.Close(t.Context())
			var all []string
			for _, e := range j.Entries() {
				all = append(all, e.Cgroup+"/"+string(e.Knob)+"="+e.Restore)
			}
			if got := strings.Join(all, " "); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// A container that ends while its change waits for the journal's file is not written, and another one is.
func TestAContainerThatEndsWhileTheJournalIsWritten(t *testing.T) {
	dir, ends, lives := t.TempDir(), podB+"/ends", podB+"/lives"
	if err := unix.Mkfifo(filepath.Join(dir, JournalFile+".tmp"), 0o600); err != nil { // whose opening waits for a reader
		t.Fatal(err)
	}
	tree := makeTree(t, map[string]string{ends + "/memory.min": "0", lives + "/memory.min": "0"}, cgroupfs.Plain())
	j := openJournal(t, dir)
	p := New(Options{Tree: tree, Journal: j})
	var targets []cgroup.Target
	for _, c := range []string{ends, lives} {
		targets = append(targets, cgroup.Target{Cgroup: c, Level: cgroup.LevelContainer, Values: memoryqos.Values{Min: new(uint64(4096))}})
	}
	if err := p.Desire(targets, nil); err != nil {
		t.Fatal(err)
	}
	checked := make(chan error)
	go func() { checked <- p.Check(t.Context(), ends, lives) }()
	for len(j.Entries()) < 2 {
		runtime.Gosched()
	}
	if err := os.RemoveAll(filepath.Join(tree.Root(), ends)); err != nil {
		t.Fatal(err)
	}
	if err := p.Desire(nil, []string{ends}); err != nil { // once Check waits without the lock
		t.Fatal(err)
	}
	if err := <-checked; err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(filepath.Join(tree.Root(), lives, "memory.min")); err != nil || strings.TrimSpace(string(got)) != "4096" {
		t.Errorf("memory.min of the one that lives is %q, %v", got, err)
	}
	reader, err := os.OpenFile(filepath.Join(dir, JournalFile+".tmp"), os.O_RDWR, 0) // so that the writer can end
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	go func() { _, _ = io.Copy(io.Discard, reader) }()
}
