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
	path := filepath.Join(folder, "nr_hugepages")
	text, err := readLine(path)
	if err != nil {
		return Pool{}, err
	}
	pool := Pool{PageSize: kib * 1024}
	pool.Count, err = strconv.ParseUint(text, 10, 64)
	if err != nil || pool.Count > math.MaxInt64/pool.PageSize {
		return Pool{}, fmt.Errorf("%s: %q is not a number of pages", path, text)
	}
	return pool, nil
}

func byPageSize(a, b Pool) int { return cmp.Compare(a.PageSize, b.PageSize) }
