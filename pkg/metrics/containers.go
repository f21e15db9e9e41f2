package metrics

import (
	"context"
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

var (
	highEvents = counter(prefix+"container_memory_high_events_total",
		"Times that a container was throttled at its memory.high.", "namespace", "pod", "container")
	fullStall = counter(prefix+"container_memory_full_stall_seconds_total",
		"Time in which all tasks of a container waited for memory.", "namespace", "pod", "container")
	usage = gauge(prefix+"container_memory_current_bytes",
		"Memory that a container uses.", "namespace", "pod", "container")
	leftOut = gauge(prefix+"scrape_skipped_containers",
		"Containers that this scrape had no time to read.")
)

// readingTime bounds what one scrape spends on the kernel's files. A container takes about 40 µs.
const readingTime = 35 * time.Millisecond

// containers collects the kernel's counters of containers whose memory.high the plugin has set: only they can be throttled.
type containers struct {
	view     func() *ledger.View
	counters *cgroupfs.Sampler[cgroupfs.Counters]
}

// Describe sends nothing, like state's.
func (containers) Describe(chan<- *prometheus.Desc) {}

// Collect sends the counters of the containers that there is time for.
func (c containers) Collect(out chan<- prometheus.Metric) {
	names, cgroups := throttled(c.view())
	ctx, cancel := context.WithTimeout(context.Background(), readingTime)
	defer cancel()
	late := 0
	for i, sample := range c.counters.Read(ctx, cgroups) {
		switch {
		case sample.Late:
			late++
		case sample.Err == nil: // an ended container has no files
			labels := prometheus.MakeLabelPairs(usage.desc, names[i][:])
			out <- labeled{highEvents, labels, float64(sample.Value.Events.High)}
			if sample.Value.HasPressure {
				out <- labeled{fullStall, labels, float64(sample.Value.Pressure.Full.Total) / 1e6}
			}
			out <- labeled{usage, labels, float64(sample.Value.Current)}
		}
	}
	leftOut.send(out, float64(late))
}

// labeled is a metric that shares its labels with a container's others: to make them takes longer than all else.
type labeled struct {
	description
	labels []*dto.LabelPair
	value  float64
}

func (l labeled) Desc() *prometheus.Desc { return l.desc }

func (l labeled) Write(to *dto.Metric) error {
	to.Label = l.labels
	if l.kind == prometheus.CounterValue {
		to.Counter = &dto.Counter{Value: &l.value}
	} else {
		to.Gauge = &dto.Gauge{Value: &l.value}
	}
	return nil
}

// throttled returns the names and cgroups of the containers with a memory.high: namespace, pod and container.
func throttled(view *ledger.View) (names [][3]string, cgroups []string) {
	for name, container := range running(view, func(c *ledger.ContainerView) bool { return c.Values.High != nil }) {
		names, cgroups = append(names, name), append(cgroups, container.Cgroup)
	}
	return names, cgroups
}

// running are the running containers that are wanted, one of each name: namespace, pod and container. A pod that is ending and its
// successor may bear one name.
func running(view *ledger.View, wanted func(*ledger.ContainerView) bool) iter.Seq2[[3]string, *ledger.ContainerView] {
	return func(yield func([3]string, *ledger.ContainerView) bool) {
		seen := map[[3]string]bool{}
		for pod, c := range view.Containers() {
			name := [3]string{pod.Namespace, pod.Name, c.Name}
			if c.State != ledger.Running || seen[name] || !wanted(c) {
				continue
			}
			if seen[name] = true; !yield(name, c) {
				return
			}
		}
	}
}
