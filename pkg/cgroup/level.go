package cgroup

import (
	"path"
	"strings"
)

// The levels above the containers, and theirs.
const (
	LevelKubepods  = "kubepods"
	LevelBurstable = "burstable"
	LevelPod       = "pod"
	LevelContainer = "container"
)

// LevelOf is the level of a cgroup below kubepods, or of kubepods.
func LevelOf(cgroup string) string {
	name, parent := path.Base(cgroup), path.Base(path.Dir(cgroup))
	switch {
	case isKubepods(name, Cgroupfs), isKubepods(name, Systemd):
		return LevelKubepods
	case isKubepods(parent, Cgroupfs) && name == "burstable",
		isKubepods(parent, Systemd) && name == strings.TrimSuffix(parent, slice)+"-burstable"+slice:
		return LevelBurstable
	}
	if _, err := ParsePod(cgroup); err == nil {
		return LevelPod
	}
	return LevelContainer
}
