package cases

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// restartRuntime ends the container runtime and waits until a new one is ready.
// extra is added to its configuration for this and all later starts.
func restartRuntime(t *testing.T, k machine, extra string) {
	t.Helper()
	if err := os.WriteFile(setup.RuntimeExtra, []byte(extra), 0o644); err != nil {
		t.Fatal(err)
	}
	endRuntime(t, k, syscall.SIGTERM)
}

// endRuntime ends the container runtime by a signal and waits until a new one is ready.
func endRuntime(t *testing.T, k machine, signal syscall.Signal) {
	t.Helper()
	old := file(setup.RuntimePID)
	pid, err := strconv.Atoi(old)
	if err != nil {
		t.Fatalf("no runtime: %v", err)
	}
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new runtime starts", func() string {
		if now := file(setup.RuntimePID); now == old || now == "" {
			return "still process " + now
		}
		return ""
	})
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit) // the test's own ends before its clean-up
	defer cancel()
	if err := k.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestRuntimeRestartsUnderRunningPods restarts the runtime; the plugin finds it
// again, running pods keep everything and new ones get theirs.
func TestRuntimeRestartsUnderRunningPods(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	pods := []*kubelet.Pod{
		guaranteed("guaranteed", 48*MiB, 16*MiB),
		{Name: "burstable", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB}}},
		guaranteed("goes", 32*MiB, MiB),
	}
	for _, pod := range pods {
		run(t, k, pod)
	}
	want := p.simulate(pods...)
	p.agrees(k, want, pods...)
	restartRuntime(t, k, "")
	p.waitSynchronized(2)
	p.agrees(k, want, pods...)
	p.onlyAllocated(pods[0], pods[2])

	if err := k.Remove(t.Context(), pods[2]); err != nil {
		t.Fatal(err)
	}
	late := guaranteed("late", 24*MiB, MiB)
	run(t, k, late)
	p.onlyAllocated(pods[0], late)
	left := []*kubelet.Pod{pods[0], pods[1], late}
	p.agrees(k, p.simulate(left...), left...)
}

// TestStateFileIsLostOrForeign lets the plugin start with a state file that is
// gone, cut off, or from another machine: pods keep running on their nodes, and
// the state is what it was.
func TestStateFileIsLostOrForeign(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	here, there := guaranteed("here", 48*MiB, 8*MiB), on(guaranteed("there", 32*MiB, 8*MiB), "1")
	run(t, k, here)
	run(t, k, there)
	p.onlyAllocated(here, there)
	good, err := os.ReadFile(p.stateFile())
	if err != nil {
		t.Fatal(err)
	}
	total := "" // the first node's capacity, to be changed
	if _, rest, found := strings.Cut(string(good), `"total":`); found {
		total, _, _ = strings.Cut(rest, ",")
	}
	for name, content := range map[string]func() ([]byte, bool){
		"deleted":         func() ([]byte, bool) { return nil, false },
		"cut off":         func() ([]byte, bool) { return good[:len(good)/2], true },
		"empty":           func() ([]byte, bool) { return nil, true },
		"another machine": func() ([]byte, bool) { return []byte(strings.Replace(string(good), total, "68719476736", 1)), true },
	} {
		t.Run(name, func(t *testing.T) {
			p.t = t
			p.kill()
			data, write := content()
			if err := os.Remove(p.stateFile()); err != nil {
				t.Fatal(err)
			}
			if write {
				if err := os.WriteFile(p.stateFile(), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p.restart()
			p.onlyAllocated(here, there)
			for pod, want := range map[*kubelet.Pod]string{here: "0", there: "1"} {
				if got := file(dirOf(t, k, pod, "app"), "cpuset.mems"); got != want {
					t.Errorf("%s is on node %q, want %s", pod.Name, got, want)
				}
				if blocks := p.allocated(pod, "app"); len(blocks) != 1 || len(blocks[0].Nodes) != 1 || strconv.Itoa(blocks[0].Nodes[0]) != want {
					t.Errorf("%s is allocated as %+v, want node %s", pod.Name, blocks, want)
				}
			}
			if kept, _ := filepath.Glob(p.stateFile() + ".corrupt-*"); write && len(kept) == 0 {
				t.Error("the bad file was not kept aside")
			}
		})
	}
	p.t = t
}
