package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
)

var (
	episodes      = counter(prefix+"stall_guard_episodes_total", "Times that a container was stopped by its memory.high and was given room.")
	raises        = counter(prefix+"stall_guard_raises_total", "Raises of a memory.high by the stall guard.")
	restores      = counter(prefix+"stall_guard_restores_total", "Steps of a raised memory.high back to its computed value.")
	raisedSeconds = counter(prefix+"stall_guard_raised_seconds_total", "Container time with a raised memory.high.")
	stalled       = counter(prefix+"stall_guard_stalled_seconds_total", "Full memory stall inside episodes.")
	reclaimed     = counter(prefix+"stall_guard_reclaimed_bytes_total", "Page cache freed instead of a raise.")
)

type guarded struct{ totals func() guard.Totals }

// Describe sends nothing, like state's.
func (guarded) Describe(chan<- *prometheus.Desc) {}

// Collect sends the stall guard's totals.
func (g guarded) Collect(out chan<- prometheus.Metric) {
	t := g.totals()
	episodes.send(out, float64(t.Episodes))
	raises.send(out, float64(t.Raises))
	restores.send(out, float64(t.Restores))
	raisedSeconds.send(out, t.Raised.Seconds())
	stalled.send(out, t.Stalled.Seconds())
	reclaimed.send(out, float64(t.Reclaimed))
}
