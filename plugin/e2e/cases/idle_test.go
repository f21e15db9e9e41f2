package cases

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// mostIdleCPU is the share of an emulated CPU, in percent, that the plugin may take on a node on which nothing happens: 0.5 % of a real
// one, which is more than ten times as fast.
const mostIdleCPU = 5

// TestNothingIsDoneOnAnIdleNode looks at pods at rest for 20 seconds, ten minutes with FULL=1, with samples of NUMA nodes and
// memory policies: no cgroup file is written, nothing is counted, no OOM kill is reported, and the log has not a line. The case logs the plugin's CPU time.
func TestNothingIsDoneOnAnIdleNode(t *testing.T) {
	k := criOf(t)
	duration := 20 * time.Second
	if k.Plan.Full {
		duration = 10 * time.Minute
	}
	p := startPlugin(t, "topologyManagerPolicyOptions: {numa-allocation-strategy: least-used}", "unpinnedMemoryPolicy: PreferAvailable",
		"--timings=check=10s", "stallGuard: true", "logLevel: info")
	pods := []*kubelet.Pod{
		guaranteed("pinned", 96*MiB, 32*MiB), guaranteed("idle", 64*MiB, 8*MiB),
		{Name: "burstable", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 96 * MiB, Args: touching(24 * MiB)}}},
		{Name: "besteffort", Containers: []kubelet.Container{{Name: "app", Args: touching(16 * MiB)}}},
	}
	kills := oomKills(t)
	for _, pod := range pods {
		run(t, k, pod)
	}
	for _, pod := range pods {
		eventually(t, pod.Name+" is at rest", func() string {
			out := k.Output(pod, "app")
			if !strings.Contains(out, "done touch=") {
				return out
			}
			return ""
		})
	}
	p.clean(t)
	eventually(t, "what the nodes have available is known", func() string {
		out, _ := p.ask("status")
		if !strings.Contains(out, " enough") {
			return out
		}
		return ""
	})
	w := watchWrites(t, k.Kubepods())
	eventually(t, "the plugin has come to rest", func() string {
		said, counted := p.output(), counters(t)
		w.written(t)
		time.Sleep(12 * time.Second) // longer than the period of the check
		if files := w.written(t); len(files) > 0 {
			return fmt.Sprintf("writes %v", files)
		}
		return p.since(t, said, counted)
	})

	said, counted, used := p.output(), counters(t), usageOf(t, p)
	w.written(t)
	time.Sleep(duration)
	now := usageOf(t, p)
	if files := w.written(t); len(files) > 0 {
		t.Errorf("written to: %v", files)
	}
	if done := p.since(t, said, counted); done != "" {
		t.Error(done)
	}
	p.noVerdict(t, kills)
	percent := 100 * float64(now.cpu-used.cpu) / float64(duration)
	t.Logf("%d pods at rest for %v: %v of CPU time, %.2f %% of an emulated CPU", len(pods), duration, (now.cpu - used.cpu).Round(time.Millisecond), percent)
	if k.Plan.Full && percent > mostIdleCPU {
		t.Errorf("that is more than %v %%", mostIdleCPU)
	}
}

// noVerdict fails where the plugin reports an OOM kill, and the kernel has counted none since it had counted so many.
func (p *plugin) noVerdict(t *testing.T, kills uint64) {
	t.Helper()
	if now := oomKills(t); now > kills {
		t.Logf("the kernel killed %d processes", now-kills)
		return
	}
	out, _ := p.ask("oom")
	if n := metric(t, "nri_memory_manager_oom_kills_total"); n != 0 || out != "No OOM kill is known.\n" {
		t.Errorf("%v kills are counted, and the kernel killed nothing:\n%s", n, out)
	}
}

// since is what the plugin has said and counted since; "" for nothing.
func (p *plugin) since(t *testing.T, said string, counted map[string]string) string {
	t.Helper()
	if more := strings.TrimPrefix(p.output(), said); more != "" {
		return "the log has " + more
	}
	var changed []string
	for name, value := range counters(t) {
		if counted[name] != value {
			changed = append(changed, fmt.Sprintf("%s: %s, then %s", name, counted[name], value))
		}
	}
	slices.Sort(changed)
	return strings.Join(changed, "\n")
}

// counters are the plugin's own counters: what it has done. The kernel's of containers are left out.
func counters(t *testing.T) map[string]string {
	t.Helper()
	text, err := get("http://" + metricsAddress + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(nri_memory_manager_\w+_(?:total|count)(?:\{[^}]*\})?) (\S+)$`).FindAllStringSubmatch(text, -1) {
		if !strings.HasPrefix(m[1], "nri_memory_manager_container_memory_") {
			all[m[1]] = m[2]
		}
	}
	if all["nri_memory_manager_container_updates_total"] == "" {
		t.Fatalf("no counter of updates in %s", text)
	}
	return all
}

// writes are notifications of the kernel about writes to the files of cgroups, whoever makes them.
type writes struct {
	fd   int
	dirs map[int32]string // by watch
}

// watchWrites watches a cgroup and all below it, and sees to it that a write would be noticed.
func watchWrites(t *testing.T, root string) *writes {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	w := &writes{fd: fd, dirs: map[int32]string{}}
	err = filepath.WalkDir(root, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		watch, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY)
		w.dirs[int32(watch)] = dir
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const unused = "cgroup.max.descendants"
	write(t, file(root, unused), root, unused)
	if got := w.written(t); !slices.Contains(got, filepath.Join(root, unused)) {
		t.Fatalf("a write to %s is not noticed, but %v", unused, got)
	}
	return w
}

// written are the files that were written to since it was asked last. Counters of the kernel's own that it announces the same way
// are left out.
func (w *writes) written(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for buffer := make([]byte, 64<<10); ; {
		n, err := unix.Read(w.fd, buffer)
		if err == unix.EAGAIN {
			return slices.Sorted(maps.Keys(found))
		}
		if err != nil {
			t.Fatal(err)
		}
		for events := buffer[:n]; len(events) >= unix.SizeofInotifyEvent; {
			length := binary.NativeEndian.Uint32(events[12:])
			name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length], []byte{0})
			if dir := w.dirs[int32(binary.NativeEndian.Uint32(events))]; !strings.Contains(string(name), ".events") {
				found[filepath.Join(dir, string(name))] = true
			}
			events = events[unix.SizeofInotifyEvent+length:]
		}
	}
}
