package protect

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const mi = 1 << 20

func minimum(v uint64) memoryqos.Values { return memoryqos.Values{Min: &v} }
func low(v uint64) memoryqos.Values     { return memoryqos.Values{Low: &v} }

func both(min, low uint64) memoryqos.Values {
	return memoryqos.Values{Min: &min, Low: &low}
}

// Pod is a living pod.
type Pod struct {
	Path cgroup.PodPath
	// Values are its own cgroup's, from memoryqos.Settings.Pod.
	Values memoryqos.Values
	// Fresh is set for a pod that began while this process ran: nothing that its files held before is ours.
	Fresh bool
	// Containers are those of its containers that have a cgroup, or will.
	Containers []Container
}

// Container is a living container.
type Container struct {
	Cgroup string // from PodPath.Container
	Values memoryqos.Values
	// Mems is cpuset.mems.
	Mems string
	// ByRuntime says that the runtime is about to write the values.
	ByRuntime bool
}

// Targets derives all levels from the living pods: the sums, top-down, then the pods as they are given, each with its
// containers. It is pure. BestEffort's level protects nothing and so is no target.
func Targets(pods []Pod) []cgroup.Target {
	var trees []*subtree // a node has one, unless kubelets share it
	for _, p := range pods {
		t := find(trees, p.Path.Kubepods)
		if t == nil {
			t = &subtree{kubepods: p.Path.Kubepods, driver: p.Path.Driver, pods: make([]memoryqos.PodValues, 0, len(pods))}
			trees = append(trees, t)
		}
		t.pods = append(t.pods, memoryqos.PodValues{Class: p.Path.Class, Values: p.Values})
		if p.Path.Class == memoryqos.Burstable {
			t.burstable = p.Path.QoS
		}
	}
	targets := make([]cgroup.Target, 0, len(pods)+2*len(trees))
	for _, t := range trees {
		levels := memoryqos.Ancestors(slices.Values(t.pods))
		targets = append(targets, cgroup.Target{Cgroup: t.kubepods, Level: cgroup.LevelKubepods, Driver: t.driver, Values: levels.Kubepods})
		if t.burstable != "" {
			targets = append(targets, cgroup.Target{Cgroup: t.burstable, Level: cgroup.LevelBurstable, Driver: t.driver, Values: levels.Burstable})
		}
	}
	for _, p := range pods {
		targets = append(targets, cgroup.Target{Cgroup: p.Path.Pod, Level: cgroup.LevelPod, Driver: p.Path.Driver, Values: p.Values, Fresh: p.Fresh})
		for _, c := range p.Containers {
			targets = append(targets, cgroup.Target{
				Cgroup: c.Cgroup, Level: cgroup.LevelContainer, Driver: p.Path.Driver, Values: c.Values, Mems: c.Mems, ByRuntime: c.ByRuntime,
			})
		}
	}
	return targets
}

// subtree is what hangs below one kubepods.
type subtree struct {
	kubepods, burstable string
	driver              cgroup.Driver
	pods                []memoryqos.PodValues
}

func find(trees []*subtree, kubepods string) *subtree {
	for _, t := range trees {
		if t.kubepods == kubepods {
			return t
		}
	}
	return nil
}
