package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// BenchmarkIdle tells the share of a core that the daemon takes on a node on which nothing happens, with everything on that moves memory.
// One operation is a second.
func BenchmarkIdle(b *testing.B) {
	for _, pods := range []int{4, 1000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			h := newHost(b, cri.Options{}, "kubeReserved: {memory: 924Mi}\nrebalance: {deficits: On, consolidate: true, maxBytes: 4Gi}\ntopologyManagerPolicyOptions: {numa-allocation-strategy: least-used}\n"+
				"unpinnedMemoryPolicy: PreferAvailable\n")
			h.onKernel(12*gi, 12*gi)
			plugin := h.start()
			for i := range pods {
				pod := guaranteed(fmt.Sprintf("pod-%d", i), 8*mi)
				h.deploy(pod)
				h.on(pod, 4*mi, 0)
			}
			h.shows(" enough", "status")
			time.Sleep(3 * time.Second) // what follows the last pod
			before := plugin.cpuTime()
			b.ResetTimer()
			time.Sleep(time.Duration(b.N) * time.Second)
			b.StopTimer()
			used := plugin.cpuTime() - before
			b.ReportMetric(100*used.Seconds()/float64(b.N), "%-of-a-core")
			plugin.reportMemory(b)
		})
	}
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
