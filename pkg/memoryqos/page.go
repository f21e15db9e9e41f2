package memoryqos

import (
	"cmp"
	"math"
)

// InFile is what memory.min, memory.low, memory.high and memory.max show after bytes were written to them: the kernel
// counts whole pages and rounds down, and shows "max", here math.MaxUint64, from the largest number that it can count on
// (page_counter_memparse in mm/page_counter.c). A page size of 0 counts as 4096.
func InFile(bytes, pageSize uint64) uint64 {
	pageSize = cmp.Or(pageSize, defaultPageSize)
	pages := bytes / pageSize
	if pages >= math.MaxInt64/pageSize {
		return math.MaxUint64
	}
	return pages * pageSize
}

// Holds reports whether a file that shows this number holds the wanted one. A folder in place of a cgroup keeps every byte.
func Holds(shown, wanted, pageSize uint64) bool {
	return shown == wanted || shown == InFile(wanted, pageSize)
}

const defaultPageSize = 4096
