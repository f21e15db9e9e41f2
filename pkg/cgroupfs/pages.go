package cgroupfs

import (
	"errors"
	"fmt"
	"path"
)

// NodePages is a cgroup's memory on a NUMA node, in bytes.
type NodePages struct {
	// Resident is all that memory.numa_stat knows: anonymous and file pages, and the kernel's for the cgroup.
	Resident uint64
	// File are the file pages on the LRU lists, which can be reclaimed; shmem and tmpfs are not among them.
	File uint64
}

// ErrNoNUMAStat is the answer where the kernel does not say where a cgroup's pages are.
var ErrNoNUMAStat = errors.New("the kernel has no memory.numa_stat (before 5.10, without NUMA, or cgroup v1)")

// mapped are the lines of memory.numa_stat of pages in the address spaces of tasks, files and shared memory among them.
var mapped = []string{"anon", "file_mapped"}

// add adds what a line of memory.numa_stat has (https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files).
func (p *NodePages) add(kind string, bytes uint64) {
	switch kind {
	case "anon", "file", "kernel_stack", "pagetables", "sec_pagetables", "slab_reclaimable", "slab_unreclaimable":
		p.Resident += bytes
	case "inactive_file", "active_file":
		p.File += bytes
	}
}

// Pages reads where a cgroup's pages are, by NUMA node. The error is ErrNoNUMAStat where the kernel does not say, and
// fs.ErrNotExist for a cgroup that is gone.
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
