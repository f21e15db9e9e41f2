package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// stopped stops the plugin's process, as a frozen cgroup or a debugger does, and returns what has it go on.
func (p *process) stopped() (goOn func()) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	eventually(p.t, "all threads stand", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		must(p.t, err)
		return len(threads) > 0 && !slices.ContainsFunc(threads, func(path string) bool {
			stat, err := os.ReadFile(path)
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
	})
	goOn = func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) } // it may have ended
	p.t.Cleanup(goOn)
	return goOn
}

// A daemon that is stopped fails nothing, and once it goes on it has what was created meanwhile.
func TestAStoppedDaemonFailsNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	ends, stays, resized := guaranteed("ends", gi), guaranteed("stays", gi), guaranteed("resized", gi)
	h.deploy(ends, stays, resized)
	goOn := plugin.stopped()
	created, unstarted := guaranteed("created", 2*gi), guaranteed("unstarted", gi)
	h.deploy(created)
	must(t, h.runPod(unstarted))
	must(t, h.create(unstarted))
	must(t, h.resize(resized, 3*gi))
	must(t, h.stopContainer(ends))
	must(t, h.endPod(ends))
	if got := h.mems(created); got != "" {
		t.Fatalf("cpuset.mems of a container that nobody has placed is %q", got)
	}
	goOn()
	h.connected()
	for _, pod := range []*testPod{stays, resized, created, unstarted} {
		if got := h.mems(pod); got != "0" {
			t.Errorf("cpuset.mems of %s is %q, want 0", pod.name, got)
		}
	}
	wantEntries(t, h, "uid-created/app 0 2147483648", "uid-resized/app 0 3221225472", "uid-stays/app 0 1073741824", "uid-unstarted/app 0 1073741824")
	must(t, h.startContainer(unstarted))
}

// Under Fail the creations and updates of containers fail while the daemon is stopped, and nothing else does.
func TestAStoppedDaemonFailsWhatIsToFail(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig+"failurePolicy: Fail\n")
	plugin := h.start()
	h.connected() // creations and updates have a registration of their own
	ends, stays, unstarted := guaranteed("ends", gi), guaranteed("stays", gi), guaranteed("unstarted", gi)
	h.deploy(ends, stays)
	must(t, h.runPod(unstarted))
	must(t, h.create(unstarted))
	goOn := plugin.stopped()
	late := guaranteed("late", gi)
	must(t, h.runPod(late))
	const want = "failed to handle "
	for event, try := range map[string]func() error{
		"CreateContainer": func() error { return h.create(late) },
		"UpdateContainer": func() error { return h.resize(stays, 2*gi) },
	} {
		if err := try(); err == nil {
			t.Errorf("%s succeeds without an answer", event)
		} else {
			wantAll(t, err.Error(), want+event)
		}
	}
	must(t, h.startContainer(unstarted))
	must(t, h.stopContainer(ends))
	must(t, h.endPod(ends))
	goOn()
	h.connected()
	must(t, h.create(late))
	must(t, h.startContainer(late))
	must(t, h.resize(stays, 2*gi))
	wantEntries(t, h, "uid-late/app 0 1073741824", "uid-stays/app 0 2147483648", "uid-unstarted/app 0 1073741824")
}

// wantEntries waits until the state file has these allocations.
func wantEntries(t *testing.T, h *host, want ...string) {
	t.Helper()
	eventually(t, "the state file has "+strings.Join(want, ", "), func() bool { return slices.Equal(h.entries(), want) })
}
