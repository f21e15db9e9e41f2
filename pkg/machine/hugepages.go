package machine

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
)

// readPools reads the huge page pools of a node (hugepages-2048kB/nr_hugepages), by page size. A kernel without huge pages
// has no folder. See Documentation/admin-guide/mm/hugetlbpage.rst.
func readPools(folder string) ([]Pool, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pools []Pool
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
	slices.SortFunc(pools, byPageSize)
	return pools, nil
}

func readPool(folder, size string) (Pool, error) {
	kib, err := strconv.ParseUint(strings.TrimSuffix(size, "kB"), 10, 64)
	if err != nil || kib == 0 || kib > math.MaxInt64/1024 {
		return Pool{}, fmt.Errorf("%s: %q is not a page size", folder, size)
	}
	pool := Pool{PageSize: kib * 1024}
	pool.Count, err = readPages(filepath.Join(folder, "nr_hugepages"), pool.PageSize)
	return pool, err
}

// readPages reads a file with a number of huge pages.
func readPages(path string, pageSize uint64) (uint64, error) {
	text, err := readLine(path)
	if err != nil {
		return 0, err
	}
	count, err := strconv.ParseUint(text, 10, 64)
	if err != nil || count > math.MaxInt64/pageSize {
		return 0, fmt.Errorf("%s: %q is not a number of pages", path, text)
	}
	return count, nil
}

// FreeHugepages reads how many bytes of huge pages of a size the kernel has free on each of the machine's nodes, in their order
// (free_hugepages). A node without pages of the size has none.
func (m Machine) FreeHugepages(sysfsRoot string, pageSize uint64) ([]uint64, error) {
	free := make([]uint64, len(m.Nodes))
	for i, node := range m.Nodes {
		folder := filepath.Join(sysfsRoot, "devices/system/node", "node"+strconv.Itoa(node.ID), "hugepages")
		if _, err := os.Stat(filepath.Join(sysfsRoot, "devices/system/node")); errors.Is(err, fs.ErrNotExist) {
			folder = filepath.Join(sysfsRoot, "kernel/mm/hugepages") // a kernel without CONFIG_NUMA
		}
		if _, err := os.Stat(folder); err != nil {
			return nil, fmt.Errorf("read the free huge pages: %w", err)
		}
		pages, err := readPages(filepath.Join(folder, fmt.Sprintf("hugepages-%dkB", pageSize/1024), "free_hugepages"), pageSize)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the free huge pages: %w", err)
		}
		free[i] = pages * pageSize
	}
	return free, nil
}

func byPageSize(a, b Pool) int { return cmp.Compare(a.PageSize, b.PageSize) }
