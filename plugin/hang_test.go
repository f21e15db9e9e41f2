package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// A hang is a way in which the daemon, or what it needs, does not answer.
type hang struct {
	config string
	// begin lets it begin, and returns what ends it.
	begin func(t *testing.T, h *host, p *process) (end func())
	// fail are the events that fail meanwhile, and reconnects whether the daemon registers again afterwards.
	fail       []string
	reconnects bool
	unanswered string // a pod that was created meanwhile
	// healthz and readyz are of a part of what the probes are answered with meanwhile; "" where nobody answers.
	healthz, readyz string
}

func hangs() map[string]hang {
	return map[string]hang{
		"stopped, Ignore": {begin: stop, reconnects: true, unanswered: "late"},
		"stopped, Fail":   {config: "failurePolicy: Fail\n", begin: stop, fail: []string{"CreateContainer", "UpdateContainer"}, reconnects: true},
		"an event that never ends, Ignore": {
			config: "verifyHugepages: true\n", begin: blockCreate, reconnects: true, unanswered: "stuck", healthz: "an event of the runtime has not moved for ", readyz: "[+] connected",
		},
		"a disk that hangs": {begin: blockDisk, healthz: "ok\n", readyz: "[-] checkpoint"},
	}
}

// What the runtime sees of a hang, event by event, and that all is as it should be afterwards. The durations are those of
// docs/failure-modes.md; nothing is held against them here.
func TestFailureModes(t *testing.T) {
	for name, test := range hangs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, cri.Options{}, testConfig+test.config)
			h.hugePages(512, 512)
			plugin := h.start()
			if len(test.fail) > 0 {
				h.connected() // creations and updates have a registration of their own
			}
			ends, stays, unstarted := guaranteed("ends", gi), guaranteed("stays", gi), guaranteed("unstarted", gi)
			h.deploy(ends, stays)
			must(t, h.runPod(unstarted))
			must(t, h.create(unstarted))
			late := guaranteed("late", 2*gi)

			end := test.begin(t, h, plugin)
			var failed []string
			for _, event := range []struct {
				name string
				make func() error
			}{
				{"RunPodSandbox", func() error { return h.runPod(late) }},
				{"CreateContainer", func() error { return h.create(late) }},
				{"UpdateContainer", func() error {
					must(t, h.tree.Write(stays.cgroup(), "memory.max", fmt.Sprintln(3*gi))) // the kubelet's first step
					return h.resize(stays, 3*gi)
				}},
				{"StartContainer", func() error { return h.startContainer(unstarted) }},
				{"StopContainer", func() error { return h.stopContainer(ends) }},
				{"StopPodSandbox", func() error { return h.endPod(ends) }},
				{"RemovePodSandbox", func() error { return h.removePod(ends) }},
			} {
				began := time.Now()
				err := event.make()
				t.Logf("%-17s after %.1f s: %v", event.name, time.Since(began).Seconds(), err)
				if err != nil {
					failed = append(failed, event.name)
				}
			}
			if !slices.Equal(failed, test.fail) {
				t.Errorf("%v failed, want %v", failed, test.fail)
			}
			if test.healthz != "" {
				eventually(t, "/readyz says "+test.readyz, func() bool { return strings.Contains(plugin.get("/readyz"), test.readyz) })
				eventually(t, "/healthz says "+test.healthz, func() bool { return strings.Contains(plugin.get("/healthz"), test.healthz) })
			}

			began := time.Now()
			end()
			if test.reconnects {
				h.connected()
			}
			if len(test.fail) > 0 { // the kubelet tries again
				must(t, h.create(late))
				must(t, h.resize(stays, 3*gi))
			}
			for _, pod := range []*testPod{stays, unstarted, late} {
				eventually(t, pod.name+" is placed", func() bool { return h.mems(pod) == "0" })
			}
			t.Logf("%-17s after %.1f s", "all is normal", time.Since(began).Seconds())
			want := []string{"uid-late/app 0 2147483648", "uid-stays/app 0 3221225472", "uid-unstarted/app 0 1073741824"}
			eventually(t, "the state file has "+strings.Join(want, ", "), func() bool {
				return slices.Equal(slices.DeleteFunc(h.entries(), func(e string) bool { return strings.Contains(e, "stuck") }), want)
			})
			if test.unanswered != "" {
				said(plugin, `msg="a container was created without an answer of ours, and is taken in" container=app containerID=container-`+test.unanswered)
				must(t, h.runtime.StartContainer(t.Context(), "container-"+test.unanswered+"-a"))
				note, out := "NOTE     default/"+test.unanswered+"/app: it was created without an answer of the plugin", ""
				eventually(t, "verify finds nothing wrong", func() bool {
					var code int
					code, out, _ = run(t, "", "verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine"), "--state-dir", h.path("state"))
					return code == exitOK
				})
				wantAll(t, out, note)
			}
			if none := strings.Contains(plugin.get("/metrics"), "\nnri_memory_manager_unanswered_containers 0\n"); none != (test.unanswered == "") {
				t.Errorf("no container is counted as unanswered: %v", none)
			}
			eventually(t, "the daemon is healthy", func() bool { return plugin.get("/healthz") == "ok\n" })
		})
	}
}

// stop stops the plugin's process, as a debugger or a frozen cgroup does.
func stop(t *testing.T, _ *host, p *process) (end func()) {
	must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	eventually(t, "all threads stand", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		must(t, err)
		return len(threads) > 0 && !slices.ContainsFunc(threads, func(path string) bool {
			stat, err := os.ReadFile(path)
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
	})
	end = func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) } // it may have ended
	t.Cleanup(end)
	return end
}

// A plugin that the runtime has started itself is not started again: one that is late once goes on.
func TestAPreinstalledPluginIsLateOnce(t *testing.T) {
	t.Parallel()
	h := newPreinstalled(t, cri.Options{}, testConfig+"verifyHugepages: true\n")
	must(t, h.runtime.Start())
	blockCreate(t, h, nil)()
	after := guaranteed("after", gi)
	h.deploy(after)
	if got := h.mems(after); got != "0" {
		t.Errorf("cpuset.mems is %q, want 0", got)
	}
}

// blockCreate has the creation of a container read a file of sysfs that is not answered.
func blockCreate(t *testing.T, h *host, _ *process) (end func()) {
	stuck := guaranteed("stuck", gi)
	stuck.huge = 64 * mi
	must(t, h.runPod(stuck))
	must(t, os.Remove(h.freePages()))
	must(t, unix.Mkfifo(h.freePages(), 0o600))
	began := time.Now()
	must(t, h.create(stuck))
	t.Logf("%-17s after %.1f s", "this creation", time.Since(began).Seconds())
	return func() {
		must(t, os.WriteFile(h.freePages()+".new", []byte("512\n"), 0o600))
		pipe, err := os.OpenFile(h.freePages(), os.O_RDWR, 0) // which does not wait for a reader that has ended
		must(t, err)
		must(t, os.Rename(h.freePages()+".new", h.freePages()))
		_, err = pipe.WriteString("512\n")
		must(t, err)
		must(t, pipe.Close())
	}
}

// blockDisk has the writes of the state file not return.
func blockDisk(t *testing.T, h *host, _ *process) (end func()) {
	fifo := h.path("state/" + checkpoint.FileName + ".tmp")
	eventually(t, "no write is under way", func() bool { return unix.Mkfifo(fifo, 0o600) == nil })
	return func() { unblock(t, fifo) }
}

// systemd hears of a daemon that moves, and of none that stands.
func TestTheWatchdogHearsOfADaemonThatMoves(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig+"verifyHugepages: true\n")
	h.hugePages(512, 512)
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: h.path("notify"), Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { socket.Close() })
	h.env = []string{"NOTIFY_SOCKET=" + h.path("notify"), "WATCHDOG_USEC=100000"}
	plugin := h.start()
	heard := func() string {
		text := make([]byte, 100)
		must(t, socket.SetReadDeadline(time.Now().Add(bound)))
		n, err := socket.Read(text)
		must(t, err)
		return string(text[:n])
	}
	for range 3 {
		if got := heard(); got != "WATCHDOG=1" {
			t.Fatalf("systemd hears %q", got)
		}
	}
	end := blockCreate(t, h, plugin)
	eventually(t, "/healthz fails", func() bool { return plugin.get("/healthz") != "ok\n" })
	eventually(t, "systemd hears nothing for as long as forty words would take", func() bool {
		must(t, socket.SetReadDeadline(time.Now().Add(time.Second)))
		_, err := socket.Read(make([]byte, 100))
		return err != nil
	})
	if got := plugin.get("/healthz"); got == "ok\n" {
		t.Error("the daemon moves again by itself")
	}
	end()
	h.connected()
	if got := heard(); got != "WATCHDOG=1" {
		t.Errorf("systemd hears %q", got)
	}
}
