package protect

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// File is a file of a cgroup.
type File struct {
	Cgroup string
	Knob   cgroup.Knob
}

// Overwritten counts foreign writes to the files that are protected now: what Overwrites counts by level, by cgroup.
func (p *Protector) Overwritten() map[File]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[File]uint64{}
	for _, h := range p.held {
		for i, f := range h.files {
			if f.overwritten > 0 {
				all[File{h.cgroup, protected[i]}] = f.overwritten
			}
		}
	}
	return all
}
