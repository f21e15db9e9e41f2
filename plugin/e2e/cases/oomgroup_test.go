package cases

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// oomGroupPod is a pod whose container has a memory.oom.group of the kubelet's, and an annotation.
func oomGroupPod(name, annotation, kubelets string) *kubelet.Pod {
	return &kubelet.Pod{
		Name: name,
		Annotations: map[string]string{
			"oom-group.memory-manager.noderesource.dev": annotation, "memory-high.memory-manager.noderesource.dev": "off",
		},
		Containers: []kubelet.Container{{
			Name: "app", Request: 32 * MiB, Limit: 64 * MiB, Unified: map[string]string{"memory.oom.group": kubelets},
		}},
	}
}

// TestOOMKillEndsWhatThePodChooses has a second process run into its container's limit. With the annotation "process" the kernel ends that
// one, with "container" PID 1 as well, whatever the kubelet asks for. A resize and systemd keep the choice, and rollback gives the kubelet's
// back, also of a container that was adopted.
func TestOOMKillEndsWhatThePodChooses(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	process, whole := oomGroupPod("process", "process", "1"), oomGroupPod("whole", "container", "0")
	run(t, k, process)
	run(t, k, whole)
	oomGroup := func(when string, pod *kubelet.Pod, want string) {
		t.Helper()
		eventually(t, when, func() string {
			if got := file(dirOf(t, k, pod, "app"), "memory.oom.group"); got != want {
				return fmt.Sprintf("memory.oom.group of %s is %s, want %s", pod.Name, got, want)
			}
			return ""
		})
	}
	oomGroup("the annotation counts", process, "0")
	oomGroup("the annotation counts", whole, "1")
	if err := k.Resize(t.Context(), process, "app", 32*MiB, 80*MiB); err != nil {
		t.Fatal(err)
	}
	oomGroup("a resize keeps it", process, "0")
	if k.Plan.Driver == setup.Systemd { // which writes its own with every property of memory
		scope := filepath.Base(dirOf(t, k, whole, "app"))
		if out, err := exec.CommandContext(t.Context(), "systemctl", "set-property", "--runtime", scope, "MemoryLow=1M").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		oomGroup("systemd's is replaced", whole, "1")
	}

	first, err := k.PIDs(process, "app")
	if err != nil || len(first) != 1 {
		t.Fatalf("processes %v, %v", first, err)
	}
	grow := []string{"/workload", fmt.Sprint("grow=", 160*MiB), "exit=0"}
	if out, code, err := k.Exec(t.Context(), process, "app", grow...); code != 137 || err != nil {
		t.Errorf("the second process: exit status %d, %v: %s", code, err, out)
	}
	if now, err := k.PIDs(process, "app"); err != nil || !slices.Equal(now, first) {
		t.Errorf("the processes are %v, and were %v before the OOM kill, %v", now, first, err)
	}
	if kills := event(dirOf(t, k, process, "app"), "memory.events", "oom_kill"); kills != 1 {
		t.Errorf("%d processes were killed, want 1", kills)
	}

	if out, code, err := k.Exec(t.Context(), whole, "app", grow...); code == 0 {
		t.Errorf("the second process ended well beyond the limit, %v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if status, err := k.WaitExit(ctx, whole, "app"); err != nil || !strings.HasPrefix(status, "137 ") {
		t.Errorf("the container ended with %s, %v", status, err)
	}

	for _, when := range []string{"rollback", "rollback of a container that was adopted"} {
		p.stop()
		if out, code := p.ask("rollback"); code != 0 {
			t.Fatalf("%s: exit status %d: %s", when, code, out)
		}
		oomGroup(when, process, "1")
		p.restart()
		oomGroup("the container is adopted", process, "0")
	}
}

// TestTheKubeletsOOMGroupStays has systemd told of a raised memory.high, with which it writes its own
// memory.oom.group.
func TestTheKubeletsOOMGroupStays(t *testing.T) {
	k, p := guarded(t)
	g := newGrowing("kubelets", 32*MiB, 64*MiB, 56*MiB, 0, nil)
	g.pod.Containers[0].Unified = map[string]string{"memory.oom.group": "1"}
	start(t, k, g)
	cgroup := dirOf(t, k, g.pod, "app")
	if got := file(cgroup, "memory.oom.group"); got != "1" {
		t.Fatalf("memory.oom.group is %s at first", got)
	}
	g.finish(t, k)
	eventually(t, "systemd is told", func() string {
		out := command(t, "systemctl", "show", "--value", "-p", "MemoryHigh", filepath.Base(cgroup))
		if high := file(cgroup, "memory.high"); strings.TrimSpace(out) != strings.ReplaceAll(high, "max", "infinity") {
			return fmt.Sprintf("its MemoryHigh is %s, memory.high is %s", out, high)
		}
		return ""
	})
	eventually(t, "the kubelet's value is there", func() string {
		if got := file(cgroup, "memory.oom.group"); got != "1" {
			return "memory.oom.group is " + got
		}
		return ""
	})
	p.stop()
	if out, code := p.ask("rollback"); code != 0 {
		t.Fatalf("exit status %d: %s", code, out)
	}
	if got := file(cgroup, "memory.oom.group"); got != "1" {
		t.Errorf("after a rollback memory.oom.group is %s", got)
	}
}
