package cgroup

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// The levels above the containers.
const (
	LevelKubepods  = "kubepods"
	LevelBurstable = "burstable"
	LevelPod       = "pod"
)

// Pod is a living pod as the levels above the containers see it.
type Pod struct {
	Path PodPath
	// Values are its own cgroup's, from memoryqos.Settings.Pod.
	Values memoryqos.Values
}

// Target is what one cgroup above the containers should hold. A value that is not set is put back to the kernel's default
// if this protector wrote it before, and is otherwise left alone.
type Target struct {
	Cgroup string
	Level  string
	Driver Driver
	Values memoryqos.Values
}

// Targets derives all levels from the living pods: their own and the sums above them, parents before children. It is pure.
// BestEffort's level protects nothing and so is no target.
func Targets(pods []Pod) []Target {
	targets := make([]Target, 0, len(pods)+2)
	trees := make(map[string]*subtree, 1)
	for _, p := range pods {
		targets = append(targets, Target{Cgroup: p.Path.Pod, Level: LevelPod, Driver: p.Path.Driver, Values: p.Values})
		t := trees[p.Path.Kubepods]
		if t == nil {
			t = &subtree{driver: p.Path.Driver, pods: make([]memoryqos.PodValues, 0, len(pods))}
			trees[p.Path.Kubepods] = t
		}
		t.pods = append(t.pods, memoryqos.PodValues{Class: p.Path.Class, Values: p.Values})
		if p.Path.Class == memoryqos.Burstable {
			t.burstable = p.Path.QoS
		}
	}
	for kubepods, t := range trees {
		levels := memoryqos.Ancestors(t.pods)
		targets = append(targets, Target{Cgroup: kubepods, Level: LevelKubepods, Driver: t.driver, Values: levels.Kubepods})
		if t.burstable != "" {
			targets = append(targets, Target{Cgroup: t.burstable, Level: LevelBurstable, Driver: t.driver, Values: levels.Burstable})
		}
	}
	slices.SortFunc(targets, func(a, b Target) int {
		return cmp.Or(cmp.Compare(depth(a.Cgroup), depth(b.Cgroup)), cmp.Compare(a.Cgroup, b.Cgroup))
	})
	return targets
}

// subtree is what hangs below one kubepods; a node has one, unless kubelets share it.
type subtree struct {
	driver    Driver
	burstable string
	pods      []memoryqos.PodValues
}

func depth(cgroup string) int { return strings.Count(cgroup, "/") }
