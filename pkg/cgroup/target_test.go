package cgroup

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const mi = 1 << 20

func minimum(v uint64) memoryqos.Values { return memoryqos.Values{Min: &v} }
func low(v uint64) memoryqos.Values     { return memoryqos.Values{Low: &v} }
func both(min, low uint64) memoryqos.Values {
	return memoryqos.Values{Min: &min, Low: &low}
}

func TestTargetsAreTheSumsOfTheLivingPods(t *testing.T) {
	guaranteed := Pod{mustPod(t, "/kubepods/podg"), minimum(128 * mi)}
	burstable1 := Pod{mustPod(t, "/kubepods/burstable/podb1"), low(128 * mi)}
	burstable2 := Pod{mustPod(t, "/kubepods/burstable/podb2"), low(256 * mi)}
	bestEffort := Pod{mustPod(t, "/kubepods/besteffort/pode"), memoryqos.Values{}}
	tests := map[string]struct {
		pods []Pod
		want []Target
	}{
		"none": {nil, []Target{}},
		"KEP-2570": {[]Pod{burstable2, guaranteed, burstable1}, []Target{
			{"kubepods", LevelKubepods, Cgroupfs, both(512*mi, 384*mi)},
			{"kubepods/burstable", LevelBurstable, Cgroupfs, low(384 * mi)},
			{"kubepods/burstable/podb2", LevelPod, Cgroupfs, low(256 * mi)},
			{"kubepods/podg", LevelPod, Cgroupfs, minimum(128 * mi)},
			{"kubepods/burstable/podb1", LevelPod, Cgroupfs, low(128 * mi)},
		}},
		"BestEffort": {[]Pod{bestEffort}, []Target{
			{"kubepods", LevelKubepods, Cgroupfs, memoryqos.Values{}},
			{"kubepods/besteffort/pode", LevelPod, Cgroupfs, memoryqos.Values{}},
		}},
		"two kubelets": {[]Pod{guaranteed, {mustPod(t, "a-kubepods-burstable-pod1.slice"), low(mi)}}, []Target{
			{"kubepods", LevelKubepods, Cgroupfs, minimum(128 * mi)},
			{"a.slice/a-kubepods.slice", LevelKubepods, Systemd, both(mi, mi)},
			{"a.slice/a-kubepods.slice/a-kubepods-burstable.slice", LevelBurstable, Systemd, low(mi)},
			{"kubepods/podg", LevelPod, Cgroupfs, minimum(128 * mi)},
			{"a.slice/a-kubepods.slice/a-kubepods-burstable.slice/a-kubepods-burstable-pod1.slice", LevelPod, Systemd, low(mi)},
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
