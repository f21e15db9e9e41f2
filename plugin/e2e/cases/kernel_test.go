package cases

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// unlimited is what number returns for "max".
const unlimited = uint64(math.MaxUint64)

// file reads a kernel file without its line end, "" when it is gone.
func file(parts ...string) string {
	text, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// number reads a kernel file with one number.
func number(t *testing.T, dir, name string) uint64 {
	t.Helper()
	text := file(dir, name)
	if text == "max" {
		return unlimited
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s/%s: %v", dir, name, err)
	}
	return n
}

// event reads one counter of a file such as memory.events.
func event(dir, name, counter string) uint64 {
	for line := range strings.Lines(file(dir, name)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == counter {
			n, _ := strconv.ParseUint(value, 10, 64)
			return n
		}
	}
	return 0
}

// write writes to a kernel file with one plain write(2).
func write(t *testing.T, text string, parts ...string) {
	t.Helper()
	if err := rawWrite(filepath.Join(parts...), text); err != nil {
		t.Fatal(err)
	}
}

// rawWrite does without os.File: for memory.reclaim, which answers EAGAIN when
// it could not free all, Go's poller would wait for ever.
func rawWrite(name, text string) error {
	fd, err := syscall.Open(name, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer syscall.Close(fd)
	if _, err := syscall.Write(fd, []byte(text)); err != nil {
		return fmt.Errorf("write %q to %s: %w", text, name, err)
	}
	return nil
}

// reclaim asks the kernel to take bytes from a cgroup, in small parts, until it
// finds nothing more.
func reclaim(dir string, bytes uint64) {
	const part = 8 * MiB
	for failures := 0; bytes > 0 && failures < 4; bytes -= min(part, bytes) {
		err := rawWrite(filepath.Join(dir, "memory.reclaim"), fmt.Sprint(part))
		if errors.Is(err, syscall.EAGAIN) {
			failures++
		} else {
			failures = 0
		}
	}
}

// anonPages counts the anonymous pages of a container's processes per NUMA
// node (proc(5), numa_maps).
func anonPages(t *testing.T, k machine, p *kubelet.Pod, container string) map[int]int {
	t.Helper()
	pids, err := k.PIDs(p, container)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[int]int{}
	for _, pid := range pids {
		for line := range strings.Lines(file("/proc", strconv.Itoa(pid), "numa_maps")) {
			if !strings.Contains(line, " anon=") || strings.Contains(line, " huge ") {
				continue
			}
			countPages(line, pages)
		}
	}
	return pages
}

// hugePages counts the huge pages of a container's processes per NUMA node.
func hugePages(t *testing.T, k machine, p *kubelet.Pod, container string) map[int]int {
	t.Helper()
	pids, err := k.PIDs(p, container)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[int]int{}
	for _, pid := range pids {
		for line := range strings.Lines(file("/proc", strconv.Itoa(pid), "numa_maps")) {
			if strings.Contains(line, " huge ") {
				countPages(line, pages)
			}
		}
	}
	return pages
}

func countPages(line string, pages map[int]int) {
	for _, field := range strings.Fields(line) {
		key, value, _ := strings.Cut(field, "=")
		if id, ok := strings.CutPrefix(key, "N"); ok {
			n, err1 := strconv.Atoi(id)
			count, err2 := strconv.Atoi(value)
			if err1 == nil && err2 == nil {
				pages[n] += count
			}
		}
	}
}

// ids parses the kernel's list format ("0-1,3").
func ids(t *testing.T, list string) []int {
	t.Helper()
	var all []int
	for _, part := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(last)
		}
		if err != nil {
			t.Fatalf("list %q: %v", list, err)
		}
		for id := from; id <= to; id++ {
			all = append(all, id)
		}
	}
	return all
}

// onNodes checks that at least 99 % of the pages are on these nodes, and that
// there are as many as the test touched.
func onNodes(t *testing.T, what string, pages map[int]int, nodes []int, atLeast uint64) (percent float64) {
	t.Helper()
	all, there := 0, 0
	for id, n := range pages {
		all += n
		if slices.Contains(nodes, id) {
			there += n
		}
	}
	if uint64(all)*4096 < atLeast {
		t.Errorf("%s: %d anonymous pages, fewer than the %d bytes that were touched", what, all, atLeast)
	}
	if there*100 < all*99 {
		t.Errorf("%s: %d of %d pages are on nodes %v: %v", what, there, all, nodes, pages)
	}
	return float64(there) * 100 / float64(max(all, 1))
}

// dirOf is a container's cgroup.
func dirOf(t *testing.T, k machine, p *kubelet.Pod, container string) string {
	t.Helper()
	dir, err := k.ContainerDir(p, container)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// memAvailable is what the node could still give, in bytes, and memTotal what it has.
func memAvailable(t *testing.T) uint64 { return meminfo(t, "MemAvailable") }
func memTotal(t *testing.T) uint64     { return meminfo(t, "MemTotal") }

func meminfo(t *testing.T, what string) uint64 {
	t.Helper()
	for line := range strings.Lines(file("/proc/meminfo")) {
		var kib uint64
		if _, err := fmt.Sscanf(line, what+": %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatalf("no %s in /proc/meminfo", what)
	return 0
}
