package cgroup

import "testing"

func TestLevelsOfCgroups(t *testing.T) {
	for cgroup, want := range map[string]string{
		"kubepods":                 LevelKubepods,
		"a/kubepods":               LevelKubepods,
		"a.slice/a-kubepods.slice": LevelKubepods,
		"kubepods/burstable":       LevelBurstable,
		"kubepods.slice/kubepods-burstable.slice":             LevelBurstable,
		"a.slice/a-kubepods.slice/a-kubepods-burstable.slice": LevelBurstable,
		"kubepods/system":                                                       LevelSystem,
		"kubepods.slice/kubepods-system.slice":                                  LevelSystem,
		"a.slice/a-kubepods.slice/a-kubepods-system.slice":                      LevelSystem,
		"kubepods/system/burstable":                                             LevelBurstable,
		"kubepods.slice/kubepods-system.slice/kubepods-system-burstable.slice":  LevelBurstable,
		"kubepods/system/pod1":                                                  LevelPod,
		"kubepods/system/burstable/pod1":                                        LevelPod,
		"kubepods.slice/kubepods-system.slice/kubepods-system-pod1.slice":       LevelPod,
		"kubepods/system/pod1/c":                                                LevelContainer,
		"kubepods/pod1/system":                                                  LevelContainer,
		"kubepods/pod1":                                                         LevelPod,
		"kubepods/burstable/pod1":                                               LevelPod,
		"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice": LevelPod,
		"kubepods/pod1/burstable":                                               LevelContainer,
		"kubepods/burstable/pod1/c":                                             LevelContainer,
		"kubepods.slice/kubepods-pod1.slice/crio-c.scope":                       LevelContainer,
	} {
		if got := LevelOf(cgroup); got != want {
			t.Errorf("%s is called %s, want %s", cgroup, got, want)
		}
	}
}
