package ledger

import (
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// sharesPerCPU is what the kubelet gives a container for each CPU that it asks for (cgroup v1's cpu.shares).
const sharesPerCPU = 1024

// exclusiveCPUs returns the NUMA nodes of a container's exclusive CPUs.
//
// The kubelet's CPU manager gives a cpuset to every container: exclusive CPUs to a Guaranteed container that requests whole CPUs, the
// shared pool to all others. CPUs are exclusive if their number is what the container requests, which its CPU shares show. If the event has
// no shares, CPUs count as exclusive unless a container of another pod has the same set, or the set is the whole machine.
func (l *Ledger) exclusiveCPUs(c *container) nodeset.Set {
	list := c.Resources.CPUs
	if list == "" || c.pod.class() != memoryqos.Guaranteed {
		return 0
	}
	cpus, err := machine.ParseCPUs(list)
	if err != nil {
		return 0
	}
	if shares := c.Resources.CPUShares; shares != nil && *shares > 0 {
		if *shares != uint64(cpus.Size())*sharesPerCPU {
			return 0
		}
	} else if l.sharedCPUs(c, cpus) {
		return 0
	}
	nodes, err := l.state.Resolved.Machine.NodesOfCPUs(list)
	if err != nil {
		l.note(Warn, "the container's CPUs are not this machine's: placed without them", l.fields(c), err)
		return 0
	}
	return nodes
}

func (l *Ledger) sharedCPUs(c *container, cpus cpuset.CPUSet) bool {
	all := 0
	for _, node := range l.state.Resolved.Machine.Nodes {
		all += node.CPUs.Size()
	}
	if cpus.Size() >= all {
		return true
	}
	for _, other := range l.containers {
		if other.pod != c.pod && other.Resources.CPUs == c.Resources.CPUs {
			return true
		}
	}
	return false
}

// nodesOfCPUs returns the NUMA nodes of CPUs, or none if the machine does not have these CPUs.
func (l *Ledger) nodesOfCPUs(list string) nodeset.Set {
	nodes, _ := l.state.Resolved.Machine.NodesOfCPUs(list)
	return nodes
}

// needsPodCPUs reports whether placing a container needs the exclusive CPUs of the pod's other containers: the pod is aligned as a whole
// and has no allocation yet.
func (l *Ledger) needsPodCPUs(pod Pod) bool {
	options := l.state.Resolved.Manager
	return options.Scope == topologymanager.PodScope && options.Policy.Rules().Aligns && len(l.manager.Allocations(pod.Key()).Entries) == 0
}
