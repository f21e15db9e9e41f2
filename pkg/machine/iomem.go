package machine

import (
	"bufio"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// driftGrace is what the memory of a NUMA node may move by beyond the kernel's image: what the kernel allocates at boot
// depends on where its image lies (KEP-6232).
const driftGrace = 64 << 20

// mostIomem is how much of /proc/iomem is read; that of a large server has some 100 KiB.
const mostIomem = 1 << 20

// Drift is how far the memory of a NUMA node may move between two boots without being another machine's, in bytes: the
// kernel's image lies on another node each time, and 64 MiB beside it. It is 0 where the size of the image is not known.
// https://github.com/kubernetes/enhancements/issues/6232
func (m Machine) Drift() uint64 {
	if m.KernelImage == 0 {
		return 0
	}
	return m.KernelImage + driftGrace
}

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
	if highest == 0 || highest-lowest >= math.MaxInt64-driftGrace {
		return 0
	}
	return highest - lowest + 1
}
