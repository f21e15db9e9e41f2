package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// inUse is what commands and probes say of the state folder of a plugin that runs.
func (h *host) inUse(by *process) string {
	return fmt.Sprintf("%s: another nri-memory-manager is running with this state folder: process %d", h.path("state"), by.cmd.Process.Pid)
}

// waits starts a second plugin and waits until it says that it waits for the first one's folder.
func (h *host) waits(first *process) *process {
	h.t.Helper()
	second := h.launch()
	eventually(h.t, "the second plugin names the folder and the process that has it", func() bool {
		return strings.Contains(second.get("/readyz"), "[-] checkpoint: "+h.inUse(first)+"\n")
	})
	return second
}

// A second daemon with the same state folder does not register, is not ready and changes nothing, until the first has ended.
func TestASecondDaemonWaitsForTheStateFolder(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*process){
		"SIGTERM": func(p *process) { p.stop() },
		"SIGKILL": func(p *process) { p.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, cri.Options{}, testConfig)
			first := h.start()
			h.deploy(guaranteed("db", 4*gi))
			second := h.waits(first)
			for path, want := range map[string]string{
				"/healthz": "ok\n",
				"/readyz":  "[-] connected: waits for the state folder\n[-] synchronized: waits for the state folder\n",
				"/metrics": `nri_memory_manager_condition{condition="checkpoint"} 0`,
				"/status":  "404 page not found\n",
			} {
				if got := second.get(path); !strings.Contains(got, want) {
					t.Errorf("%s of the one that waits: want %q in\n%s", path, want, got)
				}
			}
			h.deploy(guaranteed("web", 2*gi))
			h.write("config.yaml", "no: configuration\n") // it is read again when the wait is over
			eventually(t, "the first has read the configuration", func() bool { return strings.Contains(first.get("/readyz"), "[-] config") })
			code, out, errOut := run(t, "", "status", "--state-dir", h.path("state"))
			if code != exitOK || !strings.Contains(out, "default/web") {
				t.Errorf("the first answers no more: exit %d\n%s%s", code, out, errOut)
			}
			if got := h.runtime.Synchronizations(); got != 1 {
				t.Errorf("%d plugins have registered, want the first only", got)
			}

			end(first)
			h.connected()
			eventually(t, "the second has read the configuration", func() bool { return strings.Contains(second.get("/readyz"), "[-] config") })
			h.write("config.yaml", testConfig)
			eventually(t, "the second is ready", func() bool { return !strings.Contains(second.get("/readyz"), "[-]") })
			h.deploy(guaranteed("third", 4*gi))
			want := "[uid-db/app 0 4294967296 uid-third/app 0 4294967296 uid-web/app 0 2147483648]"
			if got := fmt.Sprint(h.entries()); got != want {
				t.Errorf("the state file has %s, want %s", got, want)
			}
			if code, out, errOut := run(t, "", "status", "--state-dir", h.path("state")); code != exitOK || !strings.Contains(out, "default/third") {
				t.Errorf("the second does not answer: exit %d\n%s%s", code, out, errOut)
			}
		})
	}
}

// Beside a running daemon no command writes its folder, nor takes its values back where the daemon cannot be asked, and neither does a
// second daemon that ends before it had its turn.
func TestNothingWritesTheFolderOfARunningDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig+"onTermination: Rollback\n")
	first := h.start()
	db := guaranteed("db", 4*gi)
	h.deploy(db)
	eventually(t, "the journal is written", func() bool {
		text, err := os.ReadFile(h.path("state/knobs.json"))
		return err == nil && strings.Contains(string(text), db.cgroup())
	})
	files, entries := h.settled([]string{"uid-db/app 0 4294967296"}), h.entries()
	kept := h.path("kept")
	must(t, os.Link(h.path("state/"+checkpoint.FileName), kept))

	second := h.waits(first)
	must(t, second.cmd.Process.Signal(syscall.SIGHUP)) // which ends a process that does not expect it
	if code := second.stop(); code != exitOK {
		t.Errorf("SIGTERM ended the one that waits with %d", code)
	}
	must(t, os.Remove(h.path("state/admin.sock")))
	cgroups := []string{"--cgroups", h.path("cgroups"), "--plain-cgroups"}
	for _, test := range []struct {
		args []string
		code int
		want string // of what it writes to standard error
	}{
		{append([]string{"rollback"}, cgroups...), exitFailed, "nri-memory-manager: nothing was restored: " + h.inUse(first) + ": stop it first\n"},
		{append([]string{"rollback", "--dry-run"}, cgroups...), exitOK, ""},
		{[]string{"state", "import", "--force", kept}, exitOK, ""}, // it is the same
	} {
		code, _, errOut := run(t, "", append(test.args, "--state-dir", h.path("state"))...)
		if code != test.code || errOut != test.want {
			t.Errorf("%s: exit %d, want %d\ngot  %swant %s", strings.Join(test.args, " "), code, test.code, errOut, test.want)
		}
	}
	if got := h.picture(); fmt.Sprint(got) != fmt.Sprint(files) {
		t.Errorf("the cgroups have %v, want %v", got, files)
	}
	if got := h.entries(); fmt.Sprint(got) != fmt.Sprint(entries) {
		t.Errorf("the state file has %v, want %v", got, entries)
	}
	if code := first.stop(); code != exitOK || h.knob(db.cgroup(), "memory.min") != "0" {
		t.Errorf("the first ended with %d and left memory.min %s", code, h.knob(db.cgroup(), "memory.min"))
	}
}

// A plugin that a runtime has launched ends with the runtime also while it waits for its state folder: each start of the runtime would
// leave one more behind.
func TestALaunchedPluginThatWaitsEndsWithItsRuntime(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	first := h.start()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	runtime, plugin := os.NewFile(uintptr(ends[0]), "runtime"), os.NewFile(uintptr(ends[1]), "plugin")
	defer runtime.Close()
	launched := exec.Command(binary, h.flags...)
	log := &output{}
	launched.Stdout, launched.Stderr = log, log
	launched.ExtraFiles = []*os.File{plugin}
	launched.Env = append(os.Environ(), api.PluginSocketEnvVar+"=3", api.PluginNameEnvVar+"=memory-manager", api.PluginIdxEnvVar+"=92")
	must(t, launched.Start())
	plugin.Close()
	p := &process{t: t, cmd: launched, log: log, ended: make(chan struct{})}
	go func() {
		p.status = launched.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	eventually(t, "it waits", func() bool { return strings.Contains(log.String(), "waiting for the state folder") })
	must(t, runtime.Close())
	if code := p.wait(); code != exitFailed || !strings.Contains(log.String(), "closed the connection while the plugin waited for its state folder") {
		t.Errorf("it ended with %d:\n%s", code, log)
	}
	if !strings.Contains(first.get("/readyz"), "[+] connected") {
		t.Error("the one that runs has lost its runtime")
	}
}
