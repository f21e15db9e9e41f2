package cases

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// finding is one of `verify -o json`. As an expectation Object and What are parts of the text.
type finding struct {
	Severity, ID, Object, What, Do string
}

func (f finding) matches(other finding) bool {
	return f.ID == other.ID && f.Severity == other.Severity && strings.Contains(other.Object, f.Object) &&
		strings.Contains(other.What, f.What) && other.Do != ""
}

// audit runs verify and returns what it found. Its exit status must follow from that.
func (p *plugin) audit(t *testing.T) []finding {
	t.Helper()
	out, code := p.command("verify", "-o", "json", "--state-dir", p.state)
	var report struct{ Findings []finding }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("verify, exit status %d: %v: %s", code, err, out)
	}
	want := 0
	if slices.ContainsFunc(report.Findings, func(f finding) bool { return f.Severity != "note" }) {
		want = 1
	}
	if code != want {
		t.Errorf("exit status %d, want %d: %s", code, want, out)
	}
	return report.Findings
}

// names waits until verify names a finding, and forgets until it does not any more.
func (p *plugin) names(t *testing.T, want finding) {
	t.Helper()
	eventually(t, "verify names "+want.ID, func() string {
		found := p.audit(t)
		if i := slices.IndexFunc(found, want.matches); i >= 0 {
			t.Logf("%s [%s] %s: %s", found[i].Severity, found[i].ID, found[i].Object, found[i].What)
			return ""
		}
		return fmt.Sprintf("want %+v among %+v", want, found)
	})
}

func (p *plugin) forgets(t *testing.T, what finding) {
	t.Helper()
	eventually(t, "verify no longer names "+what.ID, func() string {
		if found := p.audit(t); slices.ContainsFunc(found, what.matches) {
			return fmt.Sprint(found)
		}
		return ""
	})
}

// clean waits until verify finds nothing but notes.
func (p *plugin) clean(t *testing.T) {
	t.Helper()
	eventually(t, "verify finds nothing", func() string {
		for _, f := range p.audit(t) {
			if f.Severity != "note" {
				return fmt.Sprint(f)
			}
		}
		return ""
	})
}

// reload puts a configuration in force.
func (p *plugin) reload(lines ...string) {
	p.t.Helper()
	p.configure(lines...)
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		p.t.Fatal(err)
	}
}

// change is reload, and waits until the plugin says that the configuration is in force.
func (p *plugin) change(lines ...string) {
	p.t.Helper()
	const inForce = "configuration in force"
	before := strings.Count(p.output(), inForce)
	p.reload(lines...)
	eventually(p.t, strings.Join(lines, ", ")+" is in force", func() string {
		if strings.Count(p.output(), inForce) == before {
			return "it is not"
		}
		return ""
	})
}

// rival writes a file again and again, as an agent does in a loop, until it is stopped.
func rival(t *testing.T, text string, parts ...string) (stop func()) {
	t.Helper()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(20 * time.Millisecond):
				_ = rawWrite(filepath.Join(parts...), text)
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// written writes a file and returns what writes the old value back.
func written(t *testing.T, text string, parts ...string) (back func()) {
	t.Helper()
	before := file(parts...)
	write(t, text, parts...)
	return func() { write(t, before, parts...) }
}

// TestVerifyKnowsTheRuntime finds on a healthy node what is known of the runtime, and nothing else of it.
func TestVerifyKnowsTheRuntime(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	known := map[setup.Runtime][]string{setup.Containerd17: {"runtime-unasked-updates"}, setup.Containerd24: nil}
	want, listed := known[k.Plan.Runtime]
	if !listed {
		t.Skip("the version of this variant's runtime is whatever was given")
	}
	var got []string
	for _, f := range p.audit(t) {
		if strings.HasPrefix(f.ID, "runtime-") {
			got = append(got, f.ID)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("of the runtime verify finds %v, want %v", got, want)
	}
}

// TestVerifyNamesWhatIsWrong makes every kind of finding happen that this kernel can, sees verify name it, undoes it and sees
// it go away. What the plugin repairs at once is written again and again.
func TestVerifyNamesWhatIsWrong(t *testing.T) {
	k := criOf(t)
	settings := []string{"memoryReservationPolicy: TieredReservation", "--timings=check=1h,step=0.01,restore=1h", "stallGuard: true"}
	p := startPlugin(t, settings...)
	pinned := guaranteed("pinned", 96*MiB, 24*MiB)
	pinned.Containers[0].Args = append(touching(24*MiB), "wait=/ctl/go", "read=/data/file", fmt.Sprint("write=/ctl/shared:", 12*MiB))
	data := disk(t, 32*MiB)
	fill(t, data+"/file", int(12*MiB))
	write(t, "1", "/proc/sys/vm/drop_caches") // whoever reads it first has its pages
	pinned.Containers[0].Mounts = map[string]string{"/data": data + ":ro"}
	burstable := &kubelet.Pod{Name: "burstable", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB}}}
	run(t, k, pinned)
	run(t, k, burstable)
	placed(t, k, p, pinned, "0", 24*MiB)
	p.agrees(k, p.simulate(pinned, burstable), pinned, burstable)
	p.clean(t)
	path := func(dir string) string { return strings.TrimPrefix(dir, kubelet.Root+"/") }
	app := func(pod *kubelet.Pod) string { return dirOf(t, k, pod, "app") }
	healthy := file(p.config)

	for name, test := range map[string]struct {
		want finding
		make func(t *testing.T) (undo func())
	}{
		"protection of a container": {
			want: finding{Severity: "error", ID: "protection", Object: path(app(pinned)), What: "its memory.min is 0: default/pinned/app has 0 instead of "},
			make: func(t *testing.T) func() { return rival(t, "0", app(pinned), "memory.min") },
		},
		"protection cancelled by the pod": {
			want: finding{Severity: "error", ID: "protection", Object: path(k.Dir(burstable)), What: "its memory.low is 0: default/burstable/app has 0 instead of 32Mi"},
			make: func(t *testing.T) func() { return rival(t, "0", k.Dir(burstable), "memory.low") },
		},
		"protection halved by the pod": {
			want: finding{Severity: "error", ID: "protection", Object: path(k.Dir(burstable)), What: "its memory.low is 16Mi: default/burstable/app has 16Mi instead of 32Mi"},
			make: func(t *testing.T) func() { return rival(t, fmt.Sprint(16*MiB), k.Dir(burstable), "memory.low") },
		},
		"protection cancelled by the QoS level": {
			want: finding{Severity: "error", ID: "protection", Object: path(k.QoS(burstable)), What: "its memory.low is 0: default/burstable/app has 0 instead of 32Mi"},
			make: func(t *testing.T) func() { return rival(t, "0", k.QoS(burstable), "memory.low") },
		},
		"protection cancelled by kubepods": {
			want: finding{Severity: "error", ID: "protection", Object: path(k.Kubepods()), What: "its memory.min is 0: default/pinned/app has 0 instead of "},
			make: func(t *testing.T) func() { return rival(t, "0", k.Kubepods(), "memory.min") },
		},
		"protection shared with a stranger": {
			want: finding{Severity: "error", ID: "protection", Object: path(k.Kubepods()), What: ", 512Mi of it " + path(k.Kubepods()) + "/stranger.slice, which holds no container of the daemon's"},
			make: func(t *testing.T) func() {
				stranger := filepath.Join(k.Kubepods(), "stranger.slice")
				if err := os.Mkdir(stranger, 0o755); err != nil {
					t.Fatal(err)
				}
				write(t, fmt.Sprint(512*MiB), stranger, "memory.min")
				return func() { _ = os.Remove(stranger) }
			},
		},
		"memory.high of another writer": {
			want: finding{Severity: "warning", ID: "memory-high", Object: "default/burstable/app", What: "memory.high is max, want "},
			make: func(t *testing.T) func() { return rival(t, "max", app(burstable), "memory.high") },
		},
		"cpuset.mems of another writer": {
			want: finding{Severity: "error", ID: "cpuset", Object: "default/pinned/app", What: "cpuset.mems is 0-1, and the container's memory is allocated on 0"},
			make: func(t *testing.T) func() { return rival(t, "0-1", app(pinned), "cpuset.mems") },
		},
		"another memory manager": {
			want: finding{Severity: "error", ID: "kubelet-memory-manager", Object: "kubelet-", What: "memoryManagerPolicy is Static"},
			make: func(t *testing.T) func() { return p.kubeletConfig("memoryManagerPolicy: Static", healthy) },
		},
		"another Memory QoS": {
			want: finding{Severity: "error", ID: "kubelet-memory-qos", Object: "kubelet-", What: "the feature gate MemoryQoS is on"},
			make: func(t *testing.T) func() { return p.kubeletConfig("featureGates: {MemoryQoS: true}", healthy) },
		},
		"a bad configuration": {
			want: finding{Severity: "error", ID: "not-ready", Object: "config", What: "memoryThrottlingFactor"},
			make: func(t *testing.T) func() {
				p.reload("memoryThrottlingFactor: 7")
				return func() { p.reload(settings...) }
			},
		},
		"a dry run": {
			want: finding{Severity: "warning", ID: "dry-run", Object: "configuration", What: "changes nothing"},
			make: func(t *testing.T) func() {
				p.reload(append(slices.Clone(settings), "profile: Observe")...)
				return func() { p.reload(settings...) }
			},
		},
		"no pressure": {
			want: finding{Severity: "warning", ID: "kernel-pressure", Object: "kernel ", What: "no memory.pressure"},
			make: func(t *testing.T) func() { return written(t, "0", k.Kubepods(), "cgroup.pressure") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			undo := sync.OnceFunc(test.make(t))
			t.Cleanup(undo)
			p.names(t, test.want)
			undo()
			p.forgets(t, test.want)
		})
	}
	t.Run("a container that its memory.high stops", func(t *testing.T) {
		stopped := finding{Severity: "warning", ID: "stopped", Object: "default/grows/app", What: "is being given room"}
		raised := finding{Severity: "warning", ID: "raised", Object: "default/grows/app", What: "has raised memory.high from 24Mi to "}
		over := finding{Severity: "warning", ID: "raised", Object: "default/grows/app", What: "has raised memory.high from 24Mi to max"}
		seen := false
		for tries := 0; !seen && tries < 5; tries++ { // it is stopped for seconds, in which verify may not look
			grows := newGrowing("grows", 24*MiB, 128*MiB, 112*MiB, MiB, nil) // many steps away
			start(t, k, grows)
			eventually(t, "verify names "+raised.ID, func() string {
				found := p.audit(t)
				seen = seen || slices.ContainsFunc(found, stopped.matches)
				if slices.ContainsFunc(found, over.matches) || seen && slices.ContainsFunc(found, raised.matches) {
					return ""
				}
				return fmt.Sprint(found)
			})
			if err := k.Remove(t.Context(), grows.pod); err != nil {
				t.Fatal(err)
			}
			p.forgets(t, raised)
		}
		if !seen {
			t.Errorf("verify has not named %+v in five runs", stopped)
		}
		p.forgets(t, stopped)
	})
	p.hugepages(k)

	// What was written to the parents of the pods stays counted until the daemon restarts.
	overwritten := finding{Severity: "warning", ID: "overwritten", Object: "memory.", What: "since the daemon started"}
	p.names(t, overwritten)
	p.kill()
	t.Log("the plugin is away: files come from the wrong node, and the state file breaks")
	write(t, "1", app(pinned), "cpuset.mems")
	touchFile(t, k.Control(pinned), "go")
	said(t, k, pinned, "app", fmt.Sprint("done write=/ctl/shared:", 12*MiB))
	write(t, "0", app(pinned), "cpuset.mems")
	if err := os.WriteFile(p.stateFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.configure(append(slices.Clone(settings), "requestSources: [oomscore]")...)
	p.restart()
	p.forgets(t, overwritten)
	guessed := run(t, k, &kubelet.Pod{Name: "guessed", Annotations: map[string]string{"memory-high.memory-manager.noderesource.dev": "much"}, Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB}}})
	var undone []finding
	for _, f := range []struct {
		finding
		undo func()
	}{
		{finding{Severity: "note", ID: "files-elsewhere", Object: "default/pinned/app", What: "of file cache is on node 1, the container is allocated on node 0"},
			func() { write(t, "1", "/proc/sys/vm/drop_caches") }},
		{finding{Severity: "note", ID: "shared-elsewhere", Object: "default/pinned/app", What: "of shared memory is on node 1, the container is allocated on node 0"},
			func() { _ = os.Remove(filepath.Join(k.Control(pinned), "shared")) }},
		{finding{Severity: "warning", ID: "state-quarantined", Object: "memory_manager_state.corrupt-", What: "was set aside"}, func() {
			for _, name := range globbed(t, p.stateFile()+".corrupt-*") {
				_ = os.Remove(name)
			}
		}},
		{finding{Severity: "warning", ID: "annotation", Object: "default/guessed", What: "ignored: "}, func() {}}, // goes with its pod, next
		{finding{Severity: "note", ID: "estimate", Object: "default/guessed/app", What: "the memory request is known only roughly"},
			func() { _ = k.Remove(t.Context(), guessed) }},
	} {
		p.names(t, f.finding)
		f.undo()
		undone = append(undone, f.finding)
	}
	for _, f := range undone {
		p.forgets(t, f)
	}
	p.clean(t)
}

func globbed(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// kubeletConfig lets the configuration name a KubeletConfiguration with one setting, until it is put back.
func (p *plugin) kubeletConfig(setting, before string) (undo func()) {
	p.t.Helper()
	name := filepath.Join(filepath.Dir(p.config), "kubelet-"+filepath.Base(p.config))
	for file, text := range map[string]string{
		name:     "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + setting + "\n",
		p.config: before + "\nkubeletConfig: " + name + "\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
	_ = p.cmd.Process.Signal(syscall.SIGHUP)
	return func() {
		if err := os.WriteFile(p.config, []byte(before), 0o644); err != nil {
			p.t.Fatal(err)
		}
		_ = p.cmd.Process.Signal(syscall.SIGHUP)
	}
}

// hugepages takes pages outside of the node map, and enlarges a pool, which the node map follows, where nodes have huge pages.
func (p *plugin) hugepages(k machine) {
	t := p.t
	for _, n := range planOf(t).Nodes {
		if n.Hugepages == 0 {
			continue
		}
		pool := fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-2048kB", n.ID)
		free := number(t, pool, "free_hugepages")
		memory, err := unix.Mmap(-1, 0, int(free*2*MiB), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_POPULATE)
		if err != nil {
			t.Fatal(err)
		}
		// Whichever nodes the kernel took them from: one of them has none left, or less.
		taken := finding{Severity: "warning", ID: "hugepages-taken", Object: ", huge pages of 2Mi", What: " used by containers that are not pinned, or by others on the node"}
		giveBack := sync.OnceFunc(func() {
			if err := unix.Munmap(memory); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(giveBack)
		p.names(t, taken)
		giveBack()
		p.forgets(t, taken)
		was := p.allocatable()[n.ID] // of ordinary memory, which the pages are taken from
		back := sync.OnceFunc(written(t, fmt.Sprint(n.Hugepages+2), pool, "nr_hugepages"))
		t.Cleanup(back)
		p.hasMemory("allocatable", n.ID, was-2*2*MiB)
		back()
		p.hasMemory("allocatable", n.ID, was)
		return
	}
}
