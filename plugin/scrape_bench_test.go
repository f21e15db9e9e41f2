package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// BenchmarkCreateWhileScraped times creates on a node with 1,000 throttled containers whose metrics are scraped every
// 100 ms, turn by turn with the same node that nobody scrapes. The ratios are the former's over the latter's.
func BenchmarkCreateWhileScraped(b *testing.B) {
	const existing = 1000
	idle, scraped := newHost(b, cri.Options{}, testConfig), newHost(b, cri.Options{}, testConfig)
	var plugin *process
	for _, h := range []*host{idle, scraped} {
		h.onTmpfs()
		plugin = h.start()
		for i := range existing {
			h.deploy(burstable(fmt.Sprintf("existing-%d", i), 64*mi, 999))
		}
	}
	plugin.get("/metrics")
	end, ended := make(chan struct{}), make(chan int)
	go func() {
		ticker, scrapes := time.NewTicker(100*time.Millisecond), 0
		defer ticker.Stop()
		for {
			select {
			case <-end:
				ended <- scrapes
				return
			case <-ticker.C:
				plugin.get("/metrics")
				scrapes++
			}
		}
	}()
	var idleTook, took []time.Duration
	b.ResetTimer()
	for i := range b.N {
		pod := guaranteed(fmt.Sprintf("pod-%d", i), gi)
		idleTook = append(idleTook, idle.timeCreate(pod))
		took = append(took, scraped.timeCreate(pod))
	}
	b.StopTimer()
	close(end)
	b.ReportMetric(float64(<-ended), "scrapes")
	plugin.reportMemory(b)
	for _, percent := range []int{50, 99} {
		without, with := percentile(idleTook, percent), percentile(took, percent)
		b.ReportMetric(without, fmt.Sprintf("idle-p%d-ns", percent))
		b.ReportMetric(with, fmt.Sprintf("p%d-ns", percent))
		b.ReportMetric(with/without, fmt.Sprintf("p%d-ratio", percent))
	}
}
