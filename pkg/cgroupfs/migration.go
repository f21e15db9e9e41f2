package cgroupfs

import (
	"maps"
	"slices"

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
	text, err := t.EffectiveMems(dir)
	if err == nil && text == "" { // an ordinary folder does not have it
		text, err = t.Mems(dir)
	}
	if err != nil {
		return cgroup.Mapped{}, err
	}
	if m.Nodes, err = nodeset.Parse(text); err != nil {
		return cgroup.Mapped{}, t.bad(dir, "cpuset.mems.effective", err)
	}
	if m.Nodes.Empty() {
		m.Nodes = nodeset.Of(slices.Collect(maps.Keys(m.Bytes))...)
	}
	return m, nil
}
