// Package metrics shows a running plugin to Prometheus and to probes. It only reads.
package metrics

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Handlers counts and times the events of the runtime, every one alike. It is an nriplugin.Observer.
type Handlers struct {
	seconds *prometheus.HistogramVec
	results *prometheus.CounterVec
}

// NewHandlers registers the metrics of the handlers.
func NewHandlers(registry prometheus.Registerer) *Handlers {
	h := &Handlers{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nri_memory_manager_handler_duration_seconds",
			Help:    "Time to handle an event of the runtime.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2},
		}, []string{"event"}),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nri_memory_manager_handled_events_total",
			Help: "Events of the runtime by result: ok, refused, late.",
		}, []string{"event", "result"}),
	}
	registry.MustRegister(h.seconds, h.results)
	return h
}

// Handled notes one event.
func (h *Handlers) Handled(event string, took time.Duration, err error) {
	result := "ok"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		result = "late"
	case err != nil:
		result = "refused"
	}
	h.seconds.WithLabelValues(event).Observe(took.Seconds())
	h.results.WithLabelValues(event, result).Inc()
}
