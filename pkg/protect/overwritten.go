package protect

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Unwritable are the containers whose files do not hold what is desired, and can be written by the runtime alone: this
// process is in them.
func (p *Protector) Unwritable() (cgroups []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.containers {
		if r.state == refused && r.any(func(s state) bool { return works[s] == read || works[s] == write }) {
			cgroups = append(cgroups, r.cgroup)
		}
	}
	return cgroups
}

// File is a file of a cgroup.
type File struct {
	Cgroup string
	Knob   cgroup.Knob
}

// Overwritable are the files that Overwrites can count: those with values of ours. The cgroups above the pods hold sums.
func Overwritable() (all []Overwrite) {
	for _, level := range cgroup.Levels {
		files := knobs[:high]
		switch level {
		case cgroup.LevelPod:
			files = knobs[:mems]
		case cgroup.LevelContainer:
			files = knobs[:]
		}
		for _, knob := range files {
			all = append(all, Overwrite{level, string(knob)})
		}
	}
	return all
}

// Overwritten counts how often another writer changed the files of the cgroups above the containers that are in the table: what
// Overwrites counts by level, by cgroup.
func (p *Protector) Overwritten() map[File]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[File]uint64{}
	for dir, r := range p.rows {
		if r.level == cgroup.LevelContainer {
			continue
		}
		for i, f := range r.all() {
			if f.overwritten > 0 {
				all[File{dir, knobs[i]}] = f.overwritten
			}
		}
	}
	return all
}
