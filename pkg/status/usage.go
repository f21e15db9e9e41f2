package status

import (
	"context"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// readingTime bounds what one document spends on the counters, and on the NUMA nodes, of containers. A container takes about
// 50 µs in all.
const readingTime = 125 * time.Millisecond

// Usages reads the kernel's counters of running containers. Containers whose turn does not come in time are shown as they
// were read before.
type Usages struct {
	counters *cgroupfs.Sampler[cgroupfs.Counters]
	perNode  *cgroupfs.Sampler[map[int]uint64]
	mapped   *cgroupfs.Sampler[cgroup.Mapped]
}

// NewUsages returns a reader of the cgroups in a tree.
func NewUsages(tree *cgroupfs.Tree, counters *cgroupfs.Sampler[cgroupfs.Counters]) *Usages {
	return &Usages{counters, cgroupfs.NewSampler(cgroupfs.FreshTime, perNode(tree)), cgroupfs.NewSampler(cgroupfs.FreshTime, tree.Mapped)}
}

// read returns the counters of the view's running containers, by cgroup.
func (u *Usages) read(view *ledger.View) map[string]*Usage {
	var cgroups []string
	for _, c := range view.Containers() {
		if c.State == ledger.Running && c.Cgroup != "" {
			cgroups = append(cgroups, c.Cgroup)
		}
	}
	counters, nodes := inTime(u.counters, cgroups), inTime(u.perNode, cgroups)
	usages := make(map[string]*Usage, len(cgroups))
	for i, sample := range counters {
		if sample.Err == nil && !sample.At.IsZero() { // a container that has just ended has none
			usages[cgroups[i]] = &Usage{Current: sample.Value.Current, HighEvents: sample.Value.Events.High,
				FullStall: float64(sample.Value.Pressure.Full.Total) / 1e6, PerNode: nodes[i].Value}
		}
	}
	return usages
}

func inTime[T any](sampler *cgroupfs.Sampler[T], cgroups []string) []cgroupfs.Sample[T] {
	ctx, cancel := context.WithTimeout(context.Background(), readingTime)
	defer cancel()
	return sampler.Read(ctx, cgroups)
}

// perNode reads a container's memory per NUMA node; nil on a kernel without.
func perNode(tree *cgroupfs.Tree) func(cgroup string) (map[int]uint64, error) {
	return func(cgroup string) (map[int]uint64, error) {
		stat, err := tree.NUMAStat(cgroup)
		if err != nil || len(stat) == 0 {
			return nil, err
		}
		nodes := map[int]uint64{}
		for _, kind := range []string{"anon", "file"} {
			for node, bytes := range stat[kind] {
				nodes[node] += bytes
			}
		}
		return nodes, nil
	}
}
