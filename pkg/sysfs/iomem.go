package sysfs

import (
	"bufio"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// mostIomem is how much of /proc/iomem is read; that of a large server has some 100 KiB.
const mostIomem = 1 << 20

// readKernelImage returns the size of the kernel's image in bytes, 0 where it cannot be known: a process without
// CAP_SYS_ADMIN reads only zeros.
func readKernelImage(path string) uint64 {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close()
	return parseKernelImage(io.LimitReader(file, mostIomem))
}

// parseKernelImage returns the bytes from the lowest to the highest address of the lines "Kernel code", "Kernel data" and
// "Kernel bss", what lies between them included; 0 without such lines, and where all are zero.
func parseKernelImage(r io.Reader) uint64 {
	lowest, highest := uint64(math.MaxUint64), uint64(0)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		addresses, name, _ := strings.Cut(lines.Text(), " : ")
		switch strings.TrimSpace(name) {
		case "Kernel code", "Kernel data", "Kernel bss":
		default:
			continue
		}
		first, last, _ := strings.Cut(strings.TrimSpace(addresses), "-")
		start, startErr := strconv.ParseUint(first, 16, 64)
		end, endErr := strconv.ParseUint(last, 16, 64)
		if startErr != nil || endErr != nil || end < start {
			continue
		}
		lowest, highest = min(lowest, start), max(highest, end)
	}
	if highest == 0 {
		return 0
	}
	return highest - lowest + 1
}
