package reclaim

import (
	"os"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

var pageSize = uint64(os.Getpagesize())

// nearest returns the signal that is nearest to its threshold. A Threshold of 0 means that there is none.
func (r *Reclaimer) nearest(view *ledger.View) (Signal, error) {
	info, err := sysfs.Meminfo(r.Proc)
	if err != nil {
		return Signal{}, err
	}
	r.swap.Store(info["SwapTotal"] > 0)
	node := ofNode(info, max(view.Config.Eviction, view.Config.SoftEviction))
	pods, err := r.ofPods(view.Kubepods(), view.Config.Eviction)
	if err != nil {
		return Signal{}, err
	}
	if pods.Threshold > 0 && (node.Threshold == 0 || pods.left() < node.left()) {
		return pods, nil
	}
	return node, nil
}

// ofNode returns memory.available as kubelets from 1.32 on compute it: all memory less the working set of the root cgroup, which is its
// anonymous memory and its page cache without inactive_file. /proc/meminfo has the same counters as the root's memory.stat, and is cheaper:
// the kernel need not sum up cgroups.
func ofNode(info map[string]uint64, threshold uint64) Signal {
	used := info["AnonPages"] + info["Cached"] + info["Buffers"] + info["SwapCached"]
	used -= min(used, info["Inactive(file)"])
	return Signal{Name: Available, Capacity: info["MemTotal"], Available: info["MemTotal"] - min(info["MemTotal"], used), Threshold: threshold}
}

// ofPods returns allocatableMemory.available: the limit of kubepods less its working set. Its threshold is evictionHard's, or 0 if kubepods has
// no limit.
func (r *Reclaimer) ofPods(kubepods string, threshold uint64) (Signal, error) {
	if kubepods == "" || threshold == 0 {
		return Signal{}, nil
	}
	limit, err := r.Tree.Limit(kubepods)
	if err != nil || limit == cgroup.Max {
		return Signal{}, err
	}
	signal := Signal{Name: AllocatableAvailable, Capacity: limit, Threshold: threshold}
	usage := Usage{}
	if usage.Current, err = r.Tree.Current(kubepods); err != nil {
		return Signal{}, err
	}
	if signal.Available = limit - min(limit, usage.Current); signal.left() < 0 {
		usage, err = r.usage(kubepods) // with the page cache that counts as available
		signal.Available = limit - min(limit, usage.workingSet())
	}
	return signal, err
}

func (r *Reclaimer) usage(cgroup string) (Usage, error) {
	current, err := r.Tree.Current(cgroup)
	if err != nil || current < smallest {
		return Usage{Current: current}, err
	}
	stat, err := r.Tree.Stat(cgroup)
	return Usage{Current: current, Active: stat["active_file"], Inactive: stat["inactive_file"],
		Unwritten: stat["file_dirty"] + stat["file_writeback"], Refaulted: stat["workingset_refault_file"] * pageSize,
		Stolen: stat["pgsteal"] * pageSize}, err
}
