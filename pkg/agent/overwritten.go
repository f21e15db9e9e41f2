package agent

import "github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"

// Overwritten counts foreign writes to the cgroups above the containers, by file.
func (a *Agent) Overwritten() map[cgroup.File]uint64 { return a.protector.Overwritten() }
