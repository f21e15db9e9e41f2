package cgroup

import (
	"path"
	"strings"
)

// The levels of cgroups.
const (
	LevelKubepods  = "kubepods"
	LevelSystem    = "system" // KEP-5894's partition below kubepods
	LevelBurstable = "burstable"
	LevelPod       = "pod"
	LevelContainer = "container"
)

// Levels are all levels, from the top down.
var Levels = [...]string{LevelKubepods, LevelSystem, LevelBurstable, LevelPod, LevelContainer}

// LevelOf returns the level of kubepods or a cgroup below it.
func LevelOf(cgroup string) string {
	name, above := path.Base(cgroup), path.Dir(cgroup)
	if isKubepods(name, Cgroupfs) || isKubepods(name, Systemd) {
		return LevelKubepods
	}
	driver := Cgroupfs
	if strings.HasSuffix(name, slice) {
		driver = Systemd
	}
	switch level, _ := below(path.Base(above), name, driver); {
	case isKubepods(path.Base(above), driver) && (level == LevelSystem || level == LevelBurstable):
		return level
	case level == LevelBurstable && LevelOf(above) == LevelSystem:
		return level
	}
	if _, err := ParsePod(cgroup); err == nil {
		return LevelPod
	}
	return LevelContainer
}
