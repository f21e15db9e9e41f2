package cgroupfs

import (
	"errors"
	"fmt"
	"path"
)

// NodePages is a cgroup's memory on a NUMA node, in bytes.
type NodePages struct {
	// Resident is everything in memory.numa_stat: anonymous pages, file pages and kernel memory of the cgroup.
	Resident uint64
	// File is the file pages on the LRU lists, which can be reclaimed, without shmem and tmpfs.
	File uint64
}

// ErrNoNUMAStat means that the kernel does not show where a cgroup's pages are.
var ErrNoNUMAStat = errors.New("the kernel has no memory.numa_stat (before 5.10, without NUMA, or cgroup v1)")

// mapped are the lines of memory.numa_stat about pages that tasks have mapped, including files and shared memory.
var mapped = []string{"anon", "file_mapped"}

// add adds a line of memory.numa_stat (https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files).
func (p *NodePages) add(kind string, bytes uint64) {
	switch kind {
	case "anon", "file", "kernel_stack", "pagetables", "sec_pagetables", "slab_reclaimable", "slab_unreclaimable":
		p.Resident += bytes
	case "inactive_file", "active_file":
		p.File += bytes
	}
}

// Pages returns a cgroup's pages by NUMA node. The error is ErrNoNUMAStat if the kernel does not show them, and fs.ErrNotExist if the cgroup is
// gone.
func (t *Tree) Pages(cgroup string) (map[int]NodePages, error) {
	stat, err := t.NUMAStat(cgroup)
	if err == nil && len(stat) == 0 {
		return nil, fmt.Errorf("read %s: %w", path.Join(t.root, cgroup), ErrNoNUMAStat)
	}
	pages := map[int]NodePages{}
	for kind, nodes := range stat {
		for node, bytes := range nodes {
			p := pages[node]
			p.add(kind, bytes)
			pages[node] = p
		}
	}
	return pages, err
}
