package cases

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// guarded starts a plugin with the stall guard.
func guarded(t *testing.T, lines ...string) (machine, *plugin) {
	t.Helper()
	return criOf(t), startPlugin(t, append(lines, "stallGuard: true")...)
}

// guardOff is the annotation that has the guard leave a pod alone.
var guardOff = map[string]string{"stall-guard.memory-manager.noderesource.dev": "off"}

// growing is a pod whose container wants so many bytes when the file go is there, more when the file more is, and frees all
// when the file free is. memory.high and memory.max are as given; with limit 0 there is no memory.max.
type growing struct {
	pod               *kubelet.Pod
	high, limit, want uint64
	began             time.Time
}

func newGrowing(name string, high, limit, want, more uint64, annotations map[string]string) *growing {
	all := map[string]string{"memory-high.memory-manager.noderesource.dev": fmt.Sprint(high)}
	for key, value := range annotations {
		all[key] = value
	}
	args := []string{"wait=/ctl/go", fmt.Sprint("grow=", want), "wait=/ctl/more", fmt.Sprint("grow=", more), "wait=/ctl/free", "free"}
	return &growing{high: high, limit: limit, want: want, pod: &kubelet.Pod{Name: name, Annotations: all,
		Containers: []kubelet.Container{{Name: "app", Request: 8 * MiB, Limit: limit, Args: args}}}}
}

// start creates the pods and sets them going at once.
func start(t *testing.T, k machine, all ...*growing) {
	t.Helper()
	for _, g := range all {
		run(t, k, g.pod)
		if high := number(t, dirOf(t, k, g.pod, "app"), "memory.high"); high != g.high {
			t.Fatalf("%s: memory.high is %d, want %d", g.pod.Name, high, g.high)
		}
	}
	for _, g := range all {
		g.began = time.Now()
		touchFile(t, k.Control(g.pod), "go")
	}
}

// finish waits until the container has what it wants and returns how long that took and how long it stood.
func (g *growing) finish(t *testing.T, k machine) (took, stalled time.Duration) {
	t.Helper()
	said(t, k, g.pod, "app", fmt.Sprint("done grow=", g.want))
	took, stalled = time.Since(g.began), g.stalled(t, k)
	t.Logf("%s: memory.high %d MiB, limit %d MiB, wants %d MiB: %v, %v of it in full stall, memory.high is now %s",
		g.pod.Name, g.high/MiB, g.limit/MiB, g.want/MiB, took.Round(10*time.Millisecond), stalled.Round(10*time.Millisecond), file(dirOf(t, k, g.pod, "app"), "memory.high"))
	return took, stalled
}

func (g *growing) finished(k machine) bool {
	return strings.Contains(k.Output(g.pod, "app"), fmt.Sprint("done grow=", g.want))
}

var fullTotal = regexp.MustCompile(`full .* total=(\d+)`)

// stalled is how long the container has been in full stall since its start.
func (g *growing) stalled(t *testing.T, k machine) time.Duration {
	t.Helper()
	return fullStall(t, dirOf(t, k, g.pod, "app"))
}

// fullStall is how long a cgroup has been in full stall since it was made.
func fullStall(t *testing.T, cgroup string) time.Duration {
	t.Helper()
	m := fullTotal.FindStringSubmatch(file(cgroup, "memory.pressure"))
	if m == nil {
		t.Fatalf("%s has no memory.pressure", cgroup)
	}
	microseconds, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(microseconds) * time.Microsecond
}

// awaitStall waits until the container has stood for so long.
func (g *growing) awaitStall(t *testing.T, k machine, atLeast time.Duration) {
	t.Helper()
	eventually(t, g.pod.Name+" is stopped", func() string {
		if now := g.stalled(t, k); now < atLeast {
			return fmt.Sprintf("stalled for %v, usage %s", now, file(dirOf(t, k, g.pod, "app"), "memory.current"))
		}
		return ""
	})
}

// awaitHigh waits until memory.high satisfies check.
func (g *growing) awaitHigh(t *testing.T, k machine, what string, check func(high uint64) bool) {
	t.Helper()
	eventually(t, g.pod.Name+": "+what, func() string {
		if high := number(t, dirOf(t, k, g.pod, "app"), "memory.high"); !check(high) {
			return fmt.Sprintf("memory.high is %d", high)
		}
		return ""
	})
}

// startUnprivileged starts the plugin without CAP_SYS_RESOURCE.
func (p *plugin) startUnprivileged() {
	p.t.Helper()
	launched := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_RESOURCE, 0, 0, 0)
		if err == nil {
			err = p.launch()
		}
		launched <- err
	}()
	if err := <-launched; err != nil {
		p.t.Fatal(err)
	}
	p.waitSynchronized(1)
	for line := range strings.Lines(file("/proc", strconv.Itoa(p.cmd.Process.Pid), "status")) {
		if text, found := strings.CutPrefix(line, "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			if err != nil || set>>unix.CAP_SYS_RESOURCE&1 != 0 {
				p.t.Fatalf("the plugin's capabilities are %x", set)
			}
		}
	}
}

// TestStallGuardLetsContainersThrough grows containers beyond their memory.high, all at once. Those with the guard come
// through, or are killed at their limit; the one without stands still. The plugin has no capabilities, as in the DaemonSet.
func TestStallGuardLetsContainersThrough(t *testing.T) {
	k, p := guarded(t)
	p.kill()
	p.startUnprivileged()
	alone := newGrowing("alone", 32*MiB, 64*MiB, 56*MiB, 0, guardOff)
	leak := newGrowing("leak", 32*MiB, 64*MiB, 90*MiB, 0, nil)
	through := []*growing{
		newGrowing("gap32", 32*MiB, 64*MiB, 56*MiB, 0, nil),
		newGrowing("gap16", 48*MiB, 64*MiB, 58*MiB, 0, nil),
		newGrowing("gap256", 64*MiB, 320*MiB, 300*MiB, 0, nil),
	}
	start(t, k, append(through, leak, alone)...)
	for _, g := range through {
		if _, stalled := g.finish(t, k); stalled >= alone.stalled(t, k) {
			t.Errorf("%s was stopped for %v, no shorter than the container without the guard", g.pod.Name, stalled)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	how, err := k.WaitExit(ctx, leak.pod, "app")
	if err != nil || !strings.HasPrefix(how, "137 ") {
		t.Errorf("the leaking container: %q, %v; want killed at its limit", how, err)
	}
	t.Logf("leak: killed after %v", time.Since(leak.began).Round(10*time.Millisecond))
	alone.awaitStall(t, k, 10*time.Second)
	if alone.finished(k) || number(t, dirOf(t, k, alone.pod, "app"), "memory.high") != alone.high {
		t.Error("the container without the guard came through: then no guard is needed")
	}
	for name, least := range map[string]float64{"episodes": 4, "raises": 4, "stalled_seconds": 0.5, "raised_seconds": 0.5} {
		if got := metric(t, "nri_memory_manager_stall_guard_"+name+"_total"); got < least {
			t.Errorf("metric %s is %v, want at least %v", name, got, least)
		}
	}
	eventually(t, "there is a log line for each container that was given room", func() string {
		for _, g := range append(through, leak) {
			if !strings.Contains(p.output(), "pod=default/"+g.pod.Name+" raisedTo=") {
				return "none for " + g.pod.Name
			}
		}
		return ""
	})
	if strings.Contains(p.output(), "without pressure from the kernel") {
		t.Error("the kernel gave no triggers")
	}
}

// TestStallGuardTakesRaisesBack follows raised values through a restart, a resize, a container that shrinks, a reload that
// turns the guard off, and a rollback.
func TestStallGuardTakesRaisesBack(t *testing.T) {
	k, p := guarded(t, "--timings=step=0.5,restore=2s")
	shrinks := newGrowing("shrinks", 32*MiB, 64*MiB, 56*MiB, 0, nil)
	stays := newGrowing("stays", 32*MiB, 128*MiB, 56*MiB, 56*MiB, nil)
	start(t, k, shrinks, stays)
	raised := func(g *growing) func(uint64) bool { return func(high uint64) bool { return high > g.want } }
	for _, g := range []*growing{shrinks, stays} {
		g.finish(t, k)
		g.awaitHigh(t, k, "is raised", raised(g))
		eventually(t, g.pod.Name+": the raise is stored", func() string { // a raise waits for no disk
			high := fmt.Sprint(number(t, dirOf(t, k, g.pod, "app"), "memory.high"))
			if stored := file(p.state, "raised.json"); !strings.Contains(stored, high) {
				return fmt.Sprintf("memory.high is %s, raised.json has %s", high, stored)
			}
			return ""
		})
	}

	p.kill()
	write(t, "0", dirOf(t, k, stays.pod, "app"), "cgroup.pressure") // from now on it must do without memory.pressure
	p.restart()
	for _, g := range []*growing{shrinks, stays} {
		if high := number(t, dirOf(t, k, g.pod, "app"), "memory.high"); !raised(g)(high) {
			t.Errorf("%s: after a restart of the plugin memory.high is %d", g.pod.Name, high)
		}
	}
	if err := k.Resize(t.Context(), shrinks.pod, "app", 8*MiB, 96*MiB); err != nil {
		t.Fatal(err)
	}
	shrinks.awaitHigh(t, k, "stays raised through a resize", raised(shrinks))
	touchFile(t, k.Control(shrinks.pod), "more")
	touchFile(t, k.Control(shrinks.pod), "free")
	said(t, k, shrinks.pod, "app", "done free")
	shrinks.awaitHigh(t, k, "goes back when memory is freed", func(high uint64) bool { return high == shrinks.high })
	if n := metric(t, "nri_memory_manager_stall_guard_restores_total"); n < 1 {
		t.Errorf("metric restores is %v", n)
	}

	if high := number(t, dirOf(t, k, stays.pod, "app"), "memory.high"); !raised(stays)(high) {
		t.Errorf("the container that keeps its memory has memory.high %d", high)
	}
	reload := func(guard string) {
		p.configure("stallGuard: " + guard)
		_ = p.cmd.Process.Signal(syscall.SIGHUP)
	}
	reload("false")
	stays.awaitHigh(t, k, "goes back when the guard is turned off", func(high uint64) bool { return high == stays.high })
	reload("true")
	touchFile(t, k.Control(stays.pod), "more")
	stays.awaitHigh(t, k, "is raised again", raised(stays))
	if !strings.Contains(p.output(), "without pressure from the kernel") {
		t.Error("nobody was told of the container without memory.pressure")
	}
	p.kill()
	if out, code := p.command("rollback", "--state-dir", p.state); code != 0 {
		t.Fatalf("rollback: exit status %d: %s", code, out)
	}
	stays.awaitHigh(t, k, "is taken back by rollback", func(high uint64) bool { return high == unlimited })
}

// TestStallGuardRaisesNobodyWithoutNeed reads a file larger than memory.high, where reclaim works, and stops a container
// on a node that has nothing to give.
func TestStallGuardRaisesNobodyWithoutNeed(t *testing.T) {
	k, _ := guarded(t)
	raises := func() float64 { return metric(t, "nri_memory_manager_stall_guard_raises_total") }

	t.Run("page cache", func(t *testing.T) {
		dir := disk(t, 160*MiB)
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		fill(t, dir+"/big", 128<<20)
		write(t, "3", "/proc/sys/vm/drop_caches")
		g := newGrowing("reader", 32*MiB, 64*MiB, 0, 0, nil)
		g.pod.Containers[0].Mounts = map[string]string{"/data": dir}
		g.pod.Containers[0].Args = []string{"wait=/ctl/go", "read=/data/big", "say=once", "read=/data/big", "say=twice"}
		start(t, k, g)
		said(t, k, g.pod, "app", "twice")
		cgroup := dirOf(t, k, g.pod, "app")
		t.Logf("twice 128 MiB in %v, full stall %v, high events %d", time.Since(g.began), g.stalled(t, k), event(cgroup, "memory.events", "high"))
		if event(cgroup, "memory.events", "high") == 0 {
			t.Error("memory.high was never reached")
		}
		if high := number(t, cgroup, "memory.high"); high != g.high || raises() != 0 {
			t.Errorf("memory.high is %d after %v raises, want it left alone", high, raises())
		}
		if err := k.Remove(t.Context(), g.pod); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("a short node", func(t *testing.T) {
		appetite := (memAvailable(t) - 100*MiB) / MiB * MiB // the pods need some, and less than the eviction threshold is left
		neighbour := &kubelet.Pod{Name: "neighbour", Containers: []kubelet.Container{{Name: "app", Args: []string{fmt.Sprint("grow=", appetite)}}}}
		run(t, k, neighbour)
		said(t, k, neighbour, "app", fmt.Sprint("done grow=", appetite))
		before := event("/proc", "vmstat", "allocstall_normal") + event("/proc", "vmstat", "allocstall_movable") + event("/proc", "vmstat", "allocstall_dma32")
		g := newGrowing("stopped", 32*MiB, 64*MiB, 56*MiB, 0, nil)
		start(t, k, g)
		g.awaitStall(t, k, 5*time.Second)
		after := event("/proc", "vmstat", "allocstall_normal") + event("/proc", "vmstat", "allocstall_movable") + event("/proc", "vmstat", "allocstall_dma32")
		t.Logf("available %d MiB, allocstall %d to %d", memAvailable(t)/MiB, before, after)
		if high := number(t, dirOf(t, k, g.pod, "app"), "memory.high"); high != g.high || raises() != 0 {
			t.Errorf("memory.high is %d after %v raises, want it left alone", high, raises())
		}
		if err := k.Remove(t.Context(), neighbour); err != nil {
			t.Fatal(err)
		}
		g.finish(t, k)
	})
}

// TestStallGuardLeavesSwappingContainersAlone has memory.high page out what is beyond it.
func TestStallGuardLeavesSwappingContainersAlone(t *testing.T) {
	k, _ := guarded(t)
	swap(t, 256*MiB)
	g := newGrowing("paged", 32*MiB, 0, 96*MiB, 0, nil)
	start(t, k, g)
	g.finish(t, k)
	dir := dirOf(t, k, g.pod, "app")
	swapped := number(t, dir, "memory.swap.current")
	if swapped == 0 {
		t.Error("nothing was swapped out")
	}
	t.Logf("swapped out %d MiB, raises %v", swapped/MiB, metric(t, "nri_memory_manager_stall_guard_raises_total"))
}
