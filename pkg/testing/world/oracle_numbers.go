package world

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// countDifferences compares what status and metrics count, once nothing has gone wrong for a while, with the model.
func (n *simulation) countDifferences(a answers) (wrong []string) {
	return slices.Concat(n.containerCounts(a), n.sourceDifferences(a), n.configDifferences(a), n.ancestorDifferences(a))
}

// containerCounts compares how many containers run and have an allocation, what resizes lack, and what is promised to all pods.
func (n *simulation) containerCounts(a answers) (wrong []string) {
	differs := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	s, file := n.settings(), n.stateFile()
	pinned, all := map[string]uint64{}, map[string]uint64{}
	var lacks, pending uint64
	outside := false // a limit differs from the kubelet's, and what a container lacks of it is not judged
	for p, c := range n.containers() {
		if !n.runs(c) {
			continue
		}
		if all[string(p.Class)]++; len(file.Entries[p.UID][c.Spec.Name]) > 0 {
			pinned[string(p.Class)]++
		}
		if has := file.memory(p.UID, c.Spec.Name); has > 0 && !p.PodLevel() && c.Spec.Kind != memoryqos.Init {
			outside = outside || n.limit(c) > c.Spec.Limit || n.lostResize(p, c)
			lack := less(min(c.Spec.Limit, cmp.Or(n.limit(c), c.Spec.Limit)), has)
			if lacks += lack; lack > page {
				pending++
			}
		}
	}
	for _, class := range []string{"Guaranteed", "Burstable", "BestEffort"} {
		with := a.metrics[fmt.Sprintf(`nri_memory_manager_containers{pinned="true",qos_class="%s"}`, class)]
		without := a.metrics[fmt.Sprintf(`nri_memory_manager_containers{pinned="false",qos_class="%s"}`, class)]
		if judged := class == "Guaranteed" && s.places() && !n.scenario.hasClaims(); with+without != all[class] || judged && with != pinned[class] {
			differs("metrics have %d containers of class %s that are pinned and %d others; %d run, %d with an allocation", with, class, without, all[class], pinned[class])
		}
	}
	if shown := a.metrics[`nri_memory_manager_pending_resize_bytes{type="memory"}`]; s.places() && !outside && !near(shown, lacks) {
		differs("metrics have %d bytes that resizes lack, which lack %d", shown, lacks)
	}
	if shown := a.metrics["nri_memory_manager_pending_resize_containers"]; s.places() && !outside && shown != pending {
		differs("metrics have %d containers whose resizes lack memory, and %d do", shown, pending)
	}
	have := n.values(n.kubelet.Parent("Guaranteed"))
	if minimum, low := a.metrics["memory_qos_node_memory_min_bytes"], a.metrics["memory_qos_node_memory_low_bytes"]; s.writes() && !(near(minimum, have.min) && near(low, have.low)) {
		differs("metrics have memory.min %d and memory.low %d of kubepods, which has %d and %d", minimum, low, have.min, have.low)
	}
	return wrong
}

// ancestorDifferences compares what status reads above the pods.
func (n *simulation) ancestorDifferences(a answers) (wrong []string) {
	for _, above := range a.status.Ancestors {
		have := n.values(above.Cgroup)
		if above.RealMin == nil || above.RealLow == nil || *above.RealMin != have.min || *above.RealLow != have.low {
			wrong = append(wrong, fmt.Sprintf("status shows %+v, which has memory.min %d and memory.low %d", above, have.min, have.low))
		}
	}
	return wrong
}

// sourceDifferences says what passes for wrong: nothing is.
func (n *simulation) sourceDifferences(a answers) (wrong []string) {
	differs := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for name, is := range a.metrics {
		if is == 0 && (strings.HasPrefix(name, "nri_memory_manager_condition{") || strings.HasPrefix(name, "nri_memory_manager_request_source_connected{")) {
			differs("%s is 0, and nothing is wrong", name)
		}
	}
	for _, source := range a.status.RequestSources {
		if !source.Connected || source.Problem != "" {
			differs("status shows that %s does not answer (%s), and it does", source.Source, source.Problem)
		}
	}
	return wrong
}

// configDifferences compares the configuration in force, and how often it was read.
func (n *simulation) configDifferences(a answers) (wrong []string) {
	s, is := n.settings(), a.status.Policy
	if is.Profile != s.Profile || is.TopologyManagerPolicy != s.Policy || s.writes() && (is.MemoryReservationPolicy != s.Reservation || is.StallGuard != s.StallGuard) {
		wrong = append(wrong, fmt.Sprintf("status shows the configuration %+v, and the file has %+v", is, s))
	}
	if read := a.metrics[`nri_memory_manager_config_reloads_total{result="ok"}`]; read != n.trouble.count(NewConfig, n.current().since) && n.trouble.count(DaemonReplaced, n.began) == 0 {
		wrong = append(wrong, fmt.Sprintf("metrics count %d configurations that were read, and there were %d", read, n.trouble.count(NewConfig, n.current().since)))
	}
	return wrong
}

// readsAgain has the daemon read its configuration once more, with no container that it concerns.
func (n *simulation) readsAgain() {
	const read = `nri_memory_manager_config_reloads_total{result="ok"}`
	before := n.answers()
	n.fault(Fault{Kind: NewConfig, Target: n.config})
	time.Sleep(time.Second)
	after := n.answers()
	n.judge(func() {
		if after.problem != nil || after.metrics[read] != before.metrics[read]+1 {
			n.broken(shown, "metrics count %d configurations that were read, and %d after one more: %v", before.metrics[read], after.metrics[read], after.problem)
		}
	})
}

// count is how often something has gone wrong since a time.
func (t *trouble) count(kind string, since time.Time) (times uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.spans {
		if s.kind == kind && !s.from.Before(since) {
			times++
		}
	}
	return times
}
