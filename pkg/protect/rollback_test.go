package protect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

const (
	scopeA = sliceG + "/crio-a.scope"
	plainB = podB + "/b"
)

// written is a node on which everything was written once.
func written(t *testing.T, u Units) *node {
	n := newNode(t, u, scopeA+"/container", plainB)
	for dir, files := range map[string]map[string]string{
		"kubepods":  {"memory.min": "130", "memory.low": "30", "cpuset.mems.effective": "0-3"},
		podB:        {"memory.low": "30", "cpuset.mems.effective": "0-1"},
		plainB:      {"memory.low": "30", "memory.high": "4096", "cpuset.mems": "1"},
		scopeA:      {"memory.min": "100", "memory.high": "8192", "cpuset.mems": "1", "cpuset.mems.effective": "0"},
		sliceG:      {"memory.min": "100", "cpuset.mems.effective": "0-2"},
		podC + "/x": {"memory.min": "5"},
	} {
		for file, text := range files {
			put(t, n.Root(), map[string]string{dir + "/" + file: text})
		}
		for knob := range property {
			if _, ok := files[string(knob)]; ok && dir != podC+"/x" {
				n.journal.Note(Entry{dir, knob, cgroup.Unit(dir), ""})
			}
		}
	}
	put(t, n.Root(), map[string]string{scopeA + "/container/memory.min": "100", scopeA + "/container/cpuset.mems": "1"})
	n.journal.Note(Entry{"kubepods/podgone/c", cgroup.MemoryHigh, "", ""})
	return n
}

func TestRollbackRestoresWhatTheJournalKnows(t *testing.T) {
	u := &units{}
	n := written(t, u)
	want := []Action{
		{Cgroup: plainB, Level: cgroup.LevelContainer, Knob: cgroup.CpusetMems, From: "1", To: "0-1"},
		{Cgroup: plainB, Level: cgroup.LevelContainer, Knob: cgroup.MemoryHigh, From: "4096", To: "max"},
		{Cgroup: plainB, Level: cgroup.LevelContainer, Knob: cgroup.MemoryLow, From: "30", To: "0"},
		{Cgroup: scopeA, Level: cgroup.LevelContainer, Knob: cgroup.CpusetMems, Unit: "crio-a.scope", From: "1", To: "0-2"},
		{Cgroup: scopeA, Level: cgroup.LevelContainer, Knob: cgroup.MemoryHigh, Unit: "crio-a.scope", From: "8192", To: "max"},
		{Cgroup: scopeA, Level: cgroup.LevelContainer, Knob: cgroup.MemoryMin, Unit: "crio-a.scope", From: "100", To: "0"},
		{Cgroup: podB, Level: cgroup.LevelPod, Knob: cgroup.MemoryLow, From: "30", To: "0"},
		{Cgroup: "kubepods/podgone/c", Level: cgroup.LevelContainer, Knob: cgroup.MemoryHigh, Gone: true},
		{Cgroup: sliceG, Level: cgroup.LevelPod, Knob: cgroup.MemoryMin, Unit: "kubepods-podg.slice", From: "100", To: "0"},
		{Cgroup: "kubepods", Level: cgroup.LevelKubepods, Knob: cgroup.MemoryLow, From: "30", To: "0"},
		{Cgroup: "kubepods", Level: cgroup.LevelKubepods, Knob: cgroup.MemoryMin, From: "130", To: "0"},
	}
	got, err := Rollback(t.Context(), n.journal, n.Tree, u, true)
	byDepth := cmpopts.SortSlices(func(a, b Action) bool { return a.Cgroup+string(a.Knob) < b.Cgroup+string(b.Knob) })
	if diff := cmp.Diff(want, got, byDepth); diff != "" || err != nil {
		t.Errorf("dry run: %v %s", err, diff)
	}
	if len(n.allWrites()) > 0 || len(u.calls) > 0 || len(n.journal.Entries()) != len(want) {
		t.Errorf("the dry run wrote %v, told systemd %v", n.allWrites(), u.calls)
	}
	for i := 1; i < len(got); i++ {
		if depth(got[i].Cgroup) > depth(got[i-1].Cgroup) {
			t.Errorf("%s is restored before what is below it", got[i-1].Cgroup)
		}
	}

	got, err = Rollback(t.Context(), n.journal, n.Tree, u, false)
	if diff := cmp.Diff(want, got, byDepth); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for file, want := range map[string]string{
		"kubepods/memory.min": "0", "kubepods/memory.low": "0", podB + "/memory.low": "0",
		plainB + "/memory.low": "0", plainB + "/memory.high": "max", plainB + "/cpuset.mems": "0-1",
		scopeA + "/memory.min": "0", scopeA + "/memory.high": "max", scopeA + "/cpuset.mems": "0-2",
		scopeA + "/container/memory.min": "0", scopeA + "/container/memory.high": "max", scopeA + "/container/cpuset.mems": "0-2",
		sliceG + "/memory.min": "0",
		podC + "/x/memory.min": "5", // not ours
	} {
		if got := content(t, n.Tree, file); got != want {
			t.Errorf("%s holds %s, want %s", file, got, want)
		}
	}
	wantWrites(t, u.calls, "crio-a.scope cpuset.mems=7", "crio-a.scope memory.high=max", "crio-a.scope memory.min=0", "kubepods-podg.slice memory.min=0")

	n.clearWrites()
	if got, err := Rollback(t.Context(), n.journal, n.Tree, u, false); len(got) > 0 || err != nil || len(n.allWrites()) > 0 {
		t.Errorf("the second time: %v, %v", got, err)
	}
}

func TestRollbackGivesBackWhatTheKubeletWants(t *testing.T) {
	u := &units{}
	n := newNode(t, u)
	for dir, files := range map[string]map[string]string{
		scopeA: {"memory.min": "100", "memory.high": "8192"}, scopeA + "/container": {"memory.min": "100", "memory.high": "8192"},
		sliceG: {"memory.min": "100"}, plainB: {"memory.low": "30", "memory.high": "4096"}, podB: {"memory.low": "30"},
	} {
		for file, text := range files {
			put(t, n.Root(), map[string]string{dir + "/" + file: text})
		}
	}
	for _, e := range []Entry{
		{scopeA, cgroup.MemoryMin, "crio-a.scope", "128"}, {scopeA, cgroup.MemoryHigh, "crio-a.scope", "12288"}, {sliceG, cgroup.MemoryMin, cgroup.Unit(sliceG), "120"},
		{plainB, cgroup.MemoryLow, "", "40"}, {plainB, cgroup.MemoryHigh, "", ""}, {podB, cgroup.MemoryLow, "", "max"},
	} {
		n.journal.Note(e)
	}
	actions, err := Rollback(t.Context(), n.journal, n.Tree, u, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range actions {
		if want := a.Cgroup != plainB || a.Knob != cgroup.MemoryHigh; a.KubeletValue != want {
			t.Errorf("%s/%s to %s is said to be what the kubelet wants: %t", a.Cgroup, a.Knob, a.To, a.KubeletValue)
		}
	}
	for file, want := range map[string]string{
		scopeA + "/memory.min": "128", scopeA + "/memory.high": "12288",
		scopeA + "/container/memory.min": "128", scopeA + "/container/memory.high": "12288",
		sliceG + "/memory.min": "120", plainB + "/memory.low": "40", plainB + "/memory.high": "max", podB + "/memory.low": "max",
	} {
		if got := content(t, n.Tree, file); got != want {
			t.Errorf("%s holds %s, want %s", file, got, want)
		}
	}
	wantWrites(t, u.calls, "crio-a.scope memory.high=12288", "crio-a.scope memory.min=128", "kubepods-podg.slice memory.min=120")
	if left := n.journal.Entries(); len(left) > 0 {
		t.Errorf("the journal has %v", left)
	}
}

func TestRollbackKeepsWhatItCouldNotRestore(t *testing.T) {
	u := &units{err: errors.New("systemd hangs")}
	n := newNode(t, nil, scopeA, plainB, podG+"/memory.min")
	n.journal.Note(Entry{podG, cgroup.MemoryMin, "", ""})
	n.journal.Note(Entry{plainB, cgroup.MemoryLow, "", ""})
	n.journal.Note(Entry{scopeA, cgroup.MemoryMin, "crio-a.scope", ""})
	actions, err := Rollback(t.Context(), n.journal, n.Tree, u, false)
	if len(actions) != 3 || err == nil || !strings.Contains(err.Error(), "systemd hangs") || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("%v, %v", actions, err)
	}
	want := []Entry{{scopeA, cgroup.MemoryMin, "crio-a.scope", ""}, {podG, cgroup.MemoryMin, "", ""}}
	if diff := cmp.Diff(want, n.journal.Entries()); diff != "" {
		t.Error(diff)
	}
	if content(t, n.Tree, scopeA+"/memory.min") != "0" {
		t.Error("the file could have been restored")
	}
	for _, u.err = range []error{ErrNoSystemd, ErrNoUnit} { // nothing there that would bring it back
		n.journal.Note(Entry{scopeA, cgroup.MemoryMin, "crio-a.scope", ""})
		if err := os.RemoveAll(filepath.Join(n.Root(), podG)); err != nil {
			t.Fatal(err)
		}
		if _, err := Rollback(t.Context(), n.journal, n.Tree, u, false); err != nil || len(n.journal.Entries()) > 0 {
			t.Errorf("%v: %v, %v", u.err, err, n.journal.Entries())
		}
	}
}

// A rollback that was killed after a write, and before the journal had that, is done again. By then the kubelet may have written a newer value.
func TestRollbackAfterOneThatWasKilled(t *testing.T) {
	for name, test := range map[string]struct {
		before string // the kubelet's value that the journal has
		holds  string // the file, at the second rollback
		daemon bool   // has written the file between the two
		want   string
	}{
		"it is restored":                    {"120", "120", false, "120"},
		"the kubelet has written it since":  {"120", "200", false, "200"},
		"it was killed before the write":    {"120", "100", false, "120"},
		"a daemon has written it since":     {"120", "150", true, "120"},
		"the kubelet's value was not known": {"", "200", false, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			put(t, n.Root(), map[string]string{sliceG + "/memory.min": "100"})
			e := Entry{sliceG, cgroup.MemoryMin, cgroup.Unit(sliceG), test.before}
			n.journal.Note(e)
			if err := n.journal.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			killed := t.TempDir()
			tree, err := cgroupfs.Open(n.Root(), cgroupfs.Plain(), cgroupfs.OnWrite(func(cgroupfs.Write) {
				data, err := os.ReadFile(n.journal.path)
				if err != nil {
					t.Error(err)
				}
				put(t, killed, map[string]string{JournalFile: string(data)})
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			if _, err := Rollback(t.Context(), n.journal, tree, nil, false); err != nil || content(t, tree, sliceG+"/memory.min") == "100" {
				t.Fatal(err)
			}
			put(t, n.Root(), map[string]string{sliceG + "/memory.min": test.holds})
			j := openJournal(t, killed)
			if test.daemon && j.Note(e) {
				t.Error("the journal has lost the entry")
			}
			u := &units{}
			actions, err := Rollback(t.Context(), j, n.Tree, u, false)
			if len(actions) != 1 || actions[0].To != test.want || err != nil {
				t.Errorf("%+v, %v", actions, err)
			}
			if got := content(t, n.Tree, sliceG+"/memory.min"); got != test.want {
				t.Errorf("the file holds %s, want %s", got, test.want)
			}
			wantWrites(t, u.calls, "kubepods-podg.slice memory.min="+test.want)
			if left := j.Entries(); len(left) > 0 {
				t.Errorf("the journal has %v", left)
			}
		})
	}
}

// A rollback that failed and lives on is done again. By then the runtime may have written an older value of ours, or the kubelet a newer one.
func TestRollbackAfterOneThatFailed(t *testing.T) {
	for name, test := range map[string]struct {
		found   string // in the journal of a rollback that was killed
		text    string // the file, before the rollback that fails
		write   error  // of the file
		systemd error
		holds   string // the file, at the next rollback
		want    string
	}{
		"the runtime has written an older value":    {"", "100", unix.EIO, nil, "90", "120"},
		"nothing has written it":                    {"", "100", unix.EIO, nil, "100", "120"},
		"only systemd did not get the value":        {"", "100", nil, errors.New("systemd hangs"), "120", "120"},
		"and the kubelet has written it since":      {"", "100", nil, errors.New("systemd hangs"), "200", "200"},
		"the kubelet had written it before":         {"100", "200", unix.EIO, nil, "200", "200"},
		"the kubelet had written it before systemd": {"100", "200", nil, errors.New("systemd hangs"), "200", "200"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			put(t, n.Root(), map[string]string{sliceG + "/memory.min": test.text})
			n.journal.Note(Entry{sliceG, cgroup.MemoryMin, cgroup.Unit(sliceG), "120"})
			if test.found != "" {
				n.journal.restoring(t.Context(), sliceG, cgroup.MemoryMin, test.found)
			}
			opened := 0
			tree, err := cgroupfs.Open(n.Root(), cgroupfs.Plain(), cgroupfs.OnOpen(func(_, file string) error {
				if file != string(cgroup.MemoryMin) {
					return nil
				}
				if opened++; opened == 1 { // to read it
					return nil
				}
				return test.write
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			if _, err := Rollback(t.Context(), n.journal, tree, &units{err: test.systemd}, false); err == nil {
				t.Fatal("it did not fail")
			}
			put(t, n.Root(), map[string]string{sliceG + "/memory.min": test.holds})
			u := &units{}
			if _, err := Rollback(t.Context(), n.journal, n.Tree, u, false); err != nil {
				t.Error(err)
			}
			if got := content(t, n.Tree, sliceG+"/memory.min"); got != test.want {
				t.Errorf("the file holds %s, want %s", got, test.want)
			}
			wantWrites(t, u.calls, "kubepods-podg.slice memory.min="+test.want)
		})
	}
}

// hanging opens the node's cgroups with files whose reads and writes do not return before release is called.
func hanging(t *testing.T, n *node, hangs func(dir, file string) bool) (tree *cgroupfs.Tree, release func()) {
	t.Helper()
	answers := make(chan bool)
	tree, err := cgroupfs.Open(n.Root(), cgroupfs.Plain(), cgroupfs.OnOpen(func(dir, file string) error {
		if hangs(dir, file) {
			<-answers
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree, func() { close(answers) }
}

// Rollback names files that hang and restores the rest, in the same container and its parents.
func TestRollbackBesideFilesThatHang(t *testing.T) {
	for name, hangs := range map[string]func(dir, file string) bool{
		"one file":          func(dir, file string) bool { return dir == plainB && file == "memory.low" },
		"all of containers": func(dir, _ string) bool { return strings.HasPrefix(dir, plainB) || strings.HasPrefix(dir, scopeA) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := written(t, nil)
				tree, release := hanging(t, n, hangs)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				began := time.Now()
				actions, err := Rollback(ctx, n.journal, tree, nil, false)
				if took := time.Since(began); took != 5*time.Second {
					t.Errorf("returned after %v", took)
				}
				left := map[Entry]bool{}
				for _, e := range n.journal.Entries() {
					left[e] = true
				}
				for _, a := range actions {
					hung := hangs(a.Cgroup, string(a.Knob))
					want := fmt.Sprintf("%s of cgroup %s hangs: its read has not returned", a.Knob, a.Cgroup)
					if got := fmt.Sprint(a.Err); hung != (got == want) || !hung && a.Err != nil || !strings.Contains(err.Error(), want) == hung {
						t.Errorf("%s of %s: %v; the error is %v", a.Knob, a.Cgroup, a.Err, err)
					}
					if left[Entry{a.Cgroup, a.Knob, a.Unit, ""}] != hung {
						t.Errorf("%s of %s: the journal has %v", a.Knob, a.Cgroup, left)
					}
				}
				if len(actions) != 11 || content(t, n.Tree, "kubepods/memory.min") != "0" {
					t.Errorf("not everything else is restored: %+v", actions)
				}
				release()
			})
		})
	}
}

// stuckSystemd answers when its channel is closed.
type stuckSystemd chan bool

func (u stuckSystemd) SetMemory(context.Context, string, map[cgroup.Knob]uint64) error {
	<-u
	return nil
}

// Rollback names what a file waits for.
func TestRollbackNamesWhatItWaitsFor(t *testing.T) {
	for name, want := range map[string]string{
		"read":    "its read has not returned",
		"systemd": "systemd has not answered about kubepods-podg.slice",
		"write":   "its write has not returned",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, nil)
				put(t, n.Root(), map[string]string{sliceG + "/memory.min": "100"})
				n.journal.Note(Entry{sliceG, cgroup.MemoryMin, cgroup.Unit(sliceG), "120"})
				opened := 0
				tree, release := hanging(t, n, func(_, file string) bool {
					if file == string(cgroup.MemoryMin) {
						opened++
					}
					return file == string(cgroup.MemoryMin) && (name == "read" || name == "write" && opened == 2)
				})
				answers := make(chan bool)
				var u Units = &units{}
				if name == "systemd" {
					u = stuckSystemd(answers)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				time.AfterFunc(time.Minute, func() { close(answers); release() })
				actions, err := Rollback(ctx, n.journal, tree, u, false)
				if want := "memory.min of cgroup " + sliceG + " hangs: " + want; len(actions) != 1 || fmt.Sprint(err) != want {
					t.Errorf("%v\nwant %s", err, want)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// slowSystemd writes memory.oom.group with every property, and takes longer than Rollback waits for a file beside others that hang.
type slowSystemd struct{ tree *cgroupfs.Tree }

func (u slowSystemd) SetMemory(context.Context, string, map[cgroup.Knob]uint64) error {
	time.Sleep(200 * time.Millisecond)
	return u.tree.Set(scopeA, cgroup.MemoryOOMGroup, 0)
}

// Beside many files that hang, all others are restored in their order: memory.oom.group before what systemd writes it with.
func TestRollbackKeepsTheOrderBesideFilesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil, scopeA)
		put(t, n.Root(), map[string]string{scopeA + "/memory.min": "100", scopeA + "/memory.oom.group": "1"})
		for i := range 40 {
			dir := fmt.Sprintf("%s/a-hangs/%d", podB, i)
			put(t, n.Root(), map[string]string{dir + "/memory.min": "1"})
			n.journal.Note(Entry{dir, cgroup.MemoryMin, "", ""})
		}
		for _, e := range []Entry{{scopeA, cgroup.MemoryMin, "crio-a.scope", ""}, {scopeA, cgroup.MemoryOOMGroup, "", ""}} {
			n.journal.Note(e)
		}
		tree, release := hanging(t, n, func(dir, _ string) bool { return strings.Contains(dir, "a-hangs") })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if actions, _ := Rollback(ctx, n.journal, tree, slowSystemd{n.Tree}, false); len(actions) != 42 {
			t.Errorf("%d actions", len(actions))
		}
		if got := content(t, n.Tree, scopeA+"/memory.oom.group"); got != "0" {
			t.Errorf("memory.oom.group is %s again", got)
		}
		release()
	})
}

// A dry run leaves few threads behind where all files hang, and names them all.
func TestDryRunWhereAllFilesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil)
		for i := range 2 * mostLate {
			dir := fmt.Sprintf("%s/%d", podB, i)
			put(t, n.Root(), map[string]string{dir + "/memory.min": "1"})
			n.journal.Note(Entry{dir, cgroup.MemoryMin, "", ""})
		}
		var reads atomic.Int64
		tree, release := hanging(t, n, func(string, string) bool { return reads.Add(1) > 0 })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		actions, _ := Rollback(ctx, n.journal, tree, nil, true)
		if len(actions) != 2*mostLate || reads.Load() > mostLate {
			t.Errorf("%d actions, %d reads hang", len(actions), reads.Load())
		}
		for _, a := range actions {
			if a.Err == nil {
				t.Errorf("%s has no error", a.Cgroup)
			}
		}
		release()
	})
}

// A lack of descriptors or permissions, here a link in the way, says nothing about a cgroup.
func TestWhatCannotBeLookedAtIsNotGone(t *testing.T) {
	n := newNode(t, nil, plainB)
	if err := os.Symlink(filepath.Join(n.Root(), podG), filepath.Join(n.Root(), "kubepods/podlink")); err != nil {
		t.Fatal(err)
	}
	for cgroup, want := range map[string]string{
		plainB: "true <nil>", "kubepods/podnone": "false <nil>", "kubepods/podnone/a": "false <nil>",
		"kubepods/podlink": "false look for cgroup " + n.Root() + "/kubepods/podlink: too many levels of symbolic links",
		"system.slice":     "false look for cgroup " + n.Root() + `/system.slice: cgroup "system.slice" is not below kubepods`,
	} {
		there, err := n.Exists(cgroup)
		if got := fmt.Sprint(there, " ", err); got != want {
			t.Errorf("%s: %s, want %s", cgroup, got, want)
		}
	}
	n.journal.Note(Entry{"kubepods/podlink", cgroup.MemoryMin, "", ""})
	n.journal.prune(10, n.Exists)
	actions, err := Rollback(t.Context(), n.journal, n.Tree, nil, false)
	if len(actions) != 1 || actions[0].Gone || err == nil || len(n.journal.Entries()) != 1 {
		t.Errorf("%+v, %v; the journal has %v", actions, err, n.journal.Entries())
	}
}

func TestRollbackOfMemsNeedsTheParentsNodes(t *testing.T) {
	root := t.TempDir()
	put(t, root, map[string]string{"kubepods/pod1/a/cpuset.mems": "1", "kubepods/pod2/cpuset.mems.effective": "x", "kubepods/pod2/b.scope/cpuset.mems": "1"})
	tree, err := cgroupfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	j := openJournal(t, t.TempDir())
	j.Note(Entry{"kubepods/pod1/a", cgroup.CpusetMems, "", ""})
	j.Note(Entry{"kubepods/pod2/b.scope", cgroup.CpusetMems, "b.scope", ""})
	actions, err := Rollback(t.Context(), j, tree, &units{}, false)
	if len(actions) != 2 || err == nil || strings.Count(err.Error(), "find what to restore: ") != 2 || len(j.Entries()) != 2 {
		t.Errorf("%v, %v", actions, err)
	}
}
