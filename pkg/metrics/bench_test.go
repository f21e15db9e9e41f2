package metrics

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// BenchmarkScrape is one scrape over HTTP of a node with 1,000 throttled containers, their files read. The files are a
// folder's, which are read faster than a kernel's.
func BenchmarkScrape(b *testing.B) {
	root := b.TempDir()
	view := &ledger.View{Nodes: busyNode().Nodes, Conditions: busyNode().Conditions}
	for i := range 1000 {
		name := fmt.Sprintf("kubepods/burstable/pod%d/app", i)
		cgroups.Fill(b, filepath.Join(root, name), map[string]string{
			"memory.events":   "low 0\nhigh 766\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
			"memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n",
			"memory.current":  "4096\n",
		})
		view.Pods = append(view.Pods, &ledger.PodView{Namespace: "default", Name: fmt.Sprintf("web-%d", i), Class: memoryqos.Burstable,
			Containers: []ledger.ContainerView{{Name: "app", State: ledger.Running, Cgroup: name, Values: memoryqos.Values{High: pointer(1 << 30)},
				Estimate: pods.Estimate{Request: 1 << 29, Source: memoryqos.SourceKubelet}}}})
	}
	tree, err := cgroupfs.Open(root)
	if err != nil {
		b.Fatal(err)
	}
	defer tree.Close()
	counters := agent.Counters{Counters: ledger.Counters{Rejections: map[string]uint64{}, Unpinned: map[string]uint64{}}}
	for _, reason := range memorymanager.Reasons() {
		counters.Rejections[reason], counters.Unpinned[reason] = 0, 0
	}
	for name, fresh := range map[string]time.Duration{"read": 0, "fresh": time.Hour} {
		b.Run(name, func(b *testing.B) {
			m := New()
			m.Attach(Sources{View: func() *ledger.View { return view }, Counters: func() agent.Counters { return counters },
				Containers: cgroupfs.NewSampler(fresh, tree.Counters), Version: "v1"})
			benchmarkScrape(b, m)
		})
	}
}

func benchmarkScrape(b *testing.B, m *Metrics) {
	server := httptest.NewServer(m.Handler())
	defer server.Close()
	var longest time.Duration
	var bytes int64
	cpu := cpuTime(b)
	for b.Loop() {
		began := time.Now()
		response, err := http.Get(server.URL)
		if err != nil {
			b.Fatal(err)
		}
		if bytes, err = io.Copy(io.Discard, response.Body); err != nil {
			b.Fatal(err)
		}
		response.Body.Close()
		longest = max(longest, time.Since(began))
	}
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/1000/float64(b.N), "ms-cpu/op")
	b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
	b.ReportMetric(float64(bytes), "bytes/scrape")
	response, err := http.Get(server.URL)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	series := 0
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "#") {
			series++
		}
	}
	b.ReportMetric(float64(series), "series/scrape")
}

// cpuTime is what this process, server and client, has had of the CPUs: what a scrape takes on a machine with nothing else
// to do, whatever else this one does.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
