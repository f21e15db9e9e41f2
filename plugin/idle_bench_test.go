package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// BenchmarkIdle tells the share of a core that the daemon takes on a node on which nothing happens, with samples of its NUMA nodes and memory policies.
// One operation is a second, the first of them when the daemon is at rest. BEFORE=PROGRAM is another build of it, measured beside at the same
// time: what else the machine does is the same for both.
func BenchmarkIdle(b *testing.B) {
	for _, pods := range []int{4, 1000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			plugins, units := []*process{idleHost(b).idle(pods)}, []string{"%-of-a-core", "%-of-a-core-before"}
			if before := os.Getenv("BEFORE"); before != "" {
				h := idleHost(b)
				h.program = before
				plugins = append(plugins, h.idle(pods))
			}
			quieten(b)
			b.ResetTimer()
			shares := shares(time.Duration(b.N)*time.Second, plugins...)
			b.StopTimer()
			for i, share := range shares {
				b.ReportMetric(share, units[i])
			}
			plugins[0].reportMemory(b)
		})
	}
}

// BenchmarkIdleByLoop tells the same by goroutines, each named by the outermost function of this project on its stack; what has none is Go's
// own work. A CPU profile gives the parts of what the threads took.
func BenchmarkIdleByLoop(b *testing.B) {
	const pods = 1000
	h := idleHost(b)
	profile := h.path("cpu.pprof")
	h.program = os.Args[0]
	b.Setenv(profileVariable, profile)
	plugin := h.idle(pods)
	quieten(b)
	must(b, plugin.cmd.Process.Signal(syscall.SIGUSR1))
	b.ResetTimer()
	share := shares(time.Duration(b.N)*time.Second, plugin)[0]
	b.StopTimer()
	must(b, plugin.cmd.Process.Signal(syscall.SIGUSR1))
	eventually(b, "its profile", func() bool { _, err := os.Stat(profile); return err == nil })
	traces, err := exec.Command("go", "tool", "pprof", "-traces", profile).Output()
	must(b, err)
	loops := byLoop(string(traces))
	var sum time.Duration
	for _, took := range loops {
		sum += took
	}
	for loop, took := range loops {
		b.ReportMetric(share*took.Seconds()/sum.Seconds(), loop+"-%")
	}
}

// idleHost is a machine with room for pods of 8Mi.
func idleHost(b *testing.B) *host {
	b.Helper()
	h := newHost(b, cri.Options{}, "kubeReserved: {memory: 924Mi}\ntopologyManagerPolicyOptions: {numa-allocation-strategy: least-used}\n"+
		"unpinnedMemoryPolicy: PreferAvailable\n")
	h.onKernel(12*gi, 12*gi)
	return h
}

// idle starts the plugin and pods, half of which use more than half of their limits, and waits for the work that the last pod causes.
func (h *host) idle(pods int) *process {
	h.t.Helper()
	plugin := h.start()
	for i := range pods {
		pod := guaranteed(fmt.Sprintf("pod-%d", i), 8*mi)
		h.deploy(pod)
		used := int64(3+3*(i%2)) * mi
		h.on(pod, used, 0)
		must(h.t, h.tree.Write(pod.cgroup()+"/"+pod.id(), "memory.current", fmt.Sprint(used)))
		must(h.t, h.tree.Write(pod.cgroup(), "memory.events", "max 0\noom 0\noom_kill 0\n")) // which the kernel can tell of
	}
	h.shows(" enough", "status")
	time.Sleep(3 * time.Second)
	return plugin
}

// quieten waits until what follows the creates is done, but for a look through the journal, which takes 22 minutes with 2,000 cgroups. The run
// of one operation, which Go makes before each, does not wait.
func quieten(b *testing.B) {
	if b.N > 1 {
		time.Sleep(150 * time.Second)
	}
}

// shares are the percentages of a core that processes take in a time.
func shares(quiet time.Duration, processes ...*process) (all []float64) {
	var before []time.Duration
	for _, p := range processes {
		before = append(before, p.cpuTime())
	}
	time.Sleep(quiet)
	for i, p := range processes {
		all = append(all, 100*(p.cpuTime()-before[i]).Seconds()/quiet.Seconds())
	}
	return all
}

// profileVariable makes this test binary run the plugin, and write a CPU profile of the time between two SIGUSR1 to the path that it holds.
const profileVariable = "TEST_CPU_PROFILE"

func runProfiled(path string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		<-signals
		file, err := os.Create(path + ".part")
		if err == nil {
			runtime.SetCPUProfileRate(1000) // the usual 100 a second see little of a process that sleeps
			err = pprof.StartCPUProfile(file)
		}
		<-signals
		pprof.StopCPUProfile()
		if err := cmp.Or(err, os.Rename(path+".part", path)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	main()
}

var outermost = regexp.MustCompile(`(?m)^[^\n]* github\.com/nri-memory-manager/nri-memory-manager/pkg/(\S+)`)

// byLoop sums the traces of "go tool pprof" by the outermost function of this project. A trace's first line begins with its time.
func byLoop(traces string) map[string]time.Duration {
	loops := map[string]time.Duration{}
	for _, trace := range strings.Split(traces, "-----------+")[1:] {
		_, stack, _ := strings.Cut(trace, "\n")
		first, _, _ := strings.Cut(strings.TrimSpace(stack), " ")
		took, err := time.ParseDuration(first)
		if err != nil { // the end
			continue
		}
		loop := "Go"
		if functions := outermost.FindAllStringSubmatch(stack, -1); functions != nil {
			loop = functions[len(functions)-1][1]
		}
		loops[loop] += took
	}
	return loops
}

// reportMemory reports the resident memory of the process, and how much of that is not mapped from its binary.
func (p *process) reportMemory(b *testing.B) {
	b.ReportMetric(float64(p.memory("VmRSS"))/1e6, "MB")
	b.ReportMetric(float64(p.memory("RssAnon"))/1e6, "anonymous-MB")
}

// cpuTime is what the threads of the process have taken.
func (p *process) cpuTime() (sum time.Duration) {
	p.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid))
	must(p.t, err)
	for _, file := range threads {
		text, err := os.ReadFile(file)
		must(p.t, err)
		nanoseconds, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(nanoseconds, 10, 64)
		must(p.t, err)
		sum += time.Duration(n)
	}
	return sum
}
