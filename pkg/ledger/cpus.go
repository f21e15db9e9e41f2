package ledger

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// sharesPerCPU is what the kubelet gives a container for each CPU that it asks for (cgroup v1's cpu.shares).
const sharesPerCPU = 1024

// exclusiveCPUs returns the NUMA nodes of a container's exclusive CPUs.
//
// The kubelet's CPU manager gives every container a cpuset: its own CPUs to a Guaranteed container that asks for whole
// CPUs, the shared pool to all others. Exclusive CPUs are as many as the container asks for, which its CPU shares show;
// a container of the shared pool asks for a fraction, or is not Guaranteed. Where the event carries no shares, CPUs are
// taken as exclusive unless a container of another pod has the very same set, or it is all of the machine.
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

// request is what a Guaranteed container asks for: its own memory limit, which equals its request, and its huge pages. Under
// pod-level resources it is what the container asks for by itself, because the limit may be its pod's. Memory from resource
// claims is placed by their driver.
func request(c *container) memorymanager.Request {
	if p := c.pod; p.Info != nil && p.Info.PodLevel() {
		spec, _ := p.Info.Container(c.Name)
		return ownRequest(spec)
	}
	wanted := make(memorymanager.Request, 0, 1+len(c.Resources.Hugepages))
	limit := c.Limit
	if own := c.ownLimit(); own != nil {
		limit = min(limit, *own)
	}
	if limit > 0 {
		wanted = append(wanted, memorymanager.Amount{Type: memorymanager.Memory, Bytes: limit})
	}
	for _, pages := range c.Resources.Hugepages {
		if size, ok := pageSize(pages.PageSize); ok && pages.Limit > 0 {
			wanted = append(wanted, memorymanager.Amount{Type: memorymanager.Hugepages(size), Bytes: pages.Limit})
		}
	}
	sortRequest(wanted)
	return wanted
}

func sortRequest(r memorymanager.Request) {
	slices.SortFunc(r, func(a, b memorymanager.Amount) int { return cmp.Compare(a.Type, b.Type) })
}

// pageSize reads a huge page size as CRI and OCI write it: "64KB", "2MB", "1GB".
func pageSize(text string) (bytes uint64, ok bool) {
	for unit, shift := range map[string]int{"KB": 10, "MB": 20, "GB": 30} {
		if digits, found := strings.CutSuffix(text, unit); found {
			n, err := strconv.ParseUint(digits, 10, 20)
			return n << shift, err == nil && n > 0
		}
	}
	return 0, false
}
