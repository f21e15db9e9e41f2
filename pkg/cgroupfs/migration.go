package cgroupfs

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Mapped reads memory.numa_stat and cpuset.mems.effective.
func (t *Tree) Mapped(dir string) (cgroup.Mapped, error) {
	stat, err := t.NUMAStat(dir)
	if err != nil {
		return cgroup.Mapped{}, err
	}
	m := cgroup.Mapped{Bytes: map[int]uint64{}}
	for _, kind := range mapped {
		for node, bytes := range stat[kind] {
			if bytes > 0 {
				m.Bytes[node] += bytes
			}
		}
	}
	if len(m.Bytes) == 0 {
		return m, nil
	}
	m.Nodes, err = t.EffectiveNodes(dir)
	if err == nil && m.Nodes.Empty() { // an ordinary folder has no such file
		m.Nodes, err = parse(t, dir, string(cgroup.CpusetMems), nodeset.Parse)
	}
	if err != nil {
		return cgroup.Mapped{}, err
	}
	if m.Nodes.Empty() {
		m.Nodes = nodeset.Of(slices.Collect(maps.Keys(m.Bytes))...)
	}
	return m, nil
}

// Counted is the mapped memory of a cgroup, or the error of reading it.
type Counted struct {
	cgroup.Mapped
	Err error
}

// flushTakes is longer than a kernel needs to add up the statistics of all cgroups.
const flushTakes = 100 * time.Millisecond

// Count reads the mapped memory of cgroups for decisions. It reads twice and returns the larger number of each NUMA node: before Linux 6.8, a read
// of memory.numa_stat returns old numbers while another reader adds up the per-CPU counters (mem_cgroup_flush_stats in mm/memcontrol.c).
func (t *Tree) Count(ctx context.Context, dirs ...string) map[string]Counted {
	all := make(map[string]Counted, len(dirs))
	for _, dir := range dirs {
		mapped, err := t.Mapped(dir)
		all[dir] = Counted{mapped, err}
	}
	if t.flush == nil || len(dirs) == 0 {
		return all
	}
	t.flush(ctx)
	for _, dir := range dirs {
		mapped, err := t.Mapped(dir)
		first := all[dir]
		if err = cmp.Or(err, first.Err); err == nil {
			mapped = mapped.AtLeast(first.Mapped)
		}
		all[dir] = Counted{mapped, err}
	}
	return all
}

// wait waits until another reader's flush of the statistics has ended.
func wait(ctx context.Context) {
	timer := time.NewTimer(flushTakes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
