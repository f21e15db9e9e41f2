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
	// Anon are the anonymous pages, File the file pages on the LRU lists, which can be reclaimed; shmem and tmpfs are not among them.
	Anon, File uint64
	// Mapped are those that a write of cpuset.mems can move, as in Mapped.
	Mapped uint64
}

// ErrNoNUMAStat is the answer where the kernel does not say where a cgroup's pages are.
var ErrNoNUMAStat = errors.New("the kernel has no memory.numa_stat (before 5.10, without NUMA, or cgroup v1)")

// resident are the lines of memory.numa_stat that add up to what a cgroup has, onLists those of file pages on the LRU lists, and
// mapped those of pages in the address spaces of tasks, files and shared memory among them
// (https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files).
var (
	resident = []string{"anon", "file", "kernel_stack", "pagetables", "sec_pagetables", "slab_reclaimable", "slab_unreclaimable"}
	onLists  = []string{"inactive_file", "active_file"}
	mapped   = []string{"anon", "file_mapped"}
)

// Pages reads where a cgroup's pages are, by NUMA node. The error is ErrNoNUMAStat where the kernel does not say, and
// fs.ErrNotExist for a cgroup that is gone.
func (t *Tree) Pages(cgroup string) (map[int]NodePages, error) {
	stat, err := t.NUMAStat(cgroup)
	if err != nil {
		return nil, err
	}
	if len(stat["anon"]) == 0 {
		return nil, fmt.Errorf("read %s: %w", path.Join(t.root, cgroup), ErrNoNUMAStat)
	}
	pages := make(map[int]NodePages, len(stat["anon"]))
	for node, anon := range stat["anon"] {
		sum := func(kinds []string) (bytes uint64) {
			for _, kind := range kinds {
				bytes += stat[kind][node]
			}
			return bytes
		}
		pages[node] = NodePages{Anon: anon, Resident: sum(resident), File: sum(onLists), Mapped: sum(mapped)}
	}
	return pages, nil
}
