package cases

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// measuredBound is how long a container without the guard is watched before it counts as standing.
const measuredBound = 15 * time.Second

// TestMeasureStallGuard logs the table of docs/measurements.md: one container at a time, with the guard, without it, and
// without memory.high.
func TestMeasureStallGuard(t *testing.T) {
	k, p := guarded(t)
	type row struct {
		name              string
		high, limit, want uint64
		step              string
	}
	t.Log("| case | memory.high off | guard off | guard on | full stall | raises |")
	for _, r := range []row{
		{"32 → 64 MiB, wants 56", 32 * MiB, 64 * MiB, 56 * MiB, "grow"},
		{"48 → 64 MiB, wants 58", 48 * MiB, 64 * MiB, 58 * MiB, "grow"},
		{"64 → 320 MiB, wants 300", 64 * MiB, 320 * MiB, 300 * MiB, "grow"},
		{"64 → 1088 MiB, wants 1000", 64 * MiB, 1088 * MiB, 1000 * MiB, "grow"},
		{"32 → 64 MiB, wants 90 (leak)", 32 * MiB, 64 * MiB, 90 * MiB, "grow"},
		{"64 → 320 MiB, wants 300, 16 threads", 64 * MiB, 320 * MiB, 300 * MiB, "crowd"},
		{"64 MiB → none, wants 300", 64 * MiB, 0, 300 * MiB, "grow"},
	} {
		if available := memAvailable(t); r.want > available-200*MiB {
			t.Logf("| %s | left out: the guest has %d MiB |", r.name, available/MiB)
			continue
		}
		var cells []string
		for _, annotations := range []map[string]string{{"memory-high.memory-manager.noderesource.dev": "off"}, guardOff, nil} {
			before := metric(t, "nri_memory_manager_stall_guard_raises_total")
			took, stalled := measure(t, k, r.step, r.high, r.limit, r.want, annotations)
			cells = append(cells, took)
			if annotations == nil {
				cells = append(cells, stalled, fmt.Sprint(metric(t, "nri_memory_manager_stall_guard_raises_total")-before))
			}
		}
		t.Logf("| %s | %s |", r.name, strings.Join(cells, " | "))
	}
	p.kill()
	p.startUnprivileged()
	took, stalled := measure(t, k, "grow", 32*MiB, 64*MiB, 56*MiB, nil)
	t.Logf("without CAP_SYS_RESOURCE: 32 → 64 MiB, wants 56: %s, full stall %s", took, stalled)
}

// measure runs one container and says how it ended, when, and how long it stood.
func measure(t *testing.T, k machine, step string, high, limit, want uint64, annotations map[string]string) (took, stalled string) {
	t.Helper()
	g := newGrowing("measured", high, limit, want, 0, annotations)
	args := fmt.Sprint(step, "=", want)
	g.pod.Containers[0].Args = []string{"wait=/ctl/go", args}
	if annotations["memory-high.memory-manager.noderesource.dev"] == "off" {
		g.high = unlimited
	}
	start(t, k, g)
	defer func() {
		eventually(t, "the container is removed", func() string {
			if err := k.Remove(context.Background(), g.pod); err != nil {
				return err.Error()
			}
			return ""
		})
	}()
	stood := time.Duration(0)
	for {
		seconds := fmt.Sprintf("%.1f s", time.Since(g.began).Seconds())
		if strings.Contains(k.Output(g.pod, "app"), "done "+args) {
			stood = g.stalled(t, k)
			return seconds, fmt.Sprintf("%.1f s", stood.Seconds())
		}
		if how, exited := k.Exited(t.Context(), g.pod, "app"); exited {
			return strings.TrimPrefix(how, "137 ") + " after " + seconds, fmt.Sprintf("%.1f s", stood.Seconds())
		}
		dir, err := k.ContainerDir(g.pod, "app")
		if err != nil {
			continue // it has just been killed
		}
		if m := fullTotal.FindStringSubmatch(file(dir, "memory.pressure")); m != nil {
			microseconds, _ := strconv.ParseInt(m[1], 10, 64)
			stood = time.Duration(microseconds) * time.Microsecond
		}
		if over := time.Since(g.began); over > measuredBound && maps.Equal(annotations, guardOff) {
			usage, _ := strconv.ParseUint(file(dir, "memory.current"), 10, 64)
			return fmt.Sprintf("stands at %d MiB, %.0f %% stalled", usage/MiB, 100*stood.Seconds()/over.Seconds()), ""
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestMeasureIdleStallGuard compares a plugin's wake-ups and CPU time with many idle containers with the guard on and off.
func TestMeasureIdleStallGuard(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t, "--timings=check=10m", "stallGuard: false")
	const pods = 20
	for i := range pods {
		run(t, k, &kubelet.Pod{Name: fmt.Sprint("idle", i), Containers: []kubelet.Container{{Name: "app", Request: 4 * MiB, Limit: 32 * MiB}}})
	}
	const long = 20 * time.Second
	for _, guard := range []string{"false", "true"} {
		p.kill()
		p.configure("stallGuard: " + guard)
		p.restart()
		settled := usage{}
		eventually(t, "the plugin has settled", func() string {
			before := usageOf(t, p)
			time.Sleep(2 * time.Second)
			settled = usageOf(t, p)
			if n := settled.switches - before.switches; n > 100 {
				return fmt.Sprintf("%d context switches in 2 s", n)
			}
			return ""
		})
		time.Sleep(long)
		now := usageOf(t, p)
		t.Logf("stallGuard %s, %d idle containers, %v: %d voluntary context switches, %v CPU", guard, pods, long, now.switches-settled.switches, now.cpu-settled.cpu)
	}
	threads := 0
	for _, name := range strings.Fields(command(t, "ps", "-o", "comm")) {
		if strings.HasPrefix(name, "psimon") {
			threads++
		}
	}
	t.Logf("%d kernel threads psimon", threads)
}

type usage struct {
	switches int
	cpu      time.Duration
}

// usageOf sums over the threads of the plugin.
func usageOf(t *testing.T, p *plugin) usage {
	t.Helper()
	var u usage
	dir := fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range threads {
		thread := entry.Name()
		for line := range strings.Lines(file(dir, thread, "status")) {
			if text, found := strings.CutPrefix(line, "voluntary_ctxt_switches:"); found {
				n, _ := strconv.Atoi(strings.TrimSpace(text))
				u.switches += n
			}
		}
		nanoseconds, _, _ := strings.Cut(file(dir, thread, "schedstat"), " ")
		n, _ := strconv.ParseInt(nanoseconds, 10, 64)
		u.cpu += time.Duration(n)
	}
	if u.switches == 0 {
		t.Fatalf("%s: no context switches since the start", dir)
	}
	return u
}

// TestMeasureManyStalling stops many containers at once.
func TestMeasureManyStalling(t *testing.T) {
	k, _ := guarded(t)
	const pods = 20
	var all []*growing
	for i := range pods {
		all = append(all, newGrowing(fmt.Sprint("stalling", i), 12*MiB, 32*MiB, 20*MiB, 0, nil))
	}
	start(t, k, all...)
	var longest time.Duration
	for _, g := range all {
		_, stalled := g.finish(t, k)
		longest = max(longest, stalled)
	}
	t.Logf("%d containers stalling at once: all came through in %v, the longest full stall was %v", pods, time.Since(all[0].began), longest)
}
