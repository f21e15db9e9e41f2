package cgroupfs

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Mems reads cpuset.mems; "" if the cgroup uses its parent's nodes.
func (t *Tree) Mems(dir string) (string, error) { return t.Text(dir, cgroup.CpusetMems) }

// EffectiveMems reads cpuset.mems.effective: the nodes that the cgroup may use.
func (t *Tree) EffectiveMems(cgroup string) (string, error) {
	return t.Text(cgroup, "cpuset.mems.effective")
}

// EffectiveNodes is EffectiveMems as a set, without node IDs that a set cannot hold.
func (t *Tree) EffectiveNodes(cgroup string) (nodeset.Set, error) {
	ids, err := parse(t, cgroup, "cpuset.mems.effective", nodeset.ParseIDs)
	return nodeset.Of(ids...), err
}
