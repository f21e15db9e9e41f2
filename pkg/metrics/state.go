package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/ptr"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

var (
	pinningRequests = counter("memory_manager_pinning_requests_total", "Containers that asked for memory on NUMA nodes.")
	pinningErrors   = counter("memory_manager_pinning_errors_total", "Containers that got no memory on NUMA nodes.")
	nodeMin         = gauge("memory_qos_node_memory_min_bytes", "memory.min of the kubepods cgroup, as computed.")
	nodeLow         = gauge("memory_qos_node_memory_low_bytes", "memory.low of the kubepods cgroup, as computed.")

	total       = gauge(prefix+"numa_total_bytes", "Memory of a NUMA node.", "numa_node", "type")
	reserved    = gauge(prefix+"numa_system_reserved_bytes", "Memory of a NUMA node kept from containers.", "numa_node", "type")
	allocatable = gauge(prefix+"numa_allocatable_bytes", "Memory of a NUMA node for pinned containers.", "numa_node", "type")
	allocated   = gauge(prefix+"numa_allocated_bytes", "Memory of a NUMA node that pinned containers have.", "numa_node", "type")
	free        = gauge(prefix+"numa_free_bytes", "Memory of a NUMA node that pinned containers can still have.", "numa_node", "type")

	unused    = gauge(prefix+"numa_allocated_unused_bytes", "Memory of a NUMA node allocated and not used yet.", "numa_node")
	available = gauge(prefix+"numa_available_bytes", "Memory of a NUMA node free or reclaimable for allocations.", "numa_node", "source")

	claimable = gauge(prefix+"numa_claimable_bytes", "Memory of a NUMA node for resource claims.", "numa_node", "type")
	claimed   = gauge(prefix+"numa_claimed_bytes", "Memory of a NUMA node that resource claims have.", "numa_node", "type")

	containersByClass  = gauge(prefix+"containers", "Containers by QoS class and whether they are pinned.", "qos_class", "pinned")
	containersBySource = gauge(prefix+"containers_by_request_source", "Containers by where their memory request comes from.", "source")
	unansweredRunning  = gauge(prefix+"unanswered_containers", "Containers that were created without an answer of the plugin.")
	pendingContainers  = gauge(prefix+"pending_resize_containers", "Containers whose resize found no room.")
	pendingBytes       = gauge(prefix+"pending_resize_bytes", "Memory that pending resizes lack.", "type")
	unpinnedContainers = gauge(prefix+"unpinned_containers", "Containers that run unpinned for lack of room.", "reason")
	blockedMigrations  = gauge(prefix+"blocked_migrations", "Containers whose cpuset.mems would move too much.")
	requestError       = gauge(prefix+"request_error_bytes", "Largest error bound of a memory request in use.", "source")

	rejections     = counter(prefix+"rejections_total", "Containers and resizes rejected.", "reason")
	unpinned       = counter(prefix+"unpinned_total", "Containers that ran unpinned for lack of room.", "reason")
	truncated      = counter(prefix+"truncated_searches_total", "Placements whose search was cut short.")
	late           = counter(prefix+"deadline_exceeded_total", "Decisions that were not in the state file in the runtime's time.")
	stalePods      = counter(prefix+"stale_pods_removed_total", "Pods that ended without an event of the runtime.")
	corrections    = counter(prefix+"request_corrections_total", "Requests corrected by a better source.")
	updates        = counter(prefix+"container_updates_total", "Changes of running containers through the runtime.")
	repairs        = counter(prefix+"container_writes_total", "Changes of running containers written to files.", "result")
	protectErrors  = counter(prefix+"ancestor_write_errors_total", "Failed writes of parent cgroups.")
	overwrites     = counter(prefix+"ancestor_overwrites_total", "Values of parent cgroups changed externally.", "level", "file")
	overwritten    = counter(prefix+"container_overwrites_total", "Values of containers' cgroup files changed externally.", "file")
	configReloads  = counter(prefix+"config_reloads_total", "Configurations read while running.", "result")
	writes         = counter(prefix+"checkpoint_writes_total", "Writes of the state file.")
	writeFailures  = counter(prefix+"checkpoint_failures_total", "Failed writes of the state file.")
	writeSeconds   = counter(prefix+"checkpoint_seconds_total", "Time spent writing the state file.")
	quarantined    = counter(prefix+"checkpoint_quarantined_total", "State files that were set aside.")
	answers        = counter(prefix+"request_source_answers_total", "Questions put to a source of memory requests.", "source", "result")
	sourceUp       = gauge(prefix+"request_source_connected", "1 while a source of memory requests is connected.", "source")
	conditionState = gauge(prefix+"condition", "1 for each condition of readiness that holds.", "condition")

	kills = counter(prefix+"oom_kills_total", "Processes of containers killed for want of memory.", "cause", "level")
	risk  = gauge(prefix+"container_page_cache_risk",
		"1 while page cache may have a container killed; known: seen on this kernel and filesystem.", "namespace", "pod", "container", "known")

	episodes      = counter(prefix+"stall_guard_episodes_total", "Stalls at memory.high that got room.")
	raises        = counter(prefix+"stall_guard_raises_total", "Raises of a memory.high.")
	restores      = counter(prefix+"stall_guard_restores_total", "Steps of a raised memory.high back.")
	raisedSeconds = counter(prefix+"stall_guard_raised_seconds_total", "Container time with a raised memory.high.")
	stalled       = counter(prefix+"stall_guard_stalled_seconds_total", "Full memory stall inside episodes.")
	reclaimed     = counter(prefix+"stall_guard_reclaimed_bytes_total", "Page cache freed instead of a raise.")

	evictions = counter(prefix+"evictions_total", "Pods evicted that this node had refused.")

	reclaimCalls = counter(prefix+"reclaim_calls_total", "Requests to reclaim page cache before the kubelet evicts pods.")
	cacheFreed   = counter(prefix+"reclaimed_bytes_total", "Page cache reclaimed before the kubelet evicts pods.", "qos_class")
	refaulted    = counter(prefix+"reclaim_refaulted_bytes_total", "Page cache reclaimed so that was read again.")
)

// state collects what the agent holds and has counted.
type state struct{ Sources }

// Describe sends nothing: which series there are depends on the node.
func (state) Describe(chan<- *prometheus.Desc) {}

// Collect sends one picture of the agent.
func (s state) Collect(out chan<- prometheus.Metric) {
	view := s.View()
	min, low := 0.0, 0.0
	for _, above := range view.Ancestors {
		if above.Level == cgroup.LevelKubepods { // kubelets that share the node have one each
			min, low = min+float64(ptr.Deref(above.Values.Min, 0)), low+float64(ptr.Deref(above.Values.Low, 0))
		}
	}
	nodeMin.send(out, min)
	nodeLow.send(out, low)
	for _, node := range view.Nodes {
		id := strconv.Itoa(node.ID)
		for _, table := range node.Memory {
			kind := string(table.Type)
			total.send(out, float64(table.Total), id, kind)
			reserved.send(out, float64(table.SystemReserved), id, kind)
			allocatable.send(out, float64(table.Allocatable), id, kind)
			allocated.send(out, float64(table.Reserved), id, kind)
			free.send(out, float64(table.Free), id, kind)
		}
	}
	collectAvailable(out, view.NodeMemory)
	for _, c := range view.Claimable {
		claimable.send(out, float64(c.Capacity), strconv.Itoa(c.Node), string(c.Type))
		claimed.send(out, float64(c.Claimed), strconv.Itoa(c.Node), string(c.Type))
	}
	collectContainers(out, view)
	s.collectMigrations(out)
	s.collectRisks(out, view)
	for _, condition := range view.Conditions {
		conditionState.send(out, holds(condition.OK), condition.Name)
	}
	collectCounters(out, s.Counters())
	if s.Guard != nil {
		collectGuard(out, s.Guard())
	}
	if s.Reclaim != nil {
		totals := s.Reclaim()
		reclaimCalls.send(out, float64(totals.Calls))
		for class, bytes := range totals.Bytes {
			cacheFreed.send(out, float64(bytes), string(class))
		}
		refaulted.send(out, float64(totals.Refaulted))
	}
	if s.Evictions != nil {
		evictions.send(out, float64(s.Evictions()))
	}
	if s.Kills != nil {
		totals := s.Kills()
		for _, cause := range oom.Causes() {
			for _, level := range oom.Levels() {
				kills.send(out, float64(totals[oom.Total{Cause: cause, Level: level}]), string(cause), string(level))
			}
		}
	}
}

func (s state) collectMigrations(out chan<- prometheus.Metric) {
	if s.Migrations == nil {
		return
	}
	blocked := 0
	for _, m := range s.Migrations() {
		if m.Blocked {
			blocked++
		}
	}
	blockedMigrations.send(out, float64(blocked))
}

func (s state) collectRisks(out chan<- prometheus.Metric, view *ledger.View) {
	if s.Risks == nil {
		return
	}
	risks := s.Risks()
	for name, c := range running(view, func(c *ledger.ContainerView) bool { return risks[c.Cgroup] != nil }) {
		risk.send(out, 1, name[0], name[1], name[2], strconv.FormatBool(risks[c.Cgroup].Known))
	}
}

// collectAvailable sends nothing while it is not known whether the allocations hold.
func collectAvailable(out chan<- prometheus.Metric, sample *deficit.Sample) {
	if !sample.Known() {
		return
	}
	for _, node := range sample.Nodes {
		id := strconv.Itoa(node.ID)
		unused.send(out, float64(node.Unused), id)
		available.send(out, float64(node.Free), id, "free")
		available.send(out, float64(node.Reclaimable), id, "reclaimable")
	}
}

func collectContainers(out chan<- prometheus.Metric, view *ledger.View) {
	type key struct{ class, pinned string }
	classes, sources, errors := map[key]int{}, map[string]int{}, map[string]uint64{}
	unplaced := map[string]int{}
	short, unanswered, bytes := 0, 0, map[string]uint64{string(memorymanager.Memory): 0}
	for pod, container := range view.Containers() {
		if !container.State.Alive() {
			continue
		}
		classes[key{string(pod.Class), strconv.FormatBool(!container.Nodes.Empty())}]++
		source := string(container.Estimate.Source)
		sources[source]++
		errors[source] = max(errors[source], container.Estimate.Error)
		for _, amount := range container.PendingResize {
			bytes[string(amount.Type)] += amount.Bytes
		}
		if len(container.PendingResize) > 0 {
			short++
		}
		if container.Unanswered {
			unanswered++
		}
		if container.Unplaced != nil {
			unplaced[container.Unplaced.Reason]++
		}
	}
	pendingContainers.send(out, float64(short))
	unansweredRunning.send(out, float64(unanswered))
	for reason, n := range unplaced {
		unpinnedContainers.send(out, float64(n), reason)
	}
	for kind, n := range bytes {
		pendingBytes.send(out, float64(n), kind)
	}
	for k, n := range classes {
		containersByClass.send(out, float64(n), k.class, k.pinned)
	}
	for source, n := range sources {
		containersBySource.send(out, float64(n), source)
		requestError.send(out, float64(errors[source]), source)
	}
}

func collectCounters(out chan<- prometheus.Metric, c agent.Counters) {
	pinningRequests.send(out, float64(c.PinningRequests))
	pinningErrors.send(out, float64(c.PinningErrors))
	for reason, n := range c.Rejections {
		rejections.send(out, float64(n), reason)
	}
	for reason, n := range c.Unpinned {
		unpinned.send(out, float64(n), reason)
	}
	truncated.send(out, float64(c.Bounded))
	late.send(out, float64(c.Late))
	stalePods.send(out, float64(c.Forgotten))
	corrections.send(out, float64(c.Corrections))
	updates.send(out, float64(c.Updates))
	repairs.send(out, float64(c.Repairs.Containers), succeeded)
	repairs.send(out, float64(c.Repairs.Failures), failed)
	protectErrors.send(out, float64(c.ProtectErrors))
	for _, o := range protect.Overwritable() {
		if n := float64(c.Overwrites[o]); o.Level == cgroup.LevelContainer {
			overwritten.send(out, n, o.File)
		} else {
			overwrites.send(out, n, o.Level, o.File)
		}
	}
	configReloads.send(out, float64(c.Reloads), succeeded)
	configReloads.send(out, float64(c.BadReloads), failed)
	writes.send(out, float64(c.Checkpoint.Writes))
	writeFailures.send(out, float64(c.Checkpoint.Failures))
	writeSeconds.send(out, c.Checkpoint.Seconds)
	quarantined.send(out, float64(c.Quarantined))
	for _, source := range c.Requests.Sources {
		name := string(source.Source)
		answers.send(out, float64(source.Answers), name, "answered")
		answers.send(out, float64(source.Errors), name, failed)
		answers.send(out, float64(source.Timeouts), name, "timeout")
		answers.send(out, float64(source.NotFound), name, "not_found")
		sourceUp.send(out, holds(source.Connected), name)
	}
}

func collectGuard(out chan<- prometheus.Metric, t guard.Totals) {
	episodes.send(out, float64(t.Episodes))
	raises.send(out, float64(t.Raises))
	restores.send(out, float64(t.Restores))
	raisedSeconds.send(out, t.Raised.Seconds())
	stalled.send(out, t.Stalled.Seconds())
	reclaimed.send(out, float64(t.Reclaimed))
}

// holds is 1 for what is so.
func holds(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
