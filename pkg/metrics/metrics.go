// Package metrics shows the agent's state and work to Prometheus. It only reads: a scrape takes no lock that a decision
// waits for, and what it reads from the kernel is bounded in time.
//
// Where the kubelet has a metric with the same meaning, its name is used (pkg/kubelet/metrics); all others begin with
// nri_memory_manager_. Every label has a bounded set of values, but for the namespace, pod and container of managed
// containers. A counter with such labels has a series for each of their values from the first scrape on: an increase from
// nothing to 1 is none to Prometheus.
package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/reclaim"
)

const prefix = "nri_memory_manager_"

// The results of what can fail.
const (
	succeeded = "ok"
	failed    = "error"
)

var results = [...]string{succeeded, failed}

// buckets are the bounds of handler_duration_seconds. An alert's threshold, and the 2 s that a runtime waits for an answer, are
// among them: between two bounds a quantile is a guess.
var buckets = []float64{25e-6, 100e-6, 250e-6, 1e-3, 2.5e-3, 10e-3, 25e-3, 0.1, 0.25, 0.5, 1, 2}

// Sources are what is shown.
type Sources struct {
	View       func() *ledger.View
	Counters   func() agent.Counters
	Guard      func() guard.Totals                  // nil where the stall guard is off
	Reclaim    func() reclaim.Totals                // nil where there is no kernel to ask
	Evictions  func() uint64                        // nil where nothing is evicted
	Kills      func() map[oom.Total]uint64          // processes that the kernel killed; nil shows none
	Risks      func() map[string]*oom.Risk          // of page cache, by cgroup; nil shows none
	Migrations func() map[string]protect.Migration  // of running containers; nil shows none
	Containers *cgroupfs.Sampler[cgroupfs.Counters] // of managed containers; nil shows none
	Version    string
}

// Metrics is a registry of its own and the counters that events feed.
type Metrics struct {
	registry *prometheus.Registry
	duration *prometheus.HistogramVec
	results  *prometheus.CounterVec
}

// New returns the metrics. Attach shows the agent's once there is one.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    prefix + "handler_duration_seconds",
			Help:    "Time to answer an NRI event.",
			Buckets: buckets,
		}, []string{"event"}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "handler_results_total",
			Help: "NRI events answered.",
		}, []string{"event", "result"}),
	}
	for _, event := range nriplugin.EventNames() {
		m.duration.WithLabelValues(event)
		for _, result := range results {
			m.results.WithLabelValues(event, result)
		}
	}
	m.registry.MustRegister(m.duration, m.results, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Attach adds everything that is read from the sources at each scrape.
func (m *Metrics) Attach(s Sources) {
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        prefix + "build_info",
		Help:        "1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": s.Version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
	m.registry.MustRegister(build, state{s})
	if s.Containers != nil {
		m.registry.MustRegister(containers{s.View, s.Containers})
	}
}

// Handled records an answered event; it is nriplugin's Observer.
func (m *Metrics) Handled(event string, took time.Duration, err error) {
	m.duration.WithLabelValues(event).Observe(took.Seconds())
	result := succeeded
	if err != nil {
		result = failed
	}
	m.results.WithLabelValues(event, result).Inc()
}

// Handler serves /metrics. The caller bounds how many requests it has at the same time.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

type description struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gauge(name, help string, labels ...string) description {
	return description{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

func counter(name, help string, labels ...string) description {
	return description{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func (d description) send(out chan<- prometheus.Metric, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d.desc, d.kind, value, labels...)
}
