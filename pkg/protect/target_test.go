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
			{"kubepods", cgroup.LevelKubepods, cgroup.Cgroupfs, both(512*mi, 384*mi), false},
			{"kubepods/burstable", cgroup.LevelBurstable, cgroup.Cgroupfs, low(384 * mi), false},
			{"kubepods/burstable/podb2", cgroup.LevelPod, cgroup.Cgroupfs, low(256 * mi), false},
			{"kubepods/podg", cgroup.LevelPod, cgroup.Cgroupfs, minimum(128 * mi), true},
			{"kubepods/burstable/podb1", cgroup.LevelPod, cgroup.Cgroupfs, low(128 * mi), false},
		}},
		"BestEffort": {[]Pod{bestEffort}, []Target{
			{"kubepods", cgroup.LevelKubepods, cgroup.Cgroupfs, memoryqos.Values{}, false},
			{"kubepods/besteffort/pode", cgroup.LevelPod, cgroup.Cgroupfs, memoryqos.Values{}, false},
		}},
		"two kubelets": {[]Pod{guaranteed, {Path: mustPod(t, "a-kubepods-burstable-pod1.slice"), Values: low(mi)}}, []Target{
			{"kubepods", cgroup.LevelKubepods, cgroup.Cgroupfs, minimum(128 * mi), false},
			{"a.slice/a-kubepods.slice", cgroup.LevelKubepods, cgroup.Systemd, both(mi, mi), false},
			{"a.slice/a-kubepods.slice/a-kubepods-burstable.slice", cgroup.LevelBurstable, cgroup.Systemd, low(mi), false},
			{"kubepods/podg", cgroup.LevelPod, cgroup.Cgroupfs, minimum(128 * mi), true},
			{"a.slice/a-kubepods.slice/a-kubepods-burstable.slice/a-kubepods-burstable-pod1.slice", cgroup.LevelPod, cgroup.Systemd, low(mi), false},
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
