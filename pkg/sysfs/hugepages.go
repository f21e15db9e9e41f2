package sysfs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Pool is a huge page pool of a NUMA node.
type Pool struct {
	Node     int
	PageSize uint64 // bytes
	// Count is how many pages there are, Free how many of them nobody uses.
	Count, Free uint64
}

// Pools reads the huge page pools of a NUMA node.
func Pools(root string, node int) (pools []Pool, err error) {
	folder := filepath.Join(nodeFolder(root, node), "hugepages")
	all, err := readPools(folder)
	for _, pool := range all {
		free, err := readFree(folder, pool.PageSize)
		if err != nil {
			return nil, err
		}
		pools = append(pools, Pool{node, pool.PageSize, pool.Count, free})
	}
	return pools, err
}

func readFree(folder string, pageSize uint64) (uint64, error) {
	return readPages(filepath.Join(folder, fmt.Sprintf("hugepages-%dkB", pageSize/1024), "free_hugepages"), pageSize)
}

// readPools reads the huge page pools of a node (hugepages-2048kB/nr_hugepages), by page size. A kernel without huge pages
// has no folder. See Documentation/admin-guide/mm/hugetlbpage.rst.
func readPools(folder string) ([]machine.Pool, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pools []machine.Pool
	for _, entry := range entries {
		size, isPool := strings.CutPrefix(entry.Name(), "hugepages-")
		if !isPool {
			continue
		}
		pool, err := readPool(filepath.Join(folder, entry.Name()), size)
		if err != nil {
			return nil, err
		}
		pools = append(pools, pool)
	}
	slices.SortFunc(pools, func(a, b machine.Pool) int { return cmp.Compare(a.PageSize, b.PageSize) })
	return pools, nil
}

func readPool(folder, size string) (machine.Pool, error) {
	kib, err := strconv.ParseUint(strings.TrimSuffix(size, "kB"), 10, 64)
	if err != nil || kib == 0 || kib > math.MaxInt64/1024 {
		return machine.Pool{}, fmt.Errorf("%s: %q is not a page size", folder, size)
	}
	pool := machine.Pool{PageSize: kib * 1024}
	pool.Count, err = readPages(filepath.Join(folder, "nr_hugepages"), pool.PageSize)
	return pool, err
}

func readPages(path string, pageSize uint64) (uint64, error) {
	text, err := readText(path)
	if err != nil {
		return 0, err
	}
	count, err := strconv.ParseUint(text, 10, 64)
	if err != nil || count > math.MaxInt64/pageSize {
		return 0, fmt.Errorf("%s: %q is not a number of pages", path, text)
	}
	return count, nil
}

// FreePages reads what the kernel has free of the huge pages of a size on each of a machine's nodes (free_hugepages). A node without
// pages of the size has none.
func FreePages(root string, m machine.Machine, pageSize uint64) ([]memorymanager.FreePages, error) {
	_, err := os.Stat(filepath.Join(root, nodesFolder))
	withoutNUMA := errors.Is(err, fs.ErrNotExist)
	var free []memorymanager.FreePages
	for _, node := range m.Nodes {
		folder := filepath.Join(nodeFolder(root, node.ID), "hugepages")
		if withoutNUMA {
			folder = filepath.Join(root, "kernel/mm/hugepages")
		}
		if _, err := os.Stat(folder); err != nil {
			return nil, fmt.Errorf("read the free huge pages: %w", err)
		}
		pages, err := readFree(folder, pageSize)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the free huge pages: %w", err)
		}
		free = append(free, memorymanager.FreePages{Node: node.ID, Type: memorymanager.Hugepages(pageSize), Bytes: pages * pageSize})
	}
	return free, nil
}
