package protect

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// File is a file of a cgroup.
type File struct {
	Cgroup string
	Knob   cgroup.Knob
}

// Overwritten counts how often another writer changed the files of the cgroups in the table: what Overwrites counts by level,
// by cgroup.
func (p *Protector) Overwritten() map[File]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[File]uint64{}
	for dir, r := range p.rows {
		if r.level == cgroup.LevelContainer {
			continue
		}
		for i := range r.files {
			if n := r.files[i].overwritten; n > 0 {
				all[File{dir, knobs[i]}] = n
			}
		}
	}
	return all
}
