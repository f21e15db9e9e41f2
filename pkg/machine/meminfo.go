package machine

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// readMeminfo reads /proc/meminfo or a NUMA node's meminfo: bytes by name.
func readMeminfo(path string) (map[string]uint64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := parseMeminfo(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return info, nil
}

// parseMeminfo reads lines like "MemTotal: 131823588 kB" and "Node 0 MemTotal: 131823588 kB". Lines without the unit are
// counters (HugePages_Total), which sysfs has per page size, and are skipped. "kB" is 1024 bytes.
func parseMeminfo(r io.Reader) (map[string]uint64, error) {
	info := map[string]uint64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 2 && fields[0] == "Node" {
			fields = fields[2:]
		}
		if len(fields) != 3 || fields[2] != "kB" {
			continue
		}
		kib, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil || kib > math.MaxInt64/1024 {
			return nil, fmt.Errorf("%q is not a number of kB", fields[1])
		}
		info[strings.TrimSuffix(fields[0], ":")] = kib * 1024
	}
	return info, lines.Err()
}
