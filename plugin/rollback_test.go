package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// ours is written without what the runtime writes itself.
func (h *host) ours() map[string]string {
	h.t.Helper()
	all := h.written()
	for path := range all {
		if filepath.Base(path) == "memory.max" {
			delete(all, path)
		}
	}
	return all
}

// A daemon that is told to roll back sets everything back as the command without a daemon does, and then writes nothing, whatever
// happens, until it is told to resume.
func TestRollbackOfARunningDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	h.timings("check=100ms")
	plugin := h.start()
	db, web := guaranteed("db", 4*gi), burstable("web", 2*gi, 968)
	cache := guaranteed("cache", gi)                           // of whose pod no cpuset.mems.effective is known, as in the demo
	db.unified = map[string]string{"memory.min": "4294963200"} // the kubelet's
	db.files = map[string]string{"memory.min": "4294963200", "cpuset.mems.effective": "0-1"}
	h.deploy(db, web, cache)
	before := h.ours()
	if len(before) < 6 || h.knob(db.cgroup()+"/"+db.id(), "cpuset.mems") != "0" {
		t.Fatalf("there is little to roll back: %v", before)
	}
	text := h.ask(0, "rollback", "--dry-run", "--cgroups", h.path("cgroups"), "--plain-cgroups")
	planned := strings.ReplaceAll(text, "would    ", "restored ")
	if got := h.ours(); !cmp.Equal(before, got) {
		t.Errorf("--dry-run has changed files: %s", cmp.Diff(before, got))
	}

	const last = `the daemon writes nothing more until "nri-memory-manager rollback --resume", or its next start` + "\n"
	if diff := cmp.Diff(planned+last, h.ask(0, "rollback")); diff != "" {
		t.Errorf("the daemon does not do what was planned:\n%s", diff)
	}
	container := db.cgroup() + "/" + db.id()
	kubelets := map[string]string{db.cgroup() + "/memory.min": "4294963200", container + "/memory.min": "4294963200", container + "/cpuset.mems": "0-1"}
	must(t, h.resize(db, 5*gi)) // with which the runtime writes what its record has of before
	must(t, h.resize(web, 3*gi))
	eventually(t, "what a resize has brought back is taken back", func() bool { return cmp.Equal(kubelets, h.ours()) })
	late, large := guaranteed("late", gi), guaranteed("large", 64*gi)
	h.deploy(late, large) // nothing is refused either
	must(t, h.runtime.UpdateContainer(t.Context(), late.id(), &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(2 * gi)}}))
	h.write("config.yaml", testConfig+"memoryReservationPolicy: HardReservation\n")
	eventually(t, "the configuration is in force", func() bool { return strings.Contains(h.ask(0, "status"), "HardReservation") })
	wantAll(t, h.ask(0, "rollback"), "nothing to restore\n"+last)
	if diff := cmp.Diff(kubelets, h.ours()); diff != "" {
		t.Errorf("after the rollback:\n%s", diff)
	}
	for _, p := range []*testPod{late, large} {
		if got := h.mems(p); got != "" {
			t.Errorf("pod %s has cpuset.mems %q", p.name, got)
		}
	}
	if got := h.knob(cache.cgroup()+"/"+cache.id(), "cpuset.mems"); got != "" {
		t.Errorf("pod cache has cpuset.mems %q", got)
	}
	const why = `rollback: what was written is set back, and nothing more is written: "nri-memory-manager rollback --resume" or a restart of the plugin ends that`
	wantAll(t, h.ask(0, "status"), "NOT READY: "+why, "DRY RUN")
	wantAll(t, h.ask(0, "explain", late.name), "\n  rolled back: what was written is set back, and nothing more is written\n")
	wantAll(t, plugin.get("/readyz"), "[-] "+why)
	wantAll(t, plugin.get("/metrics"), `nri_memory_manager_condition{condition="rollback"} 0`)
	if text := h.audit(1); !strings.Contains(text, "ERROR    "+why) || strings.Contains(text, "[dry-run]") {
		t.Errorf("verify says\n%s", text)
	}
	said(plugin, `level=warning msg="rolled back: nothing is written`)

	h.write("config.yaml", testConfig)
	eventually(t, "the configuration is in force again", func() bool { return !strings.Contains(h.ask(0, "status"), "HardReservation") })
	must(t, h.endPod(large))
	must(t, h.removePod(large))
	must(t, h.resize(db, 4*gi))
	must(t, h.resize(web, 2*gi))
	wantAll(t, h.ask(0, "rollback", "--resume"), "the rollback is ended: the daemon writes what its profile has it write\n")
	eventually(t, "the container of meanwhile is on its node", func() bool { return h.knob(late.cgroup()+"/"+late.id(), "cpuset.mems") == "0" })
	must(t, h.endPod(late))
	must(t, h.removePod(late))
	eventually(t, "the values are back", func() bool { return cmp.Equal(before, h.ours()) })
	eventually(t, "it is ready", func() bool { return !strings.Contains(plugin.get("/readyz"), "[-]") })
	wantAll(t, h.ask(1, "rollback", "--resume"), "nothing to resume: the daemon is not rolled back")
	next := guaranteed("next", gi)
	h.deploy(next)
	if got := h.mems(next); got != "0" {
		t.Errorf("a new container has cpuset.mems %q, want 0", got)
	}

	must(t, h.endPod(next))
	must(t, h.removePod(next))
	h.ask(0, "rollback")
	if code := plugin.stop(); code != exitOK {
		t.Errorf("SIGTERM ended the daemon with %d", code)
	}
	if diff := cmp.Diff(kubelets, h.ours()); diff != "" {
		t.Errorf("after its end:\n%s", diff)
	}
	wantAll(t, h.ask(1, "rollback", "--resume"), "no daemon answers on "+h.path("state/admin.sock"))
	wantAll(t, h.ask(2, "rollback", "--resume", "--dry-run"), "--resume and --dry-run: give one of them\n")
	h.start()
	eventually(t, "a restart ends the rollback", func() bool { return h.knob(container, "cpuset.mems") == "0" })
}

// What can not be set back is named, and tried again.
func TestARollbackThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	h.timings("check=100ms")
	h.start()
	db := burstable("db", 4*gi, 968)
	h.deploy(db)
	file := filepath.Join(h.path("cgroups"), db.cgroup(), "memory.low")
	must(t, os.Rename(file, file+".kept"))
	must(t, os.Mkdir(file, 0o755))
	wantAll(t, h.ask(1, "rollback"), "restored kubepods/memory.low", "FAILED   "+db.cgroup()+"/memory.low: ", "not everything could be restored: the daemon tries again")
	must(t, os.Remove(file))
	must(t, os.Rename(file+".kept", file))
	eventually(t, "nothing is left", func() bool { return len(h.ours()) == 0 })
}

// A daemon that hangs is not taken for none, and does not do later what was said to have failed.
func TestOrdersToADaemonThatHangs(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	h.deploy(burstable("web", 2*gi, 968))
	before := h.ours()
	must(t, plugin.cmd.Process.Signal(syscall.SIGSTOP))
	const hangs = "has not answered within 10s; does it hang?"
	wantAll(t, h.ask(1, "rollback"), hangs)
	wantAll(t, h.ask(1, "state", "export"), hangs)
	must(t, plugin.cmd.Process.Signal(syscall.SIGCONT))
	wantAll(t, h.ask(1, "rollback", "--resume"), "nothing to resume: the daemon is not rolled back")
	if diff := cmp.Diff(before, h.ours()); diff != "" {
		t.Errorf("the rollback was carried out:\n%s", diff)
	}
}

// What is wrong with the configuration file is shown, whatever else is.
func TestARollbackHidesNoBadConfiguration(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	h.start()
	h.deploy(burstable("web", 2*gi, 968))
	h.write("config.yaml", testConfig+"nonsense: true\n")
	eventually(t, "the configuration is refused", func() bool { return strings.Contains(h.ask(0, "status"), "nonsense") })
	h.ask(0, "rollback")
	wantAll(t, h.ask(0, "status"), "nonsense")
	h.ask(0, "rollback", "--resume")
	wantAll(t, h.ask(0, "status"), "nonsense")
}

// writtenFiles is a host with two written files, and no daemon.
func writtenFiles(t *testing.T) hostOptions {
	t.Helper()
	o := hostOptions{stateDir: t.TempDir(), cgroups: t.TempDir(), plainCgroups: true}
	cgroups.Fill(t, o.cgroups, map[string]string{"kubepods/pod1/a/memory.low": "4096", "kubepods/pod1/a/memory.min": "8192"})
	journal, _, err := protect.OpenJournal(o.stateDir)
	must(t, err)
	for _, knob := range []cgroup.Knob{cgroup.MemoryLow, cgroup.MemoryMin} {
		journal.Note(protect.Entry{Cgroup: "kubepods/pod1/a", Knob: knob})
	}
	must(t, journal.Close(t.Context()))
	return o
}

// The journal is written although nobody waits any more, for what is restored would be restored again.
func TestAnInterruptedRollbackIsInTheJournal(t *testing.T) {
	t.Parallel()
	o := writtenFiles(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out strings.Builder
	must(t, rollback(ctx, o, false, &out))
	out.Reset()
	must(t, rollback(t.Context(), o, false, &out))
	if got := out.String(); got != "nothing to restore\n" {
		t.Errorf("the second time: %s", got)
	}
}

// The error names the journal that cannot be written and the cause, and does not say of what is restored that it is not.
func TestARollbackWhoseJournalCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fails    bool // to restore the file
		out, err string
	}{
		"all is restored": {false, `restored kubepods/pod1/a/memory.low: "4096" to "0"`, ""},
		"not all is":      {true, "FAILED   kubepods/pod1/a/memory.low: ", "not everything could be restored; what is left stays in the journal\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := writtenFiles(t)
			journal := filepath.Join(o.stateDir, protect.JournalFile)
			must(t, os.Mkdir(journal+".tmp", 0o700))
			if file := filepath.Join(o.cgroups, "kubepods/pod1/a/memory.low"); test.fails {
				must(t, os.Remove(file))
				must(t, os.Mkdir(file, 0o700))
			}
			var out strings.Builder
			err := rollback(t.Context(), o, false, &out)
			wantAll(t, out.String(), test.out, `restored kubepods/pod1/a/memory.min: "8192" to "0"`)
			want := test.err + "the lines above say what was restored, but the journal " + journal + " still has all of it: " +
				"write the journal of written knobs: open " + journal + ".tmp: is a directory"
			if err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

// A dry run reads a journal that it cannot read in full, and leaves it for the rollback, which says so too.
func TestADryRunLeavesADamagedJournal(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(string) string{
		"of a newer release": func(text string) string { return strings.Replace(text, `"version":1`, `"version":2`, 1) },
		"a damaged line":     func(text string) string { return text + "{]\n" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := writtenFiles(t)
			file := filepath.Join(o.stateDir, protect.JournalFile)
			text, err := os.ReadFile(file)
			must(t, err)
			want := damage(string(text))
			must(t, os.WriteFile(file, []byte(want), 0o600))
			var out strings.Builder
			if err := rollback(t.Context(), o, true, &out); err == nil {
				t.Error("the dry run does not report the damage")
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != want {
				t.Errorf("--dry-run has changed the journal (%v):\n%s", err, got)
			}
			if err := rollback(t.Context(), o, false, &out); err == nil {
				t.Errorf("the rollback does not report the damage:\n%s", out.String())
			}
		})
	}
}

// A second SIGTERM, of kill, Ctrl-C or a containerd that has started again, does not end a daemon in its rollback.
func TestASecondSIGTERMDoesNotEndTheRollback(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, reservations+"onTermination: Rollback\n")
	h.deploy(inSlice("pod"))
	_, release := h.busySystemd()
	plugin := h.start()
	eventually(t, "values are written", func() bool { return len(h.ours()) > 0 })
	must(t, plugin.cmd.Process.Signal(syscall.SIGTERM))
	time.Sleep(time.Second)
	must(t, plugin.cmd.Process.Signal(syscall.SIGTERM))
	time.Sleep(100 * time.Millisecond)
	release()
	plugin.wait()
	if state := plugin.cmd.ProcessState; state.ExitCode() != exitOK {
		t.Errorf("the second SIGTERM ended the daemon: %v", state)
	}
	if left := h.ours(); len(left) > 0 {
		t.Errorf("left on the node: %v", left)
	}
}
