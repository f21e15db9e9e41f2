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
	idle, ours := newHost(b, cri.Options{}, testConfig), newHost(b, cri.Options{}, testConfig)
	var plugin *process
	for _, h := range []*host{idle, ours} {
		h.onTmpfs()
		plugin = h.start()
		for i := range existing {
			h.deploy(burstable(fmt.Sprintf("existing-%d", i), 64*mi, 999))
		}
	}
	plugin.get("/metrics")
	scraped := plugin.scrapedEach(100 * time.Millisecond)
	var idleTook, took []time.Duration
	b.ResetTimer()
	for i := range b.N {
		pod := guaranteed(fmt.Sprintf("pod-%d", i), gi)
		idleTook = append(idleTook, idle.timeCreate(pod))
		took = append(took, ours.timeCreate(pod))
	}
	b.StopTimer()
	b.ReportMetric(float64(scraped()), "scrapes")
	plugin.reportMemory(b)
	for _, percent := range []int{50, 99} {
		without, with := percentile(idleTook, percent), percentile(took, percent)
		b.ReportMetric(without, fmt.Sprintf("idle-p%d-ns", percent))
		b.ReportMetric(with, fmt.Sprintf("p%d-ns", percent))
		b.ReportMetric(with/without, fmt.Sprintf("p%d-ratio", percent))
	}
}

// scrapedEach has the process's metrics scraped in the background. It returns what ends that, which returns how often they were.
func (p *process) scrapedEach(period time.Duration) (end func() int) {
	ending, scrapes := make(chan struct{}), make(chan int)
	go func() {
		ticker, n := time.NewTicker(period), 0
		defer ticker.Stop()
		for {
			select {
			case <-ending:
				scrapes <- n
				return
			case <-ticker.C:
				p.get("/metrics")
				n++
			}
		}
	}()
	return func() int {
		close(ending)
		return <-scrapes
	}
}
