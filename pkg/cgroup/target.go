package cgroup

import (
	"path"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Target holds the desired values of a cgroup. A value that is not set is restored to the kernel's default if this plugin wrote it before, and
// is otherwise left alone.
type Target struct {
	Cgroup string
	Level  string
	Driver Driver
	Values memoryqos.Values
	// Mems is cpuset.mems, of a container; empty leaves it alone.
	Mems string
	// Fresh is set for a pod that started while this process ran: its files held no values of this plugin before.
	Fresh bool
	// ByRuntime is set if the runtime is about to write the values. They are desired from now on, but not written or compared until a
	// target without ByRuntime, or Check of pkg/protect.
	ByRuntime bool
	// Seen holds values that were just read, for a cgroup that may be new to the table; if nil, the files are read.
	Seen *Seen
}

// Seen holds values that were read. Unreadable values are nil.
type Seen struct {
	Values memoryqos.Values
	Mems   *string
}

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
