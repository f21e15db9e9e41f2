package protect

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const mi = 1 << 20

func minimum(v uint64) memoryqos.Values { return memoryqos.Values{Min: &v} }
func low(v uint64) memoryqos.Values     { return memoryqos.Values{Low: &v} }
func both(min, low uint64) memoryqos.Values {
	return memoryqos.Values{Min: &min, Low: &low}
}

func TestTargetsAreTheSumsOfTheLivingPods(t *testing.T) {
	guaranteed := Pod{Path: mustPod(t, "/kubepods/podg"), Values: minimum(128 * mi), Fresh: true}
	burstable1 := Pod{Path: mustPod(t, "/kubepods/burstable/podb1"), Values: low(128 * mi)}
	burstable2 := Pod{Path: mustPod(t, "/kubepods/burstable/podb2"), Values: low(256 * mi)}
	bestEffort := Pod{Path: mustPod(t, "/kubepods/besteffort/pode"), Values: memoryqos.Values{}}
	tests := map[string]struct {
		pods []Pod
		want []Target
	}{
		"none": {nil, []Target{}},
		"KEP-2570": {[]Pod{burstable2, guaranteed, burstable1}, []Target{
			{Cgroup: "kubepods", Level: cgroup.LevelKubepods, Driver: cgroup.Cgroupfs, Values: both(512*mi, 384*mi)},
			{Cgroup: "kubepods/burstable", Level: cgroup.LevelBurstable, Driver: cgroup.Cgroupfs, Values: low(384 * mi)},
			{Cgroup: "kubepods/burstable/podb2", Level: cgroup.LevelPod, Driver: cgroup.Cgroupfs, Values: low(256 * mi)},
			{Cgroup: "kubepods/podg", Level: cgroup.LevelPod, Driver: cgroup.Cgroupfs, Values: minimum(128 * mi), Fresh: true},
			{Cgroup: "kubepods/burstable/podb1", Level: cgroup.LevelPod, Driver: cgroup.Cgroupfs, Values: low(128 * mi)},
		}},
		"BestEffort": {[]Pod{bestEffort}, []Target{
			{Cgroup: "kubepods", Level: cgroup.LevelKubepods, Driver: cgroup.Cgroupfs, Values: memoryqos.Values{}},
			{Cgroup: "kubepods/besteffort/pode", Level: cgroup.LevelPod, Driver: cgroup.Cgroupfs, Values: memoryqos.Values{}},
		}},
		"two kubelets": {[]Pod{guaranteed, {Path: mustPod(t, "a-kubepods-burstable-pod1.slice"), Values: low(mi)}}, []Target{
			{Cgroup: "kubepods", Level: cgroup.LevelKubepods, Driver: cgroup.Cgroupfs, Values: minimum(128 * mi)},
			{Cgroup: "a.slice/a-kubepods.slice", Level: cgroup.LevelKubepods, Driver: cgroup.Systemd, Values: both(mi, mi)},
			{Cgroup: "a.slice/a-kubepods.slice/a-kubepods-burstable.slice", Level: cgroup.LevelBurstable, Driver: cgroup.Systemd, Values: low(mi)},
			{Cgroup: "kubepods/podg", Level: cgroup.LevelPod, Driver: cgroup.Cgroupfs, Values: minimum(128 * mi), Fresh: true},
			{Cgroup: "a.slice/a-kubepods.slice/a-kubepods-burstable.slice/a-kubepods-burstable-pod1.slice", Level: cgroup.LevelPod, Driver: cgroup.Systemd, Values: low(mi)},
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Targets(test.pods)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
