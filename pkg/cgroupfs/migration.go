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
	if err == nil && m.Nodes.Empty() { // an ordinary folder does not have it
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

// Counted is what a cgroup has mapped, or why that is not known.
type Counted struct {
	cgroup.Mapped
	Err error
}

// flushTakes is more than a kernel needs to add up the statistics of all cgroups.
const flushTakes = 100 * time.Millisecond

// Count reads what cgroups have mapped, for decisions: each twice, and of each NUMA node the larger number counts. memory.numa_stat is
// counted by CPU. Who reads it adds that up, but where another reader is at it before Linux 6.8, which leaves it to that one and shows
// what was before (mem_cgroup_flush_stats in mm/memcontrol.c).
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

// wait waits for a flush of the kernel's statistics.
func wait(ctx context.Context) {
	timer := time.NewTimer(flushTakes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
