package cgroup

import "strings"

// Mems reads cpuset.mems, "" when the cgroup takes its parent's nodes.
func (t *Tree) Mems(cgroup string) (string, error) { return t.nodes(cgroup, string(CpusetMems)) }

// EffectiveMems reads cpuset.mems.effective: the nodes that the cgroup may really use.
func (t *Tree) EffectiveMems(cgroup string) (string, error) {
	return t.nodes(cgroup, "cpuset.mems.effective")
}

func (t *Tree) nodes(cgroup, file string) (string, error) {
	data, err := t.line(cgroup, file)
	return strings.TrimSpace(string(data)), err
}
