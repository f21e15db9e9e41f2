package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

var (
	highEvents = counter(prefix+"container_memory_high_events_total",
		"Times that a container was throttled at its memory.high (memory.events).", "namespace", "pod", "container")
	fullStall = counter(prefix+"container_memory_full_stall_seconds_total",
		"Time in which all of a container's tasks waited for memory (memory.pressure).", "namespace", "pod", "container")
	usage = gauge(prefix+"container_memory_current_bytes",
		"Memory that a container has (memory.current).", "namespace", "pod", "container")
	leftOut = gauge(prefix+"containers_left_out_of_scrape",
		"Containers whose kernel counters were not read in this scrape, because its time was used up.")
)

// readingTime bounds what one scrape spends on the kernel's files. A container takes about 40 µs.
const readingTime = 35 * time.Millisecond

// freshTime is for how long what was read is sent again, so that several scrapers, or a hasty one, cost no more than one.
const freshTime = time.Second

// containers collects the kernel's counters of the containers with a memory.high of ours: only they can be throttled.
type containers struct {
	view func() *ledger.View
	tree *cgroup.Tree
	now  func() time.Time

	fresh  time.Duration
	mu     sync.Mutex
	next   int // where the last reading stopped, so that every container has its turn
	readAt time.Time
	read   []prometheus.Metric
}

func newContainers(view func() *ledger.View, tree *cgroup.Tree) *containers {
	return &containers{view: view, tree: tree, now: time.Now, fresh: freshTime}
}

// Describe sends nothing, like state's.
func (*containers) Describe(chan<- *prometheus.Desc) {}

// Collect sends what was read last, unless that was too long ago.
func (c *containers) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); c.readAt.IsZero() || now.Sub(c.readAt) >= c.fresh {
		c.readAll()
		c.readAt = now
	}
	for _, metric := range c.read {
		out <- metric
	}
}

// readAll reads as many containers as there is time for, and goes on there at the next time. The lock is held.
func (c *containers) readAll() {
	type throttled struct {
		pod       *ledger.PodView
		container *ledger.ContainerView
	}
	var all []throttled
	seen := map[[3]string]bool{} // a pod that is ending and its successor may bear one name
	for _, pod := range c.view().Pods {
		for i := range pod.Containers {
			container := &pod.Containers[i]
			name := [3]string{pod.Namespace, pod.Name, container.Name}
			if container.State == ledger.Running && container.Values.High != nil && !seen[name] {
				seen[name] = true
				all = append(all, throttled{pod, container})
			}
		}
	}
	c.read = c.read[:0]
	send := func(d description, value float64, labels ...string) { c.read = append(c.read, d.of(value, labels...)) }
	began, read := c.now(), 0
	for ; read < len(all) && c.now().Sub(began) < readingTime; read++ {
		t := all[(c.next+read)%len(all)]
		labels := []string{t.pod.Namespace, t.pod.Name, t.container.Name}
		if events, err := c.tree.Events(t.container.Cgroup); err == nil { // an ended container has no files
			send(highEvents, float64(events.High), labels...)
		}
		if pressure, ok, err := c.tree.Pressure(t.container.Cgroup); err == nil && ok {
			send(fullStall, float64(pressure.Full.Total)/1e6, labels...)
		}
		if current, err := c.tree.Current(t.container.Cgroup); err == nil {
			send(usage, float64(current), labels...)
		}
	}
	send(leftOut, float64(len(all)-read))
	if len(all) > 0 {
		c.next = (c.next + read) % len(all)
	}
}
